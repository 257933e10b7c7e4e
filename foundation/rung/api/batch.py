"""One change of many experiments."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from rung.api.experiment import DescriptionWanted, ResourcesWanted, RetentionWanted
from rung.api.listing import Listing
from rung.api.states import Time

BATCH_MAX = 1_000
"""How many experiments one request changes at most."""

BatchAction = Literal[
    "pause", "resume", "cancel", "kill", "delete", "restore", "describe", "set", "retain"
]
_Reference = Annotated[str, Meta(min_length=1, max_length=600)]


class BatchWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """What is to happen to which experiments: those that are named, or that a filter selects."""

    action: BatchAction
    ids: Annotated[
        list[_Reference],
        Meta(max_length=BATCH_MAX, description="ids, beginnings of ids, or names"),
    ] = []
    filter: Annotated[
        str | None,
        Meta(description="in place of ids; a repeated request selects anew"),
    ] = None
    description: Annotated[
        DescriptionWanted | None, Meta(description="of the action `describe`")
    ] = None
    resources: Annotated[ResourcesWanted | None, Meta(description="of the action `set`")] = None
    retention: Annotated[RetentionWanted | None, Meta(description="of the action `retain`")] = None
    force: Annotated[
        bool,
        Meta(description="of `delete`: also what experiments that have ended started from"),
    ] = False
    dry_run: Annotated[
        bool, Meta(description="of `delete` and `retain`: only return what would be freed")
    ] = False
    now: Annotated[
        bool, Meta(description="of `delete`: at once, so that nothing brings them back")
    ] = False


class BatchItem(Struct, kw_only=True):
    """What came of the change of one experiment."""

    experiment_id: Annotated[str, Meta(description="as it was named, where it is not known")]
    name: str | None
    outcome: Annotated[
        Literal["done", "refused"],
        Meta(description="done: the change is on record, or would be"),
    ]
    checkpoint_count: Annotated[
        int | None, Meta(description="of `delete` and `retain`: checkpoints that go")
    ] = None
    checkpoint_bytes: int | None = None
    restorable_until: Annotated[
        Time | None, Meta(description="of `delete`: until when that can be taken back")
    ] = None
    kind: Annotated[str | None, Meta(description="of a refusal: the type of the problem")] = None
    reason: Annotated[str | None, Meta(description="of a refusal: why")] = None


class BatchAnswer(Listing[BatchItem], kw_only=True):
    """What came of a change of many experiments, of each by itself."""

    action: BatchAction
    dry_run: bool
    done: int
    refused: int
    items: list[BatchItem]

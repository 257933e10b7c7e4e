"""Answers about the installation as a whole."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from rung.api.listing import Listing
from rung.api.states import DeadLetterState, ReaderKind, Time
from rung.events.allocation import Slot


class SlotUse(Slot, frozen=True, kw_only=True):
    """A slot, and the allocation that holds it."""

    allocation_id: Annotated[
        str | None, Meta(description="null: none holds it, or one that is not shown to you")
    ]
    busy: Annotated[bool, Meta(description="whether an allocation holds it, shown or not")] = False


class Agent(Struct, kw_only=True):
    """One machine's agent."""

    id: str
    pool: str
    hostname: str
    incarnation: int
    state: Annotated[
        Literal["joined", "suspended", "draining", "left", "lost"],
        Meta(
            description="suspended: it takes no new runs for the moment, and its runs continue;"
            " draining: it takes no new runs, and its runs continue elsewhere"
        ),
    ]
    since: Time
    slots: list[SlotUse]
    reason: Annotated[str | None, Meta(description="why it is suspended or draining, or was")] = (
        None
    )
    isolation: Annotated[
        str,
        Meta(
            description="what keeps its trials from acting as the agent and as each other:"
            " `namespaces`, `user ids …`, or `none: …` with the reason; empty: not known"
        ),
    ] = ""


class AgentList(Listing[Agent], kw_only=True):
    """All agents."""

    items: list[Agent]


class QueueItem(Struct, kw_only=True):
    """A run that waits for slots."""

    allocation_id: str
    pool: str
    experiment_id: str
    trial_id: str
    run: int
    slots: int
    priority: int
    requested_at: Time
    withdrawn: bool
    reason: Annotated[str | None, Meta(description="why no present agent can ever place it")] = (
        None
    )


class Queue(Listing[QueueItem], kw_only=True):
    """A page of waiting runs, by pool, priority and age."""

    items: list[QueueItem]
    next_cursor: str | None


class DeadLetter(Struct, kw_only=True):
    """A message that a reader could not process; the reader went on with the next."""

    id: Annotated[str, Meta(description="READER/TOPIC/PARTITION/POSITION")] = ""
    at: Time
    topic: str
    partition: int
    position: int
    key: str
    reader: str
    reason: str
    value: str
    state: Annotated[
        DeadLetterState,
        Meta(
            description="retrying: a retry is requested and not answered yet; taken: its reader"
            " processed it after all, or skipped it"
        ),
    ] = "open"
    reader_kind: Annotated[
        ReaderKind | None,
        Meta(description="kind of the reader; null: it takes no requests about this message"),
    ] = None


class DeadLetterList(Listing[DeadLetter], kw_only=True):
    """A page of dead letters, the newest first."""

    items: list[DeadLetter]
    next_cursor: str | None
    count: Annotated[int, Meta(description="how many are open, of all that there are")]


class DeadLetterAsked(Struct, kw_only=True):
    """A request to retry or drop a message is on record; its effect follows."""

    id: str
    requested: Literal["retry", "drop"]


class PoolPolicy(Struct, kw_only=True, forbid_unknown_fields=True):
    """The scheduling policy that a pool is to have."""

    policy: Annotated[str, Meta(min_length=1, max_length=100, description="such as `priority`")]
    options: Annotated[dict[str, Any], Meta(description="the policy's own")] = {}


class PoolConfigured(Struct, kw_only=True):
    """A change of a pool's policy is on record; its effect follows."""

    pool: str
    policy: str
    options: dict[str, Any]
    warnings: list[str] = []


class PoolStatus(Struct, kw_only=True):
    """A resource pool in numbers."""

    name: str
    agents: int
    slots: int
    slots_used: int
    waiting: int
    draining: Annotated[int, Meta(description="agents that will leave soon")] = 0
    suspended: Annotated[int, Meta(description="agents that take no new runs for now")] = 0
    policy: Annotated[str, Meta(description="the scheduling policy")] = "priority"
    options: Annotated[dict[str, Any], Meta(description="the policy's own")] = {}


class DiskUse(Struct, kw_only=True):
    """The disk under a data folder."""

    folder: str
    free_bytes: Annotated[int, Meta(description="on its file system")]
    total_bytes: Annotated[int, Meta(description="of its file system")]
    used_bytes: Annotated[
        dict[str, int], Meta(description="part of the folder → what it takes on the disk")
    ]


class Status(Struct, kw_only=True):
    """This installation in numbers."""

    version: str
    ledger_id: str
    experiments: Annotated[dict[str, int], Meta(description="state → how many")]
    pools: list[PoolStatus]
    dead_letters: Annotated[int, Meta(description="how many are open")]
    problems: Annotated[
        list[str], Meta(description="problems for the operator, a sentence or two each")
    ] = []
    checkpoint_count: Annotated[int, Meta(description="those in the object store")] = 0
    checkpoint_bytes: Annotated[int, Meta(description="of those in the object store")] = 0
    disk: Annotated[
        DiskUse | None, Meta(description="null where the parts are on several machines")
    ] = None


class Health(Struct, kw_only=True):
    """Liveness or readiness."""

    status: Literal["ok", "failing"]

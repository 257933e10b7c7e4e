"""Answers of an audit."""

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from rung.api.seal import SealReport
from rung.api.states import Time

Decision = Annotated[
    dict[str, Any] | None, Meta(description="its `type` and `data`; null: there is none")
]


class Difference(Struct, kw_only=True):
    """A decision on record that is decided otherwise today."""

    process: Annotated[str, Meta(description="the decider")]
    key: Annotated[str, Meta(description="the experiment or the pool that was decided about")]
    position: Annotated[int, Meta(description="of the fact that was decided on")]
    index: Annotated[int, Meta(description="of the decision among those of its fact")]
    recorded: Decision
    decided: Decision


class Verdict(Struct, kw_only=True):
    """What an audit of one decider found."""

    process: str
    facts: int
    decisions: Annotated[int, Meta(description="how many were decided again")]
    pending: Annotated[int, Meta(description="decisions not on record yet")]
    differences: Annotated[int, Meta(description="how many of the list are this decider's")]
    unreadable: Annotated[list[str], Meta(description="what could not be folded, a line each")]


class Audit(Struct, kw_only=True):
    """Whether records are as sealed and as imported, and decisions as they are decided today."""

    same: bool
    decisions: int
    differences: list[Difference]
    verdicts: Annotated[list[Verdict], Meta(description="one per decider")]
    imports: Annotated[
        list[str], Meta(description="what contradicts the imports on record, a line each")
    ] = field(default_factory=list[str])
    deleted: Annotated[
        dict[str, Time], Meta(description="deleted experiments that it is about, and when")
    ] = field(default_factory=dict[str, Time])
    seals: Annotated[SealReport | None, Meta(description="the result of verifying the seals")] = (
        None
    )

"""Curves and printed lines: answers, and what the gateway asks of their store."""

from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from rung.api.listing import Listing
from rung.events.trial import MetricValue

CurvePoint = tuple[int, MetricValue, int]


class MetricName(Struct, kw_only=True):
    """A metric that an experiment reported."""

    kind: str
    name: str


class ExperimentCurves(Struct, kw_only=True):
    """One metric of all trials."""

    experiment_id: str
    kind: str
    name: str
    curves: Annotated[
        dict[str, list[CurvePoint]],
        Meta(description="trial id → points of step, value, Unix time in milliseconds"),
    ]
    names: list[MetricName]


class TrialCurve(Struct, kw_only=True):
    """One metric of one trial."""

    trial_id: str
    kind: str
    name: str
    points: list[CurvePoint]
    names: list[MetricName]


class LogLine(Struct, kw_only=True):
    """One line that a trial printed."""

    trial_id: str
    run: int
    rank: int
    stream: Annotated[
        str,
        Meta(
            description="stdout, stderr; platform: printed by Rung; dropped: the number of lines "
            "that are missing at this place"
        ),
    ]
    level: str
    time_ms: int
    text: str


class LogPage(Listing[LogLine], kw_only=True):
    """Printed lines by time."""

    items: list[LogLine]
    next_cursor: Annotated[str | None, Meta(description="give it as `after`")]


class LogsOf(Struct, kw_only=True):
    """How much of an experiment's logs is deleted."""

    experiment_id: str
    trials: int
    lines: int
    size_bytes: Annotated[int, Meta(description="of their text")]


class LogsCollected(Listing[LogsOf], kw_only=True):
    """The logs that were deleted, or would be."""

    before_ms: Annotated[int, Meta(description="lines printed before this Unix time")]
    dry_run: Annotated[bool, Meta(description="nothing was deleted")]
    items: list[LogsOf]
    lines: int
    size_bytes: int


class LogSelection(NamedTuple):
    """Which printed lines to return, by time."""

    experiment_id: str | None = None
    trial_id: str | None = None
    rank: int | None = None
    level: str | None = None
    """This severe or more."""
    text: str | None = None
    """A part of the line, in upper or lower case."""
    since_ms: int | None = None
    """From this Unix time on."""
    until_ms: int | None = None
    """Before this Unix time."""
    after: str | None = None
    """The cursor of the page before."""
    limit: int = 200
    """Lines at most; fewer come where they are long."""
    order: str = "oldest"
    """`oldest` first, or `newest` first."""


class TrialLines(NamedTuple):
    """How many lines a trial printed."""

    experiment_id: str
    trial_id: str
    lines: int
    size_bytes: int
    """Of their text."""
    last_ms: int
    """When the last of them was printed: Unix time in milliseconds."""

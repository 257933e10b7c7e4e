"""Answers about curves and printed lines."""

from typing import Annotated

from msgspec import Meta, Struct

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


class LogPage(Struct, kw_only=True):
    """Printed lines by time."""

    items: list[LogLine]
    next_cursor: Annotated[str | None, Meta(description="give it as `after`")]


class LogsOf(Struct, kw_only=True):
    """How much of an experiment's logs is deleted."""

    experiment_id: str
    trials: int
    lines: int
    size_bytes: Annotated[int, Meta(description="of their text")]


class LogsCollected(Struct, kw_only=True):
    """The logs that were deleted, or would be."""

    before_ms: Annotated[int, Meta(description="lines printed before this Unix time")]
    dry_run: Annotated[bool, Meta(description="nothing was deleted")]
    items: list[LogsOf]
    lines: int
    size_bytes: int

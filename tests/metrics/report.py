"""What agents write about trials, as records of the ledger."""

import math
from collections.abc import Sequence
from typing import Literal

from rung.events import Payload, fact
from rung.events.metric import LogLine, LogsPrinted, MetricRow, MetricsReported
from rung.events.trial import MetricValue
from rung.ledger import Draft, Record

EXPERIMENT = "abcdefgh"
TIME = "2026-01-01T00:00:00Z"

Level = Literal["debug", "info", "warning", "error", "critical"]


def wire(value: float) -> MetricValue:
    """Return a number as it is written on the wire."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def row(
    step: int, *, kind: str = "training", time_ms: int | None = None, **values: float
) -> MetricRow:
    """Return one report of a script."""
    return MetricRow(
        kind=kind,
        step=step,
        time_ms=1_000 + step if time_ms is None else time_ms,
        values={name: wire(value) for name, value in values.items()},
    )


def metrics(rows: Sequence[MetricRow], *, trial: int = 0, run: int = 1) -> MetricsReported:
    """Return a batch of reports."""
    return MetricsReported(
        experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.{trial}", run=run, rows=list(rows)
    )


def line(text: str, time_ms: int, *, rank: int = 0, level: Level = "info") -> LogLine:
    """Return one printed line."""
    return LogLine(rank=rank, stream="stdout", level=level, time_ms=time_ms, text=text)


def logs(lines: Sequence[LogLine], *, trial: int = 0, run: int = 1) -> LogsPrinted:
    """Return a batch of printed lines."""
    return LogsPrinted(
        experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.{trial}", run=run, lines=list(lines)
    )


def draft(data: Payload, sequence: int, *, origin: str = "agent/a/spool") -> Draft:
    """Return an event as an agent appends it."""
    event = fact(data, source="/rung/agent/a", origin=origin, sequence=sequence, time=TIME)
    return Draft.of(event)


def record(
    data: Payload, position: int, *, sequence: int | None = None, partition: int = 0
) -> Record:
    """Return an event as it lies in the ledger, its sequence being its position if not given."""
    item = draft(data, position if sequence is None else sequence)
    return Record(item.topic, partition, position, item.key, item.value)

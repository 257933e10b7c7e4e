"""The rows of both tables, gathered column by column."""

from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

from rung.events.metric import LogsPrinted, MetricRow, MetricsReported
from rung.events.trial import MetricValue
from rung.metrics.native import Column

_RUN_BITS: Final = 20
_SEQUENCE_BITS: Final = 64 - _RUN_BITS
_RUN_MAX: Final = (1 << _RUN_BITS) - 1
_SEQUENCE_MAX: Final = (1 << _SEQUENCE_BITS) - 1
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_UINT32_MAX: Final = (1 << 32) - 1


class Unfit(ValueError):
    """An event that the tables cannot hold."""


def version_of(run: int, sequence: int) -> int:
    """Return what of two reports of one step decides: the run, then the order of reporting.

    The origin's sequence rather than the position, so that a report which is delivered again
    behind a later one does not win over it.

    Raises:
        Unfit: one of them is out of range.
    """
    _fit("run", run, 0, _RUN_MAX)
    _fit("sequence", sequence, 0, _SEQUENCE_MAX)
    return run << _SEQUENCE_BITS | sequence


@dataclass
class MetricColumns:
    """Rows for the table `metrics`."""

    experiment: list[str] = field(default_factory=list[str])
    trial: list[str] = field(default_factory=list[str])
    kind: list[str] = field(default_factory=list[str])
    name: list[str] = field(default_factory=list[str])
    step: list[int] = field(default_factory=list[int])
    value: list[MetricValue] = field(default_factory=list[MetricValue])
    time: list[int] = field(default_factory=list[int])
    run: list[int] = field(default_factory=list[int])
    version: list[int] = field(default_factory=list[int])

    def take(self, data: MetricsReported, version: int) -> None:
        """Add the rows of an event, of one step the last ones alone; all of them or none.

        Raises:
            Unfit: one of them does not fit.
        """
        rows = data.rows
        for row in rows:
            if not (
                _INT64_MIN <= row.step <= _INT64_MAX and _INT64_MIN <= row.time_ms <= _INT64_MAX
            ):
                _fit("step", row.step, _INT64_MIN, _INT64_MAX)
                _fit("time_ms", row.time_ms, _INT64_MIN, _INT64_MAX)
        if len({(row.kind, row.step) for row in rows}) != len(rows):
            rows = _last(rows)
        before = len(self.name)
        for row in rows:
            values = row.values
            count = len(values)
            self.name += values
            self.value += values.values()
            self.kind += repeat(row.kind, count)
            self.step += repeat(row.step, count)
            self.time += repeat(row.time_ms, count)
        count = len(self.name) - before
        self.experiment += repeat(data.experiment_id, count)
        self.trial += repeat(data.trial_id, count)
        self.run += repeat(data.run, count)
        self.version += repeat(version, count)

    def block(self) -> list[Column]:
        """Return the columns as they are inserted; none if there are no rows."""
        if not self.name:
            return []
        return [
            Column("experiment_id", "String", self.experiment),
            Column("trial_id", "String", self.trial),
            Column("kind", "String", self.kind),
            Column("name", "String", self.name),
            Column("step", "Int64", self.step),
            Column("value", "Float64", [float(value) for value in self.value]),
            Column("time_ms", "Int64", self.time),
            Column("run", "UInt32", self.run),
            Column("version", "UInt64", self.version),
        ]


@dataclass
class LogColumns:
    """Rows for the table `logs`."""

    experiment: list[str] = field(default_factory=list[str])
    time: list[int] = field(default_factory=list[int])
    trial: list[str] = field(default_factory=list[str])
    sequence: list[int] = field(default_factory=list[int])
    line: list[int] = field(default_factory=list[int])
    origin: list[str] = field(default_factory=list[str])
    run: list[int] = field(default_factory=list[int])
    rank: list[int] = field(default_factory=list[int])
    stream: list[str] = field(default_factory=list[str])
    level: list[str] = field(default_factory=list[str])
    text: list[str] = field(default_factory=list[str])

    def take(self, data: LogsPrinted, origin: str, sequence: int) -> None:
        """Add the lines of an event, all of them or none.

        Raises:
            Unfit: one of them does not fit.
        """
        lines = data.lines
        for line in lines:
            _fit("rank", line.rank, 0, _UINT32_MAX)
            _fit("time_ms", line.time_ms, _INT64_MIN, _INT64_MAX)
        count = len(lines)
        self.experiment += repeat(data.experiment_id, count)
        self.time += [line.time_ms for line in lines]
        self.trial += repeat(data.trial_id, count)
        self.sequence += repeat(sequence, count)
        self.line += range(count)
        self.origin += repeat(origin, count)
        self.run += repeat(data.run, count)
        self.rank += [line.rank for line in lines]
        self.stream += [line.stream for line in lines]
        self.level += [line.level for line in lines]
        self.text += [line.text for line in lines]

    def block(self) -> list[Column]:
        """Return the columns as they are inserted; none if there are no rows."""
        if not self.text:
            return []
        return [
            Column("experiment_id", "String", self.experiment),
            Column("time_ms", "Int64", self.time),
            Column("trial_id", "String", self.trial),
            Column("sequence", "UInt64", self.sequence),
            Column("line", "UInt32", self.line),
            Column("origin", "String", self.origin),
            Column("run", "UInt32", self.run),
            Column("rank", "UInt32", self.rank),
            Column("stream", "String", self.stream),
            Column("level", "String", self.level),
            Column("text", "String", self.text),
        ]


def _last(rows: list[MetricRow]) -> list[MetricRow]:
    """Return rows of one value each: of several of a kind, name and step the last."""
    latest = {
        (row.kind, name, row.step): (value, row.time_ms)
        for row in rows
        for name, value in row.values.items()
    }
    return [
        MetricRow(kind=kind, step=step, time_ms=time_ms, values={name: value})
        for (kind, name, step), (value, time_ms) in latest.items()
    ]


def _fit(name: str, number: int, low: int, high: int) -> None:
    if not low <= number <= high:
        raise Unfit(f"{name} is {number}: it must be from {low} to {high}")

"""The rows of both tables, gathered column by column.

An event's reports are taken metric by metric rather than report by report: so a column grows by
whole lists, and the rows come nearly in the order in which the table keeps them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rung.events.metric import (
    LogsDeleted,
    LogsDropped,
    LogsPrinted,
    MetricRow,
    MetricsReported,
    deleted_text,
    missing_text,
)
from rung.events.trial import MetricValue
from rung.metrics.clickhouse.native import Column
from rung.metrics.retention import DAYS_MAX

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
    if not (0 <= run <= _RUN_MAX and 0 <= sequence <= _SEQUENCE_MAX):
        _fit("run", [run], 0, _RUN_MAX)
        _fit("sequence", [sequence], 0, _SEQUENCE_MAX)
    return run << _SEQUENCE_BITS | sequence


@dataclass
class MetricColumns:
    """Rows for the table `metrics`."""

    experiment: list[bytes] = field(default_factory=list[bytes])
    trial: list[bytes] = field(default_factory=list[bytes])
    kind: list[bytes] = field(default_factory=list[bytes])
    name: list[bytes] = field(default_factory=list[bytes])
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
        _fit("step", [row.step for row in rows], _INT64_MIN, _INT64_MAX)
        _fit("time_ms", [row.time_ms for row in rows], _INT64_MIN, _INT64_MAX)
        before = len(self.name)
        if len(rows) == 1:
            self._take_one(rows[0])
        elif not self._take_alike(rows):
            for group in _alike(rows):
                taken = self._take_alike(group)
                assert taken, group
        count = len(self.name) - before
        self.experiment += [data.experiment_id.encode()] * count
        self.trial += [data.trial_id.encode()] * count
        self.run += [data.run] * count
        self.version += [version] * count

    def _take_one(self, row: MetricRow) -> None:
        values = row.values
        count = len(values)
        self.kind += [row.kind.encode()] * count
        self.name += [name.encode() for name in values]
        self.value += values.values()
        self.step += [row.step] * count
        self.time += [row.time_ms] * count

    def _take_alike(self, rows: Sequence[MetricRow]) -> bool:
        """Add rows of one kind, of the same metrics and of a step each; or none if they are not.

        Nearly all events are so, and this is where the time goes.
        """
        if not rows:
            return True
        kind, names = rows[0].kind, list(rows[0].values)
        count = len(rows)
        steps = [row.step for row in rows]
        values = [row.values for row in rows]
        if (
            len(set(steps)) != count
            or [row.kind for row in rows].count(kind) != count
            or sum(map(len, values)) != count * len(names)
        ):
            return False
        try:
            columns = [[given[name] for given in values] for name in names]
        except KeyError:
            return False
        times = [row.time_ms for row in rows]
        self.kind += [kind.encode()] * (count * len(names))
        for name, column in zip(names, columns, strict=True):
            self.name += [name.encode()] * count
            self.value += column
            self.step += steps
            self.time += times
        return True

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

    experiment: list[bytes] = field(default_factory=list[bytes])
    time: list[int] = field(default_factory=list[int])
    trial: list[bytes] = field(default_factory=list[bytes])
    sequence: list[int] = field(default_factory=list[int])
    line: list[int] = field(default_factory=list[int])
    origin: list[bytes] = field(default_factory=list[bytes])
    run: list[int] = field(default_factory=list[int])
    rank: list[int] = field(default_factory=list[int])
    stream: list[str] = field(default_factory=list[str])
    level: list[str] = field(default_factory=list[str])
    text: list[bytes] = field(default_factory=list[bytes])
    keep_days: list[int] = field(default_factory=list[int])

    def take(self, data: LogsPrinted, origin: str, sequence: int) -> None:
        """Add the lines of an event, all of them or none.

        Raises:
            Unfit: one of them does not fit.
        """
        lines = data.lines
        ranks = [line.rank for line in lines]
        times = [line.time_ms for line in lines]
        _fit("rank", ranks, 0, _UINT32_MAX)
        _fit("time_ms", times, _INT64_MIN, _INT64_MAX)
        count = len(lines)
        self.experiment += [data.experiment_id.encode()] * count
        self.time += times
        self.trial += [data.trial_id.encode()] * count
        self.sequence += [sequence] * count
        self.line += range(count)
        self.origin += [origin.encode()] * count
        self.run += [data.run] * count
        self.rank += ranks
        self.stream += [line.stream for line in lines]
        self.level += [line.level for line in lines]
        self.text += [line.text.encode() for line in lines]
        self.keep_days += [min(data.keep_days, DAYS_MAX)] * count

    def mark(self, data: LogsDropped | LogsDeleted, origin: str, sequence: int) -> None:
        """Add the line that says what is missing.

        Raises:
            Unfit: it does not fit.
        """
        match data:
            case LogsDropped():
                time_ms, run, rank = data.time_ms, data.run, data.rank
                text, keep_days = missing_text(data), data.keep_days
            case LogsDeleted():  # the first line that was not deleted
                time_ms, run, rank = data.before_ms, 0, 0
                text, keep_days = deleted_text(data), 0
        _fit("rank", [rank], 0, _UINT32_MAX)
        _fit("time_ms", [time_ms], _INT64_MIN, _INT64_MAX)
        self.experiment.append(data.experiment_id.encode())
        self.time.append(time_ms)
        self.trial.append(data.trial_id.encode())
        self.sequence.append(sequence)
        self.line.append(0)
        self.origin.append(origin.encode())
        self.run.append(run)
        self.rank.append(rank)
        self.stream.append("dropped")
        self.level.append("warning")
        self.text.append(text.encode())
        self.keep_days.append(min(keep_days, DAYS_MAX))

    def block(self) -> list[Column]:
        """Return the columns as they are inserted; none if there are no rows."""
        if not self.text:
            return []
        # A server that is too old for it has no such column, and no experiment's own days.
        kept = [Column("keep_days", "UInt16", self.keep_days)] if any(self.keep_days) else []
        return [
            Column("experiment_id", "String", self.experiment),
            Column("time_ms", "Int64", self.time),
            Column("trial_id", "String", self.trial),
            Column("sequence", "UInt64", self.sequence),
            Column("line", "UInt32", self.line),
            Column("origin", "String", self.origin),
            Column("run", "UInt32", self.run),
            Column("rank", "UInt32", self.rank),
            Column("stream", "Name", self.stream),
            Column("level", "Name", self.level),
            Column("text", "String", self.text),
            *kept,
        ]


def _alike(rows: Sequence[MetricRow]) -> Iterable[list[MetricRow]]:
    """Return rows sorted out to ones that are alike, of each step and metric the last value."""
    latest = {
        (row.kind, name, row.step): (value, row.time_ms)
        for row in rows
        for name, value in row.values.items()
    }
    found: dict[tuple[str, str], list[MetricRow]] = {}
    for (kind, name, step), (value, time_ms) in latest.items():
        row = MetricRow(kind=kind, step=step, time_ms=time_ms, values={name: value})
        found.setdefault((kind, name), []).append(row)
    return found.values()


def _fit(name: str, numbers: Sequence[int], low: int, high: int) -> None:
    if len(numbers) == 1 and low <= numbers[0] <= high:
        return
    if numbers and not (low <= min(numbers) and max(numbers) <= high):
        number = next(number for number in numbers if not low <= number <= high)
        raise Unfit(f"{name} is {number}: it must be from {low} to {high}")

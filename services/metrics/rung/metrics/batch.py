"""Records of the ledger as the columns of a block, as pure data.

An event's reports are taken metric by metric rather than report by report: so a column grows by
whole lists, and the rows come nearly in the order in which the table keeps them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple, Self

from rung.events import UndecodableEvent, decode
from rung.events.metric import (
    LogLine,
    LogsDeleted,
    LogsDropped,
    LogsPrinted,
    MetricRow,
    MetricsDeleted,
    MetricsReported,
    deleted_text,
    missing_text,
)
from rung.events.trial import MetricValue
from rung.ledger import Record
from rung.metrics.clickhouse.native import Column
from rung.metrics.retention import DAYS_MAX
from rung.runtime import Rejected

_RUN_BITS: Final = 20
_SEQUENCE_BITS: Final = 64 - _RUN_BITS
_RUN_MAX: Final = (1 << _RUN_BITS) - 1
_SEQUENCE_MAX: Final = (1 << _SEQUENCE_BITS) - 1
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_UINT32_MAX: Final = (1 << 32) - 1


class Unfit(ValueError):
    """The tables cannot hold an event."""


def version_of(run: int, sequence: int) -> int:
    """Return the version of a report; of two reports of one step the higher one stays.

    It is the run, then the origin's sequence: by the position, a report that is delivered again
    behind a later one would win over it.

    Raises:
        Unfit: one of them is out of range.
    """
    if not (0 <= run <= _RUN_MAX and 0 <= sequence <= _SEQUENCE_MAX):
        _fit("run", [run], 0, _RUN_MAX)
        _fit("sequence", [sequence], 0, _SEQUENCE_MAX)
    return run << _SEQUENCE_BITS | sequence


@dataclass
class _Columns:
    """Rows of one table."""

    trial: list[bytes] = field(default_factory=list[bytes])

    def at(self, rows: Sequence[int]) -> Self:
        """Return some of the rows."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        return type(self)(**{name: [of[row] for row in rows] for name, of in columns.items()})

    def rows_of_trials(self) -> dict[bytes, list[int]]:
        """Return which rows each trial has."""
        found: dict[bytes, list[int]] = {}
        for row, trial_id in enumerate(self.trial):
            found.setdefault(trial_id, []).append(row)
        return found


@dataclass
class MetricColumns(_Columns):
    """Rows for the table `metrics`."""

    experiment: list[bytes] = field(default_factory=list[bytes])
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


class _Mark(NamedTuple):
    """The line in a log that says what is missing."""

    rank: int
    time_ms: int
    text: str
    stream: str = "dropped"
    level: str = "warning"


@dataclass
class LogColumns(_Columns):
    """Rows for the table `logs`."""

    experiment: list[bytes] = field(default_factory=list[bytes])
    time: list[int] = field(default_factory=list[int])
    sequence: list[int] = field(default_factory=list[int])
    line: list[int] = field(default_factory=list[int])
    origin: list[bytes] = field(default_factory=list[bytes])
    run: list[int] = field(default_factory=list[int])
    rank: list[int] = field(default_factory=list[int])
    stream: list[str] = field(default_factory=list[str])
    level: list[str] = field(default_factory=list[str])
    text: list[bytes] = field(default_factory=list[bytes])
    keep_days: list[int] = field(default_factory=list[int])

    def take(
        self, data: LogsPrinted | LogsDropped | LogsDeleted, origin: str, sequence: int
    ) -> None:
        """Add the lines of an event, or the line that marks missing ones; all of them or none.

        Raises:
            Unfit: one of them does not fit.
        """
        lines: Sequence[LogLine | _Mark]
        match data:
            case LogsPrinted():
                run, lines, keep_days = data.run, data.lines, data.keep_days
            case LogsDropped():
                mark = _Mark(data.rank, data.time_ms, missing_text(data))
                run, lines, keep_days = data.run, [mark], data.keep_days
            case LogsDeleted():  # the first line that was not deleted
                mark = _Mark(0, data.before_ms, deleted_text(data))
                run, lines, keep_days = 0, [mark], 0
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
        self.run += [run] * count
        self.rank += ranks
        self.stream += [line.stream for line in lines]
        self.level += [line.level for line in lines]
        self.text += [line.text.encode() for line in lines]
        self.keep_days += [min(keep_days, DAYS_MAX)] * count

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


@dataclass
class Batch:
    """Rows for the tables, positions, and rejected records, of some records of the ledger."""

    positions: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """Per topic and partition, the position behind the last record taken."""
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    metrics: MetricColumns = field(default_factory=MetricColumns)
    logs: LogColumns = field(default_factory=LogColumns)
    deleted: list[LogsDeleted] = field(default_factory=list[LogsDeleted])
    """Deletions of printed lines, also of ones in this batch."""
    without_metrics: list[MetricsDeleted] = field(default_factory=list[MetricsDeleted])
    """Deletions of the metrics of trials, also of ones in this batch."""
    size: int = 0
    """Bytes of the records."""

    @property
    def rows(self) -> dict[str, int]:
        """How many rows there are for each table."""
        return {"metrics": len(self.metrics.name), "logs": len(self.logs.text)}

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(self.rows.values())

    def trials(self) -> Iterator[tuple[str, "Batch"]]:
        """Yield the rows of each trial, without positions and deletions."""
        for trial_id, rows in self.metrics.rows_of_trials().items():
            yield trial_id.decode(), Batch(metrics=self.metrics.at(rows))
        for trial_id, rows in self.logs.rows_of_trials().items():
            yield trial_id.decode(), Batch(logs=self.logs.at(rows))

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Batch":
        """Return the batch of some records, those of one partition in their order.

        A record that cannot be read or stored is rejected. So is one that makes the code raise;
        then the batch is begun again, because rows may have been added in part.
        """
        bad: dict[int, str] = {}
        while True:
            batch = cls()
            for number, record in enumerate(records):
                try:
                    batch.take(record, bad.get(number))
                except Exception as error:  # noqa: BLE001 - whatever it raises concerns this record alone
                    bad[number] = f"{type(error).__name__}: {error}"
                    break
            else:
                return batch

    def take(self, record: Record, bad: str | None = None) -> None:
        """Add a record to the rows, or to what is rejected."""
        self.positions[record.topic, record.partition] = record.position + 1
        self.size += len(record.value)
        if bad is not None:
            self.rejected.append(Rejected(record, bad))
            return
        try:
            event = decode(record.value)
            sequence = record.position if event.sequence is None else event.sequence
            match event.data:
                case MetricsReported() as data:
                    self.metrics.take(data, version_of(data.run, sequence))
                case LogsPrinted() | LogsDropped() as data:
                    version_of(data.run, sequence)
                    self.logs.take(data, event.origin or "", sequence)
                case LogsDeleted() as data:
                    self.deleted.append(data)
                    if data.lines:
                        self.logs.take(data, event.origin or "", sequence)
                case MetricsDeleted() as data:
                    self.without_metrics.append(data)
                case _:
                    pass
        except (UndecodableEvent, Unfit) as error:
            self.rejected.append(Rejected(record, str(error)))


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

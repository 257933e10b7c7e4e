"""From records of the ledger to the columns of a block, as pure data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rung.events import Event, UndecodableEvent, decode
from rung.events.metric import LogsPrinted, MetricsReported
from rung.host import Rejected
from rung.ledger import Record
from rung.metrics.native import Column

_SEQUENCE_BITS: Final = 44
_RUN_MAX: Final = 1 << 64 - _SEQUENCE_BITS
_INT64: Final = range(-(1 << 63), 1 << 63)
_UINT32: Final = range(1 << 32)


class _Unfit(ValueError):
    """An event that the tables cannot hold."""


@dataclass
class Batch:
    """What a number of records come to: rows for the tables, positions, and records refused."""

    positions: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """Per topic and partition, the position behind the last record taken."""
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    _metrics: list[tuple[str, str, str, str, int, float, int, int, int]] = field(
        default_factory=list[tuple[str, str, str, str, int, float, int, int, int]]
    )
    _logs: list[tuple[str, int, str, int, int, str, int, int, str, str, str]] = field(
        default_factory=list[tuple[str, int, str, int, int, str, int, int, str, str, str]]
    )

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Batch":
        """Return the batch of some records, those of one partition in their order."""
        batch = cls()
        for record in records:
            batch.take(record)
        return batch

    def take(self, record: Record) -> None:
        """Add a record; one that cannot be read or held is noted as rejected."""
        try:
            event = decode(record.value)
            match event.data:
                case MetricsReported() as reported:
                    self._take_metrics(event, reported, record.position)
                case LogsPrinted() as printed:
                    self._take_logs(event, printed, record.position)
                case _:
                    pass
        except (UndecodableEvent, _Unfit) as error:
            self.rejected.append(Rejected(record, str(error)))
        self.positions[record.topic, record.partition] = record.position + 1

    def metrics(self) -> list[Column] | None:
        """Return the columns for the table `metrics`, None if there are no rows."""
        if not self._metrics:
            return None
        experiment, trial, kind, name, step, value, time, run, version = zip(
            *self._metrics, strict=True
        )
        return [
            Column("experiment_id", "String", experiment),
            Column("trial_id", "String", trial),
            Column("kind", "String", kind),
            Column("name", "String", name),
            Column("step", "Int64", step),
            Column("value", "Float64", value),
            Column("time_ms", "Int64", time),
            Column("run", "UInt32", run),
            Column("version", "UInt64", version),
        ]

    def logs(self) -> list[Column] | None:
        """Return the columns for the table `logs`, None if there are no rows."""
        if not self._logs:
            return None
        experiment, time, trial, sequence, line, origin, run, rank, stream, level, text = zip(
            *self._logs, strict=True
        )
        return [
            Column("experiment_id", "String", experiment),
            Column("time_ms", "Int64", time),
            Column("trial_id", "String", trial),
            Column("sequence", "UInt64", sequence),
            Column("line", "UInt32", line),
            Column("origin", "String", origin),
            Column("run", "UInt32", run),
            Column("rank", "UInt32", rank),
            Column("stream", "String", stream),
            Column("level", "String", level),
            Column("text", "String", text),
        ]

    def _take_metrics(self, event: Event, data: MetricsReported, position: int) -> None:
        version = _version(event, data.run, position)
        latest: dict[tuple[str, str, int], tuple[float, int]] = {}
        for row in data.rows:
            _fit("step", row.step, _INT64)
            _fit("time_ms", row.time_ms, _INT64)
            for name, value in row.values.items():
                latest[row.kind, name, row.step] = (float(value), row.time_ms)
        experiment, trial, run = data.experiment_id, data.trial_id, data.run
        self._metrics += [
            (experiment, trial, kind, name, step, value, time, run, version)
            for (kind, name, step), (value, time) in latest.items()
        ]

    def _take_logs(self, event: Event, data: LogsPrinted, position: int) -> None:
        _version(event, data.run, position)
        sequence = position if event.sequence is None else event.sequence
        origin = event.origin or ""
        for line in data.lines:
            _fit("rank", line.rank, _UINT32)
            _fit("time_ms", line.time_ms, _INT64)
        self._logs += [
            (
                data.experiment_id,
                line.time_ms,
                data.trial_id,
                sequence,
                index,
                origin,
                data.run,
                line.rank,
                line.stream,
                line.level,
                line.text,
            )
            for index, line in enumerate(data.lines)
        ]


def _version(event: Event, run: int, position: int) -> int:
    """Return what of two reports of one step decides: the run, then the order of reporting.

    The origin's sequence rather than the position, so that a report which is delivered again
    behind a later one does not win over it.
    """
    sequence = position if event.sequence is None else event.sequence
    _fit("run", run, range(_RUN_MAX))
    _fit("sequence", sequence, range(1 << _SEQUENCE_BITS))
    return run << _SEQUENCE_BITS | sequence


def _fit(name: str, number: int, allowed: range) -> None:
    if number not in allowed:
        raise _Unfit(f"{name} is {number}: it must be from {allowed[0]} to {allowed[-1]}")

"""From records of the ledger to the columns of a block, as pure data."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rung.events import UndecodableEvent, decode
from rung.events.metric import LogsDeleted, LogsDropped, LogsPrinted, MetricsReported
from rung.ledger import Record
from rung.metrics.columns import LogColumns, MetricColumns, Unfit, version_of
from rung.runtime import Rejected


@dataclass
class Batch:
    """What a number of records come to: rows for the tables, positions, and records refused."""

    positions: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """Per topic and partition, the position behind the last record taken."""
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    metrics: MetricColumns = field(default_factory=MetricColumns)
    logs: LogColumns = field(default_factory=LogColumns)
    deleted: list[LogsDeleted] = field(default_factory=list[LogsDeleted])
    """What users had deleted: of lines in this batch as well."""
    size: int = 0
    """Bytes of the records."""

    @property
    def rows(self) -> dict[str, int]:
        """How many rows there are for each table."""
        return {"metrics": len(self.metrics.name), "logs": len(self.logs.text)}

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Batch":
        """Return the batch of some records, those of one partition in their order.

        A record that cannot be read or held is noted as rejected. So is one that makes the code
        raise; then the batch is begun again, because rows may have been added in part.
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
        """Add a record, or say why it cannot be."""
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
                case LogsPrinted() as data:
                    version_of(data.run, sequence)
                    self.logs.take(data, event.origin or "", sequence)
                case LogsDropped() as data:
                    version_of(data.run, sequence)
                    self.logs.mark(data, event.origin or "", sequence)
                case LogsDeleted() as data:
                    self.deleted.append(data)
                    self.logs.mark(data, event.origin or "", sequence)
                case _:
                    pass
        except (UndecodableEvent, Unfit) as error:
            self.rejected.append(Rejected(record, str(error)))

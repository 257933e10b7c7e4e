"""Whether what a ledger holds is sealed, and whether an import into it was completed.

Seals are taken as they are; `rung verify` verifies them.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from rung.events import LedgerDamaged, UndecodableEvent, decode, topic
from rung.events.seal import PartitionSealed
from rung.ledger import Ledger, Record
from rung.ledger.export.import_record import imports_of, unfinished
from rung.ledger.seals import SEALED, read_heads

UNSEALED: Final = timedelta(minutes=1)
"""Records that are older and not sealed were forgotten, or the sealer is far behind."""
_READ: Final = 1_000


class SealStatus(Struct, kw_only=True):
    """How much of a ledger is sealed."""

    records: int
    """Those that are to be sealed: all but heartbeats and the seals themselves."""
    unsealed: int
    since: str | None = None
    """When the oldest of these was written."""

    def problem(self, now: datetime) -> str | None:
        """Return what is wrong, and what to do, if anything is."""
        if not self.unsealed or self._is_recent(now):
            return None
        oldest = f"the oldest of {self.since}"
        if self.unsealed == self.records:
            return (
                f"seals: the ledger is not sealed ({_records(self.records)}, {oldest}): give all"
                " replicas of checkpoint-gc the same secret in RUNG_SEAL_KEY"
            )
        return (
            f"seals: {self.unsealed:,} of {_records(self.records)} are not sealed, {oldest}:"
            " checkpoint-gc seals them if it runs and has RUNG_SEAL_KEY; its log says what keeps"
            " it from that"
        )

    def _is_recent(self, now: datetime) -> bool:
        try:
            return now - datetime.fromisoformat(self.since or "") < UNSEALED
        except (TypeError, ValueError):  # no time, or one of no zone
            return False


class UnfinishedImport(Struct, kw_only=True):
    """An import into the ledger that began and did not end."""

    exported_from: str
    records: int
    begun: str
    problem: str
    """What is to be done."""


async def look_at_seals(ledger: Ledger, *, from_heads: bool) -> SealStatus:
    """Return how much of a ledger is sealed.

    Args:
        ledger: which.
        from_heads: whether its signed heads can be read; without, all seals are.

    Raises:
        LedgerError: the ledger does not answer, or seals were cut off.
    """
    sealed = await _sealed(ledger, from_heads=from_heads)
    found = SealStatus(records=0, unsealed=0)
    oldest: list[str] = []
    for name in SEALED:
        for partition in range(ledger.partitions(name)):
            start, end = await ledger.start(name, partition), await ledger.end(name, partition)
            found.records += end - start
            position = max(start, sealed.get(f"{name}/{partition}", 0))
            if position < end:
                found.unsealed += end - position
                oldest += map(_time, await ledger.read(name, partition, position, 1))
    found.since = min(oldest, default=None)
    return found


async def look_at_imports(ledger: Ledger) -> list[UnfinishedImport]:
    """Return the imports into a ledger that are not complete.

    Raises:
        LedgerError: the ledger does not answer.
    """
    return [
        UnfinishedImport(
            exported_from=item.started.exported_from,
            records=item.started.records,
            begun=item.time,
            problem=unfinished(item),
        )
        for item in await imports_of(ledger, into=ledger.id)
        if item.completed is None
    ]


async def _sealed(ledger: Ledger, *, from_heads: bool) -> dict[str, int]:
    """Return up to which position each partition is sealed."""
    found: dict[str, int] = {}
    for partition in range(ledger.partitions(topic.SEALS)):
        position = await ledger.start(topic.SEALS, partition)
        heads = await read_heads(ledger, partition) if from_heads else None
        if heads is not None and heads.ledger == ledger.id:
            found |= {place: head.last + 1 for place, head in heads.heads.items()}
            position = max(position, heads.position)
            end = await ledger.end(topic.SEALS, partition)
            if position > end:
                raise LedgerDamaged(
                    f"{topic.SEALS}/{partition} ends at {end}, and its signed heads are at"
                    f" {position}: seals were cut off, or the ledger was put back"
                )
        while records := await ledger.read(topic.SEALS, partition, position, _READ):
            for record in records:
                seal = _seal(record)
                if seal is not None and seal.ledger == ledger.id:
                    found[seal.place] = max(seal.last + 1, found.get(seal.place, 0))
            position = records[-1].position + 1
    return found


def _seal(record: Record) -> PartitionSealed | None:
    try:
        data = decode(record.value).data
    except UndecodableEvent:
        return None
    return data if isinstance(data, PartitionSealed) else None


def _time(record: Record) -> str:
    try:
        return decode(record.value).time
    except UndecodableEvent:
        return datetime.fromtimestamp(0, UTC).isoformat()


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"

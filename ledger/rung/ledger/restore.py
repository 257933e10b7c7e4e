"""Reads an export back into a ledger, all of it or nothing."""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from rung.events import TOPICS, partition_of, topic
from rung.events.errors import LedgerError
from rung.ledger.line import (
    FACTS_OF,
    VERSION_UNSEALED,
    Header,
    Parsed,
    is_end,
    parse_header,
    parse_line,
)
from rung.ledger.port import Draft, Ledger

_BATCH_RECORDS: Final = 10_000
_BATCH_BYTES: Final = 16 << 20
_NEW_KEYS: Final = (topic.EXPERIMENTS, topic.POOLS)
"""Topics whose keys must not be in the ledger yet."""

_SPOOL: Final = """
CREATE TABLE lines (
    number INTEGER PRIMARY KEY, topic TEXT, partition INTEGER, position INTEGER, key TEXT,
    id TEXT, value BLOB, decision INTEGER, fact INTEGER
);
CREATE UNIQUE INDEX places ON lines (topic, partition, position);
CREATE TABLE placed (number INTEGER PRIMARY KEY, position INTEGER);
"""


class Imported(NamedTuple):
    """What an import added."""

    records: int
    experiments: list[str]


async def import_(
    ledger: Ledger,
    lines: Iterable[bytes | str],
    *,
    consumers: Sequence[tuple[str, str]] = (),
) -> Imported:
    """Append an export to a ledger that nothing else uses meanwhile.

    Everything is checked before anything is written; until then the lines lie in a temporary
    file, so that memory does not grow with them. Decisions are pointed at their facts' new
    positions. Blocks the event loop while it reads the lines.

    Args:
        ledger: where to append.
        lines: of the export, with or without their line ends.
        consumers: forwarders, as pairs of name and topic, that must not act on what is imported:
            their committed positions are moved behind it.

    Raises:
        LedgerError: the export is damaged, cut short, or of another version; a decision's fact
            is missing; an experiment or a pool is in the ledger already; a consumer has not read
            all that the ledger holds. Nothing was written. Or: somebody else wrote meanwhile, or
            the ledger wrote something twice, as one on Kafka may where an acknowledgement is
            lost. Part of it was written.
        LedgerUnavailable: the disk became full on the way, or the ledger went away.
    """
    with contextlib.closing(_Spool()) as spool:
        spool.fill(lines)
        await _check_new(ledger, spool)
        await _check_read(ledger, consumers)
        ends = {
            (name, partition): await ledger.end(name, partition)
            for name in TOPICS
            for partition in range(ledger.partitions(name))
        }
        for decisions in (False, True):
            for batch in spool.batches(decisions=decisions):
                drafts = [Draft(name, key, value) for _, name, key, value in batch]
                positions = await ledger.append(drafts)
                _check_dense(ledger, drafts, positions, ends)
                if not decisions:
                    spool.place(batch, positions)
        for consumer, name in consumers:
            for partition in range(ledger.partitions(name)):
                end = await ledger.end(name, partition)
                await ledger.commit(consumer, name, partition, end)
        return Imported(spool.records, spool.keys(topic.EXPERIMENTS))


_Row = tuple[int, str, str, bytes]
"""Line number, topic, key, value."""


class _Spool:
    """The lines of an export in a temporary database on the disk, checked."""

    def __init__(self) -> None:
        self.records = 0
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.executescript(_SPOOL)
        self._last: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        self._database.close()

    def fill(self, lines: Iterable[bytes | str]) -> None:
        """Take all lines, in one transaction."""
        numbered = enumerate(lines, 1)
        _, first = next(numbered, (1, b""))
        header = parse_header(first)
        self._database.execute("BEGIN")
        ended = header.version == VERSION_UNSEALED
        for number, line in numbered:
            if is_end(line):  # `rung.ledger.seals.exported` verifies it, and the seals
                ended = True
                break
            parsed = parse_line(line, number)
            if parsed.topic != topic.SEALS:  # of other positions: the new ledger makes its own
                self._take(number, parsed)
        self._database.execute("COMMIT")
        self._check_count(header)
        if not ended:
            raise LedgerError("the export is not complete: its last line is missing")

    def keys(self, name: str) -> list[str]:
        """Return the keys that a topic has here, sorted."""
        query = "SELECT DISTINCT key FROM lines WHERE topic = ? ORDER BY key"
        return [key for (key,) in self._database.execute(query, (name,))]

    def batches(self, *, decisions: bool) -> Iterator[list[_Row]]:
        """Yield facts and streams, or the decisions on them, in their order."""
        query = (
            "SELECT number, topic, key, value, (SELECT position FROM placed "
            "WHERE placed.number = lines.fact) FROM lines WHERE decision = ? ORDER BY number"
        )
        batch: list[_Row] = []
        size = 0
        for number, name, key, value, position in self._database.execute(query, (decisions,)):
            pointed = value if position is None else _point(value, position)
            batch.append((number, name, key, pointed))
            size += len(pointed)
            if len(batch) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def place(self, batch: list[_Row], positions: list[int]) -> None:
        """Note where a batch was appended."""
        numbers = [row[0] for row in batch]
        self._database.execute("BEGIN")
        self._database.executemany(
            "INSERT INTO placed VALUES (?, ?)", zip(numbers, positions, strict=True)
        )
        self._database.execute("COMMIT")

    def _take(self, number: int, line: Parsed) -> None:
        place = (line.topic, line.partition)
        last = self._last.get(place, -1)
        if line.position <= last:
            raise LedgerError(
                f"line {number} is out of order: position {line.position} of "
                f"{line.topic}/{line.partition} comes after {last}"
            )
        self._last[place] = line.position
        fact = self._fact(number, line)
        event_id = line.event.id if line.event else None
        decision = line.topic in FACTS_OF
        self._database.execute(
            "INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (number, *place, line.position, line.key, event_id, line.value, decision, fact),
        )
        self.records += 1

    def _fact(self, number: int, line: Parsed) -> int | None:
        """Return the line of a decision's fact."""
        if line.topic not in FACTS_OF or line.event is None:
            return None
        cause, position = line.event.cause, line.event.causeposition
        query = "SELECT number, id FROM lines WHERE topic = ? AND partition = ? AND position = ?"
        found: tuple[int, str | None] | None = self._database.execute(
            query, (FACTS_OF[line.topic], line.partition, position)
        ).fetchone()
        if found is None or found[1] not in {None, cause}:
            raise LedgerError(
                f"line {number}: the fact of this decision is missing; {cause} should be at "
                f"position {position} of {FACTS_OF[line.topic]}/{line.partition}, further up"
            )
        return found[0]

    def _check_count(self, header: Header) -> None:
        if self.records != header.records:
            raise LedgerError(
                f"the export is not complete: it should hold {header.records} records and holds "
                f"{self.records}"
            )


async def _check_new(ledger: Ledger, spool: _Spool) -> None:
    for name in _NEW_KEYS:
        keys = spool.keys(name)
        count = ledger.partitions(name)
        for partition in range(count):
            new = {key for key in keys if partition_of(key, count) == partition}
            position = await ledger.start(name, partition)
            while new and (records := await ledger.read(name, partition, position, 1000)):
                for record in records:
                    if record.key in new:
                        raise LedgerError(_already(name, record.key))
                position = records[-1].position + 1


def _already(name: str, key: str) -> str:
    if name == topic.POOLS:
        return (
            f"the resource pool {key!r} has a history in this ledger already; import the whole "
            "export into an empty ledger, or export single experiments"
        )
    return f"the experiment {key} is in this ledger already; nothing was imported"


async def _check_read(ledger: Ledger, consumers: Sequence[tuple[str, str]]) -> None:
    for consumer, name in consumers:
        for partition in range(ledger.partitions(name)):
            position = await ledger.position(consumer, name, partition)
            if position < await ledger.end(name, partition):
                raise LedgerError(
                    f"{consumer} has not read all of {name} yet; start Rung, wait until it comes "
                    "to rest, stop it, and import then"
                )


def _check_dense(
    ledger: Ledger,
    drafts: Sequence[Draft],
    positions: Sequence[int],
    ends: dict[tuple[str, int], int],
) -> None:
    """Refuse anything between what is imported: decisions name the positions of their facts."""
    for (name, key, _), position in zip(drafts, positions, strict=True):
        place = (name, partition_of(key, ledger.partitions(name)))
        if position != ends[place]:
            raise LedgerError(
                f"{name}/{place[1]} was at {ends[place]} and is at {position} now: somebody else "
                "writes to this ledger, or it wrote something twice. What was imported cannot be "
                "used; begin again with an empty ledger, and with nothing else running"
            )
        ends[place] += 1


def _point(value: bytes, position: int) -> bytes:
    """Return a decision that points at its fact's new position, otherwise unchanged."""
    event = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    event["causeposition"] = msgspec.Raw(str(position).encode())
    return msgspec.json.encode(event)

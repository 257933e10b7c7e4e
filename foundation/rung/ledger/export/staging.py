"""Staging of an import: the lines of an export in a temporary database, checked there.

Of its dead letters those alone are appended that drop a fact of the export. The others are about
its former home: what cannot be read in its new one becomes a dead letter there.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from rung.events import partition_of, topic
from rung.events.deadletter import FactRejected
from rung.events.errors import LedgerError
from rung.events.ledger_import import ImportCompleted, ImportedKey, ImportStarted
from rung.events.topic import FACTS_OF
from rung.ledger.export.format import (
    POINTING,
    VERSION_UNSEALED,
    Header,
    Parsed,
    drop_in,
    is_end,
    is_request,
    parse_header,
    parse_line,
)
from rung.ledger.export.import_record import KeyDigests

_BATCH_RECORDS: Final = 10_000
_BATCH_BYTES: Final = 16 << 20

_TABLES: Final = """
CREATE TABLE lines (
    number INTEGER PRIMARY KEY, topic TEXT, partition INTEGER, position INTEGER, key TEXT,
    id TEXT, value BLOB, pointing INTEGER, fact INTEGER, rejected INTEGER, target INTEGER
);
CREATE UNIQUE INDEX places ON lines (topic, partition, position);
CREATE TABLE placed (number INTEGER PRIMARY KEY, position INTEGER);
"""
_ROWS: Final = (
    "SELECT number, topic, key, value, target,"
    " (SELECT position FROM placed WHERE placed.number = lines.fact),"
    " (SELECT position FROM placed WHERE placed.number = lines.rejected) FROM lines"
)
_INDEX: Final = "CREATE INDEX IF NOT EXISTS targets ON lines (topic, target, number)"

Place = tuple[str, int]
"""Topic and partition."""


class Row(NamedTuple):
    """A line to append; what refers to a fact does so by the fact's new position."""

    number: int
    topic: str
    key: str
    value: bytes
    target: int
    """Its partition in the destination."""


class Staging:
    """The lines of an export."""

    def __init__(self, partitions: int) -> None:
        """Create the database; the destination has so many partitions of each topic."""
        self.records = 0
        self.header = Header(version=0, ledger="", rung="", experiment=None, records=0)
        self._partitions = partitions
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.executescript(_TABLES)
        self._last: dict[Place, int] = {}
        self._keys: dict[str, dict[str, None]] = {topic.EXPERIMENTS: {}, topic.POOLS: {}}
        self._digests = KeyDigests()
        self._digest = hashlib.sha256()
        self._unfinished: dict[tuple[str, str], None] = {}

    def close(self) -> None:
        """Remove the database."""
        self._database.close()

    @property
    def digest(self) -> str:
        """SHA-256 of all records and their places, in hexadecimal."""
        return self._digest.hexdigest()

    def fill(self, lines: Iterable[bytes | str]) -> None:
        """Insert all lines, in one transaction.

        Raises:
            LedgerError: the export is damaged, cut short, or of another version; a decision's fact
                is missing; or it holds an import that had not ended.
        """
        numbered = enumerate(lines, 1)
        _, first = next(numbered, (1, b""))
        self.header = parse_header(first)
        ended = self.header.version == VERSION_UNSEALED
        self._database.execute("BEGIN")
        for number, line in numbered:
            if is_end(line):  # `rung.ledger.seals.exported` verifies it, and the seals
                ended = True
                break
            parsed = parse_line(line, number)
            if parsed.topic != topic.SEALS:  # the destination makes its own
                self._take(number, parsed)
        self._database.execute("COMMIT")
        self._check(ended=ended)

    def keys(self, name: str) -> list[str]:
        """Return the keys of a topic of facts, sorted."""
        return sorted(self._keys[name])

    def has_key(self, name: str, key: str) -> bool:
        """Return whether there are facts of a key, given a topic of facts or decisions."""
        return key in self._keys[FACTS_OF.get(name, name)]

    def decided(self) -> list[ImportedKey]:
        """Return the keys with decisions."""
        return self._digests.keys()

    def batches(self, *, pointing: bool, skip: dict[Place, int]) -> Iterator[list[Row]]:
        """Yield facts and streams, or what refers to positions of facts, in order.

        The first `skip` rows of each place are left out; it is counted down.
        """
        batch: list[Row] = []
        size = 0
        for row in self._rows(f"{_ROWS} WHERE pointing = ? ORDER BY number", (pointing,)):
            if left := skip.get((row.topic, row.target), 0):
                skip[row.topic, row.target] = left - 1
                continue
            batch.append(row)
            size += len(row.value)
            if len(batch) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def rows(self, place: Place) -> Iterator[Row]:
        """Yield the rows for a partition of the destination, in order."""
        self._database.execute(_INDEX)
        return self._rows(f"{_ROWS} WHERE topic = ? AND target = ? ORDER BY number", place)

    def place(self, placed: Iterable[tuple[int, int]]) -> None:
        """Note the positions of appended facts: pairs of number and position."""
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO placed VALUES (?, ?)", placed)
        self._database.execute("COMMIT")

    def _rows(self, query: str, parameters: tuple[object, ...]) -> Iterator[Row]:
        for number, name, key, value, target, fact, rejected in self._database.execute(
            query, parameters
        ):
            pointed = value
            if fact is not None:
                drop = drop_in(value) if name == topic.DEADLETTER else None
                pointed = (
                    _with_cause(value, fact)
                    if drop is None
                    else _with_place(value, fact, partition_of(drop.key, self._partitions))
                )
            if rejected is not None:
                pointed = _with_place(pointed, rejected, target)
            yield Row(number, name, key, pointed, target)

    def _take(self, number: int, line: Parsed) -> None:
        place = (line.topic, line.partition)
        last = self._last.get(place, -1)
        if line.position <= last:
            raise LedgerError(
                f"line {number} is out of order: position {line.position} of "
                f"{line.topic}/{line.partition} comes after {last}"
            )
        self._last[place] = line.position
        self.records += 1
        about = (line.topic, line.partition, line.position, line.key, len(line.value))
        self._digest.update(msgspec.json.encode(about) + line.value)
        fact = self._dropped(line) if line.topic == topic.DEADLETTER else self._fact(number, line)
        if fact is None and line.topic == topic.DEADLETTER:
            return
        event_id = line.event.id if line.event else None
        target = partition_of(line.key, self._partitions)
        self._database.execute(
            "INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                number,
                *place,
                line.position,
                line.key,
                event_id,
                line.value,
                line.topic in POINTING,
                fact,
                self._rejected(number, line),
                target,
            ),
        )
        if line.topic in FACTS_OF:
            self._digests.add(line.topic, line.key, line.value)
        elif line.topic in self._keys:
            self._keys[line.topic][line.key] = None
        elif line.event is not None:
            self._follow_imports(line)

    def _follow_imports(self, line: Parsed) -> None:
        """Note the imports into the exported ledger that did not end."""
        match line.event and line.event.data:
            case ImportStarted(ledger_id=ledger_id, import_id=import_id):
                self._unfinished[ledger_id, import_id] = None
            case ImportCompleted(ledger_id=ledger_id, import_id=import_id):
                self._unfinished.pop((ledger_id, import_id), None)
            case _:
                pass

    def _fact(self, number: int, line: Parsed) -> int | None:
        """Return the line number of a decision's fact."""
        if line.topic not in FACTS_OF or line.event is None:
            return None
        cause, position = line.event.cause, line.event.causeposition
        found = self._line_at(FACTS_OF[line.topic], line.partition, position)
        if found is None or not (found[1] in {None, cause} or self._is_request(found[0])):
            raise LedgerError(
                f"line {number}: the fact of this decision is missing; {cause} should be at "
                f"position {position} of {FACTS_OF[line.topic]}/{line.partition}, further up"
            )
        return found[0]

    def _is_request(self, number: int) -> bool:
        """Return whether a line has a key go on, so that decisions on other facts refer to it."""
        query = "SELECT value FROM lines WHERE number = ?"
        (value,) = self._database.execute(query, (number,)).fetchone()
        return is_request(value)

    def _rejected(self, number: int, line: Parsed) -> int | None:
        """Return the line number of the fact that a decision rejects."""
        if line.event is None or not isinstance(line.event.data, FactRejected):
            return None
        data = line.event.data
        found = self._line_at(FACTS_OF[line.topic], line.partition, data.position)
        if found is None:
            raise LedgerError(
                f"line {number}: the rejected fact is missing; it should be at position"
                f" {data.position} of {FACTS_OF[line.topic]}/{line.partition}, further up"
            )
        return found[0]

    def _dropped(self, line: Parsed) -> int | None:
        """Return the line of the fact that a dead letter drops, None if it drops none of these."""
        drop = drop_in(line.value)
        found = None if drop is None else self._line_at(drop.topic, drop.partition, drop.position)
        return None if found is None else found[0]

    def _line_at(
        self, name: str, partition: int, position: int | None
    ) -> tuple[int, str | None] | None:
        """Return the number and the event's id of the line of a record."""
        query = "SELECT number, id FROM lines WHERE topic = ? AND partition = ? AND position = ?"
        found: tuple[int, str | None] | None = self._database.execute(
            query, (name, partition, position)
        ).fetchone()
        return found

    def _check(self, *, ended: bool) -> None:
        if self.records != self.header.records:
            raise LedgerError(
                f"the export is not complete: it should hold {self.header.records} records and "
                f"holds {self.records}"
            )
        if not ended:
            raise LedgerError("the export is not complete: its last line is missing")
        if self._unfinished:
            raise LedgerError(
                f"the ledger {self.header.ledger} was exported while an import into it was not"
                " complete: decisions may be missing. Complete that import, and export it again"
            )


def _with_cause(value: bytes, position: int) -> bytes:
    """Return a decision with the new position of its fact."""
    event = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    event["causeposition"] = msgspec.Raw(str(position).encode())
    return msgspec.json.encode(event)


def _with_place(value: bytes, position: int, partition: int) -> bytes:
    """Return an event about the fact at a new position, otherwise unchanged."""
    event = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    data = msgspec.json.decode(event["data"], type=dict[str, msgspec.Raw])
    data["partition"] = msgspec.Raw(str(partition).encode())
    data["position"] = msgspec.Raw(str(position).encode())
    event["data"] = msgspec.Raw(msgspec.json.encode(data))
    return msgspec.json.encode(event)

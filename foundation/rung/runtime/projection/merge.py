"""One partition of a projection: how its facts and the decisions on them merge into tables.

Theory of operation. Facts and decisions lie on different topics. The caller reads facts first and
then, of each topic of decisions, at least those that were there when the facts were appended. A
decision is held back until the fact that caused it is folded; one that is older than the next fact
is folded before it. So every record is folded after all that its writer had seen; what is folded
in another order than elsewhere was written independently, and no projection depends on that.

Repetitions are dropped here, once for all projections: a fact whose origin's sequence was already
seen for its key, and a decision whose cause is not later than the last one of its key.

A batch is one transaction: what the projection wrote, the positions, what tells repetitions, and
which records were rejected.
What is held back is not counted as folded: it is read again after a restart. A record that makes
the projection raise is undone by itself; for that its batch is folded again, with a savepoint for
each record.
"""

import sqlite3
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct, field

from rung.events import Event, UndecodableEvent
from rung.events.codec import decode_handled
from rung.ledger import Record
from rung.ledger.effective import Cause, cause_of, is_new_decision, is_new_fact
from rung.runtime.fact_writer import now
from rung.runtime.processor.fold import Rejected
from rung.runtime.processor.processor import types_of
from rung.runtime.projection.projection import Projection
from rung.runtime.projection.store import is_of_the_world, transaction

_INTEGER_MAX: Final = 2**63 - 1
"""In SQLite."""
_REASON_MAX: Final = 2_000
_VALUE_MAX: Final = 4_096
_KNOWN_MAX: Final = 5_000
"""So many keys and marks are kept in memory; all are in the tables."""


class _Known(Struct, array_like=True):
    """What the runtime keeps of one key.

    Attributes:
        starts: topic → where this key's records begin, at the earliest.
        causes: topic of decisions → position and index of the last cause folded.
    """

    starts: dict[str, int]
    causes: dict[str, Cause] = field(default_factory=dict[str, Cause])


class Rejection(NamedTuple):
    """A record that could not be folded: a row of the file."""

    topic: str
    partition: int
    position: int
    key: str
    reason: str
    value: str
    """The beginning of the record as text, undecodable bytes replaced."""
    at: str
    """When it was rejected."""


_known_decoder: Final = msgspec.msgpack.Decoder(_Known)


class _Held(NamedTuple):
    record: Record
    event: Event | None
    """None where it is skipped, or could not be read."""
    reason: str | None
    """Why it could not be read."""
    cause: int
    """Position of its fact; of one without an event, that of the one before it."""


_Step = tuple[Record, Event | None, str | None]


class Merge:
    """The fold of one partition; the caller brings the records. Used by one thread at a time."""

    def __init__(self, projection: Projection, db: sqlite3.Connection, partition: int) -> None:
        """Go on from the tables.

        Args:
            projection: whose they are.
            db: where they are.
            partition: that is folded.
        """
        self._projection = projection
        self.db: Final = db
        """With the tables."""
        self._partition = partition
        self._types = types_of(projection.handles)
        self._held: dict[str, deque[_Held]] = {name: deque() for name in projection.decisions}
        self._keys: dict[str, _Known] = {}
        self._marks: dict[str, dict[str, int]] = {}
        self._marks_count = 0
        self._changed_keys: dict[str, None] = {}
        self._changed_marks: dict[tuple[str, str], int] = {}
        self._last: dict[str, Record] = {}
        self.positions: dict[str, int] = {}
        """Topic → the position behind the last record folded."""
        self.digests: dict[str, int] = {}
        """Topic → the digest of the last record folded."""
        self.restart()

    @property
    def holds(self) -> bool:
        """Whether decisions are held back."""
        return any(self._held.values())

    def restart(self) -> None:
        """Go on from the tables: drop what is held back or kept in memory."""
        for held in self._held.values():
            held.clear()
        self._reload()

    def read_up_to(self, topic: str) -> int:
        """Return the position behind the last decision brought, held back or folded."""
        held = self._held[topic]
        return held[-1].record.position + 1 if held else self.positions[topic]

    def last_cause(self, topic: str) -> int:
        """Return the cause of the newest decision held back, -1 if there is none."""
        held = self._held[topic]
        return held[-1].cause if held else -1

    def hold(self, records: Sequence[Record]) -> None:
        """Take in decisions, in order; they are folded behind their facts."""
        for record in records:
            event, reason = self._decode(record)
            cause = self.last_cause(record.topic)
            if event is not None and event.causeposition is not None:
                cause = event.causeposition
            self._held[record.topic].append(_Held(record, event, reason, cause))

    def fold(self, facts: Sequence[Record]) -> list[Rejected]:
        """Fold facts with the decisions on them; return what could not be folded."""
        steps: list[_Step] = []
        for record in facts:
            self._release(record.position, steps)
            steps.append((record, *self._decode(record)))
        behind = facts[-1].position + 1 if facts else self.positions[self._projection.facts]
        self._release(behind, steps)
        return self._commit(steps)

    def fold_stream(self, records: Sequence[Record]) -> list[Rejected]:
        """Fold records of a topic by themselves; return what could not be folded."""
        return self._commit([(record, *self._decode(record)) for record in records])

    def fold_orphans(self) -> list[Rejected]:
        """Fold decisions whose fact is not there, as in a ledger that was cut off."""
        steps: list[_Step] = []
        self._release(None, steps)
        return self._commit(steps)

    def _release(self, before: int | None, steps: list[_Step]) -> None:
        for held in self._held.values():
            while held and (before is None or held[0].cause < before):
                record, event, reason, _ = held.popleft()
                steps.append((record, event, reason))

    def _commit(self, steps: Sequence[_Step]) -> list[Rejected]:
        if not steps:
            return []
        try:
            return self._try(steps, careful=False)
        except Exception as error:  # a record's own fault is found and undone by itself
            if is_of_the_world(error):
                raise
            return self._try(steps, careful=True)

    def _try(self, steps: Sequence[_Step], *, careful: bool) -> list[Rejected]:
        try:
            with transaction(self.db):
                rejected = [
                    Rejected(step[0], reason)
                    for step in steps
                    if (reason := self._take(*step, careful=careful)) is not None
                ]
                self._projection.flush(self.db)
                self._save(rejected)
        except BaseException:
            self._projection.forget()
            self._reload()
            raise
        self._trim()
        return rejected

    def _take(
        self, record: Record, event: Event | None, reason: str | None, *, careful: bool
    ) -> str | None:
        """Fold a record; return why it could not be."""
        self.positions[record.topic] = record.position + 1
        self._last[record.topic] = record
        if event is None or not self._is_new(record, event):
            return reason
        if not careful:
            self._projection.evolve(self.db, record.key, event)
            return None
        self.db.execute("SAVEPOINT record")
        try:
            self._projection.evolve(self.db, record.key, event)
            self._projection.flush(self.db)
        except Exception as error:
            if is_of_the_world(error):
                raise
            self.db.execute("ROLLBACK TO record")
            self._projection.forget()
            reason = f"{type(error).__name__}: {error}"
        self.db.execute("RELEASE record")
        return reason

    def _is_new(self, record: Record, event: Event) -> bool:
        key = record.key
        known = self._keys.get(key) or self._load(record)
        if event.causeposition is not None:
            if not is_new_decision(cause_of(event), known.causes, record.topic):
                return False
            self._changed_keys[key] = None
            return True
        if event.origin is None:
            return True
        marks = self._marks.setdefault(key, {})
        if event.origin not in marks:
            row = self.db.execute(
                "SELECT sequence FROM folded_marks WHERE key = ? AND origin = ?",
                (key, event.origin),
            ).fetchone()
            marks[event.origin] = row[0] if row else -1
            self._marks_count += 1
        if not is_new_fact(event, marks):
            return False
        self._changed_marks[key, event.origin] = marks[event.origin]
        return True

    def _load(self, record: Record) -> _Known:
        row = self.db.execute(
            "SELECT known FROM folded_keys WHERE key = ?", (record.key,)
        ).fetchone()
        if row:
            known = _known_decoder.decode(row[0])
        else:
            known = _Known({**self.positions, record.topic: record.position})
            self._changed_keys[record.key] = None
        self._keys[record.key] = known
        return known

    def _save(self, rejected: Sequence[Rejected]) -> None:
        self.db.executemany(
            "INSERT OR REPLACE INTO folded_rejected VALUES (?, ?, ?, ?, ?, ?, ?)",
            (_row_of(it, reason) for it, reason, _ in rejected),
        )
        self.db.executemany(
            "INSERT OR REPLACE INTO folded_keys VALUES (?, ?)",
            ((key, msgspec.msgpack.encode(self._keys[key])) for key in self._changed_keys),
        )
        self.db.executemany(
            "INSERT OR REPLACE INTO folded_marks VALUES (?, ?, ?)",
            (
                (*place, min(sequence, _INTEGER_MAX))
                for place, sequence in self._changed_marks.items()
            ),
        )
        self._changed_keys.clear()
        self._changed_marks.clear()
        for topic, record in self._last.items():
            self.digests[topic] = digest_of(record)
            self.db.execute(
                "INSERT OR REPLACE INTO folded_positions VALUES (?, ?, ?, ?)",
                (topic, self._partition, self.positions[topic], self.digests[topic]),
            )
        self._last.clear()

    def _trim(self) -> None:
        """Keep memory bounded: everything is in the tables."""
        if len(self._keys) + self._marks_count > _KNOWN_MAX:
            self._forget()

    def _reload(self) -> None:
        self._forget()
        self._changed_keys.clear()
        self._changed_marks.clear()
        self._last.clear()
        rows = positions_of(self.db, self._partition)
        self.positions = {name: rows.get(name, (0, 0))[0] for name in self._projection.topics}
        self.digests = {name: digest for name, (_, digest) in rows.items()}

    def _forget(self) -> None:
        self._keys.clear()
        self._marks.clear()
        self._marks_count = 0

    def _decode(self, record: Record) -> tuple[Event | None, str | None]:
        try:
            return decode_handled(record.value, self._types), None
        except UndecodableEvent as error:
            return None, str(error)


def positions_of(db: sqlite3.Connection, partition: int) -> dict[str, tuple[int, int]]:
    """Return, per topic, the position behind the last record folded, and that one's digest."""
    rows: Iterable[tuple[str, int, int]] = db.execute(
        "SELECT topic, position, digest FROM folded_positions WHERE partition = ?", (partition,)
    )
    return {topic: (position, digest) for topic, position, digest in rows}


def rejected_of(db: sqlite3.Connection) -> list[Rejection]:
    """Return the records that could not be folded."""
    return [Rejection(*row) for row in db.execute("SELECT * FROM folded_rejected")]


def _row_of(record: Record, reason: str) -> Rejection:
    place = record.topic, record.partition, record.position
    value = record.value[:_VALUE_MAX].decode(errors="replace")
    return Rejection(*place, record.key, reason[:_REASON_MAX], value, now())


def starts_of(db: sqlite3.Connection, key: str) -> dict[str, int]:
    """Return, per topic, a position before which nothing of a key lies."""
    row = db.execute("SELECT known FROM folded_keys WHERE key = ?", (key,)).fetchone()
    return _known_decoder.decode(row[0]).starts if row else {}


def digest_of(record: Record) -> int:
    """Return what tells a record from another at the same position."""
    return zlib.crc32(record.value)

"""Decisions on record of one partition, which are read twice and given out with their facts.

`scan` finds the last cause of each key, and keeps decisions that are recorded behind those of
later facts (a key that was left alone is decided later than others). `take` reads the others, just
before the facts that caused them are folded; `lacks` tells when. So memory is bounded. Decisions
whose cause is not later than the last one seen are dropped.
"""

from collections import deque
from collections.abc import Iterator

from rung.events import Event, decode_from
from rung.events.codec import decode_head
from rung.events.topic import TOPICS
from rung.ledger import Record
from rung.ledger.effective import Cause, cause_of


class Recorded:
    """The decisions of all keys; `seen` is the last cause that a key has folded."""

    def __init__(self, position: int) -> None:
        """Begin at a position of the topic of decisions."""
        self._last: dict[str, Cause] = {}
        """Key → the last cause on record, of keys whose decisions are not all folded."""
        self._front = -1
        """The latest cause of all that were scanned."""
        self._late: dict[str, deque[Event]] = {}
        self._late_at: set[int] = set()
        self._taken: dict[str, Cause] = {}
        self._waiting: dict[str, deque[Event]] = {}
        self._reach = -1
        """The latest cause of all that were taken."""
        self.end = position
        """Position behind the last decision on record."""
        self.unread = position
        """Position of the next decision to take."""
        self._scanned = position
        """Position behind the last decision scanned; this fold appended those behind it."""
        self._made = 0
        """How many decisions of this fold are not on record yet."""

    @property
    def settled(self) -> bool:
        """Whether all decisions on record are folded."""
        return not self._last

    @property
    def untaken(self) -> int:
        """How many decisions were scanned and not taken yet."""
        return self._scanned - self.unread

    @property
    def next(self) -> int:
        """Position of the next decision that this fold makes."""
        return self.end + self._made

    def made(self, count: int) -> None:
        """Note that this fold made decisions, which are to be appended in their order."""
        self._made += count

    def appended(self, count: int) -> None:
        """Note that decisions of this fold were appended."""
        self.end += count
        self._made -= count

    def lacks(self, position: int) -> bool:
        """Return whether decisions are to be taken before the fact at a position is folded."""
        return self.unread < self._scanned and self._reach <= position

    def waiting(self) -> Iterator[tuple[str, int]]:
        """Yield key and cause's position of decisions that wait for their facts."""
        for events_of in (self._waiting, self._late):
            for key, events in events_of.items():
                yield from ((key, cause_of(event)[0]) for event in events)

    def scan_next(self, record: Record) -> None:
        """Note that the next decision is scanned."""
        assert record.position == self._scanned == self.end, (record, self.end)
        self._scanned = self.end = record.position + 1

    def scan(self, record: Record, seen: Cause) -> Cause | None:
        """Note the cause of a decision; return it if it is later than those before.

        Raises:
            UndecodableEvent: it cannot be read.
        """
        cause = _cause_on_record(record)
        if cause <= self._last.get(record.key, seen):
            return None
        if cause[0] < self._front:
            event = decode_from(record.topic, record.value)
            self._late.setdefault(record.key, deque()).append(event)
            self._late_at.add(record.position)
        self._last[record.key] = cause
        self._front = max(self._front, cause[0])
        return cause

    def take_next(self, record: Record) -> None:
        """Note that the next decision is taken."""
        assert record.position == self.unread, (record, self.unread)
        self.unread += 1

    def take(self, record: Record, seen: Cause) -> None:
        """Keep a scanned decision until its fact is folded.

        Raises:
            UndecodableEvent: it cannot be read.
        """
        cause = _cause_on_record(record)
        if cause <= self._taken.get(record.key, seen):
            return
        self._taken[record.key] = cause
        if record.position not in self._late_at:
            self._reach = max(self._reach, cause[0])
            event = decode_from(record.topic, record.value)
            self._waiting.setdefault(record.key, deque()).append(event)

    def all_taken(self) -> None:
        """Forget what is needed only while decisions are being taken, if there are no more."""
        if self.unread == self._scanned:
            self._taken.clear()

    def of(self, record: Record) -> tuple[list[Event], bool]:
        """Remove and return the decisions that a fact caused, and whether some may be missing.

        They may be missing where no later fact of the key caused some. Where none of its facts
        lies, those before are returned, too.
        """
        found: list[Event] = []
        last = self._last.get(record.key)
        if last is None:
            return found, True
        for events_of in (self._waiting, self._late):
            events = events_of.get(record.key)
            while events and cause_of(events[0])[0] <= record.position:
                found.append(events.popleft())
            if not events:
                events_of.pop(record.key, None)
        if record.position >= last[0]:
            del self._last[record.key]
        return found, record.position >= last[0]

    def forget(self, key: str) -> None:
        """Drop what is known of a key."""
        for known in (self._last, self._waiting, self._late):
            known.pop(key, None)


def _cause_on_record(record: Record) -> Cause:
    """Return the cause of a decision on record.

    Raises:
        UndecodableEvent: it is no event known to this version, or names no cause.
    """
    head = decode_head(record.value)
    if head.causeposition is None or head.causeindex is None:
        assert TOPICS[record.topic].holds == "decisions", record
        decode_from(record.topic, record.value)
    return cause_of(head)

"""The fold of one partition of a processor: merges facts and decisions into the state of each key.

Theory of operation. A partition holds many keys, and each key is folded on its own: a fact, then
the decisions that it caused, then the key's next fact. The decisions come from one of two places:

* **on record**: the decisions topic already holds decisions of this key with this or a later
  cause. They are authoritative, even if today's code would decide otherwise.
* **decided anew**: the fact is behind the key's last recorded cause. The last recorded cause
  itself is decided again, because a crash may have cut its decisions short: those that are
  missing, by index, are appended.

Decisions on record are read twice, to bound memory. `scan` finds the last cause of each key, and
keeps decisions that are recorded behind those of later facts (a key that was quarantined is
decided later than others). `take` reads the others, just before the facts that caused them are
folded; `lacks` tells when.

De-duplication is done here, once for all processors: a fact whose origin's sequence was already
seen is dropped, and so is a decision whose cause is not later than the last one seen.

Decisions of the processor are no facts to it, also where a relay of another service appends them
to the topic of facts.

A key whose fact cannot be decoded, or makes the processor raise, is quarantined: nothing of it is
folded or decided past that fact, until it is tried again. Other keys go on. A key whose logic
level this release does not support is left alone in the same way, from the fact on that raises it.

A key that has ended keeps its last cause, by which decisions that a replica writes late are
dropped; its state and marks are removed. Some facts reopen it, if the processor says so: they are
decided on a state that the processor makes, which ends again. The ledger is read by `loop.py` and
`audit/decisions.py`.
"""

from collections import deque
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from typing import Final, Generic, NamedTuple

from msgspec import Struct, field

from rung.events import Event, Payload, UndecodableEvent, decision, decode_from
from rung.events.codec import PAYLOADS, decode_handled, decode_head
from rung.events.envelope import experiment_of, level_of
from rung.events.topic import TOPICS
from rung.ledger import Record
from rung.runtime.processor.processor import Processor, Reopening, S, types_of

Cause = tuple[int, int]
"""Position of a fact, and which of its decisions it is."""

_NO_CAUSE: Final = (-1, -1)
_TRACES_MAX: Final = 1_000
"""Experiments whose traces a key keeps; the oldest is removed first."""


def is_new_fact(fact: Event, marks: MutableMapping[str, int]) -> bool:
    """Return whether a fact is no repetition; move the mark of its origin."""
    if fact.origin is None or fact.sequence is None:
        return True
    if fact.sequence <= marks.get(fact.origin, -1):
        return False
    marks[fact.origin] = fact.sequence
    return True


class KeyFold(Struct, Generic[S], omit_defaults=True):
    """What is known of one key."""

    state: S | None
    """None: the key has ended."""
    marks: dict[str, int] = field(default_factory=dict[str, int])
    """Origin → the highest sequence folded."""
    cause: Cause = _NO_CAUSE
    """That of the last decision folded."""
    traces: dict[str, str] = field(default_factory=dict[str, str])
    """Experiment → the `traceparent` of the first fact about it that had one."""

    def is_new(self, fact: Event) -> bool:
        """Return whether a fact is no repetition; note it and its trace."""
        if not is_new_fact(fact, self.marks):
            return False
        if fact.traceparent is not None:
            self._remember(fact, fact.traceparent)
        return True

    def _remember(self, fact: Event, traceparent: str) -> None:
        experiment_id = experiment_of(fact.data)
        if experiment_id is None or experiment_id in self.traces:
            return
        self.traces[experiment_id] = traceparent
        if len(self.traces) > _TRACES_MAX:
            del self.traces[next(iter(self.traces))]

    def trace_of(self, data: Payload, cause: Event) -> str | None:
        """Return the trace of a decision.

        It is that of its cause, unless the cause is about another experiment: a slot that one
        experiment releases goes to another one, whose trace is another.
        """
        if not self.traces and cause.traceparent is None:
            return None
        experiment_id = experiment_of(data)
        if cause.traceparent is not None and experiment_id in {None, experiment_of(cause.data)}:
            return cause.traceparent
        return None if experiment_id is None else self.traces.get(experiment_id)

    def end(self) -> None:
        """Keep what is needed of a key that has ended."""
        self.state = None
        self.marks = {}
        self.traces = {}


class Parked(Struct, Generic[S]):
    """A quarantined key as it was some time before the fact that could not be folded."""

    facts: int = 0
    """Position of the next fact to fold."""
    decisions: int = 0
    """Position behind the decisions that are folded."""
    known: KeyFold[S] | None = None
    reason: str = ""
    """Why it was quarantined."""
    level: int = 0
    """The logic level that the release did not support; 0: there was another reason."""


class Image(Struct, Generic[S]):
    """A partition's fold as a snapshot left it."""

    facts: int = 0
    """Position of the next fact to fold."""
    decisions: int = 0
    """Position behind the decisions that are folded, all of them."""
    keys: dict[str, KeyFold[S]] = field(default_factory=dict[str, KeyFold[S]])
    ahead: dict[str, int] = field(default_factory=dict[str, int])
    """Key → the position of its next fact to fold, of keys that were saved later than others."""
    parked: dict[str, Parked[S]] = field(default_factory=dict[str, Parked[S]])
    """Quarantined keys."""


class Rejected(NamedTuple):
    """A record that could not be folded, and why."""

    record: Record
    reason: str
    level: int = 0
    """The logic level that this release does not support, where that is the reason."""


class Folded(NamedTuple):
    """The result of folding one fact: decisions to append, and those on record."""

    new: list[Event]
    recorded: list[Event]
    decided: list[Payload] | None
    """What the processor decides today; None where that was not computed."""
    rejected: Rejected | None


_NOTHING: Final = Folded([], [], None, None)
_NONE_DECIDED: Final = Folded([], [], [], None)


class PartitionFold(Generic[S]):
    """The fold of one partition; the caller brings facts and recorded decisions."""

    def __init__(
        self,
        processor: Processor[S],
        image: Image[S] | None = None,
        *,
        dropped: Collection[int] = (),
        only: str | None = None,
    ) -> None:
        """Begin at the beginning, or where a snapshot ends.

        Args:
            processor: folds and decides.
            image: the snapshot.
            dropped: positions of facts that an operator dropped; they are skipped.
            only: the one key to fold; by default all.
        """
        image = image or Image()
        self._only = only
        self._processor = processor
        handled = types_of(processor.handles)
        self._decided = frozenset(
            kind for kind in handled if processor.decisions == PAYLOADS[kind].TOPIC
        )
        self._types = handled - self._decided
        self._source = f"/rung/{processor.name}"
        self._reopening = processor if isinstance(processor, Reopening) else None
        self._keys = image.keys
        self._ahead = image.ahead
        self._dropped = dropped
        self._quarantined = {key: parked.reason for key, parked in image.parked.items()}
        self._began = image.decisions
        self.parked = image.parked
        """Quarantined keys, and where to go on with them."""
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
        self.contradicted = False
        """Whether the snapshot is wrong: it lacks a decision on record."""
        self.facts = image.facts
        self.decisions = image.decisions
        self.unread = image.decisions
        """Position of the next decision to take."""
        self._scanned = image.decisions
        """Position behind the last decision scanned; this fold appended those behind it."""
        self.changed: dict[str, None] = {}
        """Keys that were folded since the last snapshot."""
        for key, known in list(image.keys.items()):
            if known.state is not None and known.state.level > processor.level:
                self._leave_alone(key, self._next_of(key), known.state.level)

    @property
    def quarantined(self) -> dict[str, str]:
        """Keys that are not folded any more, with the reason."""
        return self._quarantined

    @property
    def settled(self) -> bool:
        """Whether all decisions on record are folded: only then may the fold be saved."""
        return not self._last

    def waiting(self) -> Iterator[tuple[str, int]]:
        """Yield key and cause's position of decisions on record that wait for their facts."""
        for events_of in (self._waiting, self._late):
            for key, events in events_of.items():
                if key not in self._quarantined:
                    yield from ((key, _cause(event)[0]) for event in events)

    def state(self, key: str) -> S | None:
        """Return a key's state; None if it is not known or has ended."""
        known = self._keys.get(key)
        return known.state if known else None

    def states(self) -> Iterator[S]:
        """Yield the states of all keys that live and are not quarantined."""
        return (known.state for known in self._keys.values() if known.state is not None)

    def known(self, key: str) -> KeyFold[S] | None:
        """Return the fold of a key; None if it is not known or is quarantined."""
        return self._keys.get(key)

    def park(self, key: str, parked: Parked[S]) -> None:
        """Note from where a quarantined key is to go on."""
        self.parked[key] = parked
        self.changed[key] = None

    def adopt(self, key: str, known: KeyFold[S]) -> None:
        """Go on with a key that was quarantined, as another fold of its facts left it."""
        self._quarantined.pop(key, None)
        self.parked.pop(key, None)
        self._keys[key] = known
        self.changed[key] = None

    def record(self, records: Sequence[Record]) -> list[Rejected]:
        """Scan and take decisions on record; must precede the facts that caused them."""
        return self.scan(records) + self.take(records)

    def scan(self, records: Sequence[Record]) -> list[Rejected]:
        """Find the causes on record; return records that cannot be read; their keys are parked."""
        rejected = []
        for record in records:
            assert record.position == self._scanned == self.decisions, (record, self.decisions)
            self._scanned = self.decisions = record.position + 1
            if self._skips(record.key):
                continue
            try:
                cause = _cause_on_record(record)
                if not self._is_later(record.key, cause, self._last):
                    continue
                late = cause[0] < self._front
                if late:
                    event = decode_from(record.topic, record.value)
            except UndecodableEvent as error:
                rejected.append(self._reject(record, str(error)))
                continue
            self.contradicted |= cause[0] < self._next_of(record.key)
            self._last[record.key] = cause
            if late:
                self._late.setdefault(record.key, deque()).append(event)
                self._late_at.add(record.position)
            self._front = max(self._front, cause[0])
        return rejected

    def lacks(self, position: int) -> bool:
        """Return whether decisions are to be taken before the fact at a position is folded."""
        return self.unread < self._scanned and self._reach <= position

    @property
    def untaken(self) -> int:
        """How many decisions were scanned and not taken yet."""
        return self._scanned - self.unread

    def take(self, records: Sequence[Record]) -> list[Rejected]:
        """Take scanned decisions; return records that cannot be read; their keys are parked."""
        rejected = []
        for record in records:
            assert record.position == self.unread, (record, self.unread)
            self.unread += 1
            if self._skips(record.key):
                continue
            try:
                cause = _cause_on_record(record)
                if not self._is_later(record.key, cause, self._taken):
                    continue
                self._taken[record.key] = cause
                if record.position in self._late_at:
                    continue
                self._reach = max(self._reach, cause[0])
                event = decode_from(record.topic, record.value)
            except UndecodableEvent as error:
                rejected.append(self._reject(record, str(error)))
                continue
            self._waiting.setdefault(record.key, deque()).append(event)
        if self.unread == self._scanned:
            self._taken.clear()
        return rejected

    def appended(self, count: int) -> None:
        """Note that decisions of this fold were appended."""
        self.decisions += count

    def _skips(self, key: str) -> bool:
        return key in self._quarantined or (self._only is not None and key != self._only)

    def _is_later(self, key: str, cause: Cause, seen: dict[str, Cause]) -> bool:
        known = self._keys.get(key)
        return cause > (seen.get(key) or (known.cause if known else _NO_CAUSE))

    def _next_of(self, key: str) -> int:
        return max(self._ahead.get(key, 0), self.facts)

    def _reject(self, record: Record, reason: str) -> Rejected:
        """Quarantine the key of a record and drop its state, which may be half folded."""
        self._quarantine(record.key, reason)
        self.changed.pop(record.key, None)
        return Rejected(record, reason)

    def _quarantine(self, key: str, reason: str) -> None:
        self._quarantined[key] = reason
        for known in (self._keys, self._last, self._waiting, self._late):
            known.pop(key, None)

    def _leave_alone(self, key: str, position: int, level: int) -> str:
        """Quarantine a key from the fact with an unsupported level on; return why."""
        known = self._processor.level
        reason = (
            f"its logic level {level} is newer than those that this release of "
            f"{self._processor.name} knows (up to {known}): start a newer release"
        )
        # Where decisions are on record and not folded, their beginning is not known.
        decisions = self._began if key in self._last else self.decisions
        parked = Parked(position, decisions, self._keys.get(key), reason, level)
        self._quarantine(key, reason)
        self.park(key, parked)
        return reason

    def fold(self, record: Record, *, compare: bool = False) -> Folded:
        """Fold one fact and its decisions.

        With `compare` it is decided also where its decisions are on record, and these must name
        this fact as their cause.
        """
        assert record.position >= self.facts, (record, self.facts)
        self.facts = record.position + 1
        if self._skips(record.key) or record.position < self._ahead.get(record.key, 0):
            return _NOTHING
        try:
            if record.position in self._dropped:
                return self._pass(record)
            fact = decode_handled(record.value, self._types)
            if fact is None:
                return self._pass(record)
            level = level_of(fact.data)
            if level > self._processor.level:
                reason = self._leave_alone(record.key, record.position, level)
                return Folded([], [], None, Rejected(record, reason, level))
            return self._fold(record, fact, compare=compare)
        except UndecodableEvent as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - whatever a processor raises concerns its key alone
            reason = f"{type(error).__name__}: {error}"
        return Folded([], [], None, self._reject(record, reason))

    def _pass(self, record: Record) -> Folded:
        """Skip a fact that is not decided today, but fold its decisions on record."""
        known = self._keys.get(record.key)
        if record.key not in self._last or known is None:
            return _NONE_DECIDED
        recorded = self._take_recorded(record)
        self._evolve(record.key, known, recorded)
        return Folded([], recorded, [], None)

    def _fold(self, record: Record, fact: Event, *, compare: bool) -> Folded:
        known = self._keys.get(record.key)
        if known is None:
            known = self._keys[record.key] = KeyFold(self._processor.initial(record.key))
        if known.state is None and not self._reopen(record.key, known, fact):
            return self._pass(record)
        assert known.state is not None
        if not known.is_new(fact):
            return _NOTHING
        self.changed[record.key] = None
        self._processor.evolve(known.state, fact.data)
        last = self._last.get(record.key)
        if last is None:
            return self._decide(record, known, fact, [])
        recorded = self._take_recorded(record)
        if compare:
            _check_causes(recorded, fact, record.position)
        if record.position >= last[0]:
            return self._decide(record, known, fact, recorded)
        decided = self._processor.decide(known.state, fact.data) if compare else None
        self._evolve(record.key, known, recorded)
        return Folded([], recorded, decided, None) if recorded or compare else _NOTHING

    def _reopen(self, key: str, known: KeyFold[S], fact: Event) -> bool:
        """Give a key that has ended a state again, if the fact is one that asks for it."""
        if self._reopening is None or fact.type not in types_of(self._reopening.reopened_by):
            return False
        known.state = self._reopening.reopened(key)
        return True

    def _decide(
        self, record: Record, known: KeyFold[S], fact: Event, recorded: list[Event]
    ) -> Folded:
        """Decide, and complete what is on record."""
        assert known.state is not None
        decided = self._processor.decide(known.state, fact.data)
        if not decided and not recorded:
            self._evolve(record.key, known, [])
            return _NONE_DECIDED
        new = [
            decision(
                decided[index],
                source=self._source,
                cause=fact,
                position=record.position,
                index=index,
                traceparent=known.trace_of(decided[index], fact),
            )
            for index in range(len(recorded), len(decided))
        ]
        self._evolve(record.key, known, recorded + new)
        return Folded(new, recorded, decided, None)

    def _evolve(self, key: str, known: KeyFold[S], events: list[Event]) -> None:
        self.changed[key] = None
        for event in events:
            if known.state is not None and event.type in self._decided:
                self._processor.evolve(known.state, event.data)
            known.cause = _cause(event)
        if known.state is not None and self._processor.ended(known.state):
            known.end()

    def _take_recorded(self, record: Record) -> list[Event]:
        """Return the decisions on record that this fact caused."""
        recorded: list[Event] = []
        for events_of in (self._waiting, self._late):
            events = events_of.get(record.key)
            if events is None:
                continue
            while events and _cause(events[0])[0] <= record.position:
                event = events.popleft()
                assert _cause(event)[0] == record.position, (
                    f"decision {event.id} is caused by position {_cause(event)[0]}, "
                    "where no fact of its key lies"
                )
                recorded.append(event)
            if not events:
                del events_of[record.key]
        if record.position >= self._last[record.key][0]:
            del self._last[record.key]
        return recorded


def _check_causes(recorded: list[Event], fact: Event, position: int) -> None:
    """Assert that decisions on record were caused by this fact."""
    for event in recorded:
        assert event.cause == fact.id, (
            f"decision {event.id} is caused by the fact {event.cause}, "
            f"and at position {position} lies {fact.id}"
        )


def _cause_on_record(record: Record) -> Cause:
    """Return the cause of a decision on record.

    Raises:
        UndecodableEvent: it is no event known to this version, or names no cause.
    """
    head = decode_head(record.value)
    if head.causeposition is None or head.causeindex is None:
        assert TOPICS[record.topic].holds == "decisions", record
        decode_from(record.topic, record.value)
    assert head.causeposition is not None, record
    assert head.causeindex is not None, record
    return head.causeposition, head.causeindex


def _cause(event: Event) -> Cause:
    assert event.causeposition is not None, event
    assert event.causeindex is not None, event
    return event.causeposition, event.causeindex

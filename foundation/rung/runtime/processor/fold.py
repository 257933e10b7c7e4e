"""The fold of one partition of a processor: merges facts and decisions into the state of each key.

Theory of operation. A partition holds many keys, and each key is folded on its own: a fact, then
the decisions that it caused, then the key's next fact. The decisions come from one of two places:

* **on record**: the decisions topic already holds decisions of this key with this or a later
  cause. They are authoritative, even if today's code would decide otherwise.
* **decided anew**: the fact is behind the key's last recorded cause. The last recorded cause
  itself is decided again, because a crash may have cut its decisions short: those that are
  missing, by index, are appended.

Decisions on record are read twice, to bound memory (`recorded.py`).

De-duplication is done here, once for all processors: a fact whose origin's sequence was already
seen is dropped, and so is a decision whose cause is not later than the last one seen.

Decisions of the processor are no facts to it, also where a relay of another service appends them
to the topic of facts.

A fact that cannot be decoded, or makes the processor raise, is *rejected*: that is its only
decision, authoritative like any other, also where this release could take the fact. Its key stands
still, in the state before the fact, and the facts after it wait; other keys go on. An operator's
request about that rejection (`rung.events.deadletter`), a fact at position r, has the key go on:
the rejected fact, unless it was dropped, and those that waited are read again and folded in their
order. All their decisions have the cause r, with growing indices, and name as `cause` the fact
that each follows from; the last one says that the key goes on. If another fact is rejected
instead, the key stands still before that one. A request about another rejection has no effect.

What a processor raised on leaves a state that is half folded: the key is *torn*, and the caller
brings it again from what is on record (`adopt`) before it goes on or is saved.

A key is *left alone* where this release cannot fold what is on record: its logic level is not
supported, a decision on record cannot be decoded, or a fact that another release decided makes
this one raise. Nothing is decided about it until a start at which it can be folded.

A key that has ended keeps its last cause, by which decisions that a replica writes late are
dropped; its state and marks are removed. Some facts reopen it, if the processor says so: they are
decided on a state that the processor makes, which ends again. The ledger is read by `replay.py`.
"""

import contextlib
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Final, Generic, NamedTuple

import msgspec
from msgspec import Struct, field, structs

from rung.events import Event, Payload, UndecodableEvent, decision, decode
from rung.events.codec import PAYLOADS, decode_handled
from rung.events.deadletter import FactDropped, FactRejected, FactRetried, KeyResumed
from rung.events.envelope import level_of
from rung.ledger import Record
from rung.ledger.effective import NO_CAUSE, Cause, cause_of
from rung.runtime.fact_writer import now
from rung.runtime.processor.image import Image, KeyFold, Parked, Place, Stuck, Torn
from rung.runtime.processor.processor import Processor, Reopening, S, types_of
from rung.runtime.processor.recorded import Recorded

_REASON_MAX: Final = 2_000
_VALUE_MAX: Final = 4_096
_REQUESTS: Final = types_of(FactRetried | FactDropped)


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
    """Why there is a new rejection, or, without one, why the key is left alone."""


_NOTHING: Final = Folded([], [], None, None)
_NONE_DECIDED: Final = Folded([], [], [], None)


class _Head(Struct):
    id: str


class _Turn(Struct):
    """What causes decisions: a fact, or an operator's request about all facts that waited."""

    position: int
    is_open: bool
    """Whether decisions may be missing on record."""
    index: int = 0
    """Of the next decision."""
    request: Event | None = None
    stuck: Stuck | None = None
    """Where the key stood, with a request."""
    recorded: deque[Event] = field(default_factory=deque[Event])
    """Decisions on record that are not folded yet, with a request."""
    is_over: bool = False
    """Whether the key stands still again, or is left alone."""


class PartitionFold(Generic[S]):
    """The fold of one partition; the caller brings facts and recorded decisions."""

    def __init__(
        self,
        processor: Processor[S],
        image: Image[S] | None = None,
        *,
        only: Collection[str] | None = None,
    ) -> None:
        """Begin at the beginning, or where a snapshot ends.

        Args:
            processor: folds and decides.
            image: the snapshot.
            only: the keys to fold; by default all.
        """
        image = image or Image()
        image.release(processor.level)
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
        self._began = image.decisions
        self._place = Place(image.facts, image.decisions)
        """Before the fact that is being folded; no decision that it causes lies before."""
        self.parked = image.parked
        """Keys that are left alone, and where to go on with them."""
        self.torn: dict[str, Torn] = {}
        """Keys that are to be brought from what is on record."""
        self._turn: _Turn | None = None
        """The request that is being carried out."""
        self.contradicted = False
        """Whether the snapshot is wrong: it lacks a decision on record."""
        self.facts = image.facts
        self.recorded: Final = Recorded(image.decisions)
        """The decisions on record that are not folded yet."""
        self.changed: dict[str, Place] = {}
        """Keys that were folded since the last save began → before the first fact of each."""
        self.saving: dict[str, Place] = {}
        """The same of the save that is under way: since the snapshot before it."""
        self.since = image.facts
        """The position of facts at which the save of the newest snapshot began."""
        for key, known in list(image.keys.items()):
            if known.state is not None and known.state.level > processor.level:
                self._leave_alone(key, self._next_of(key), known.state.level, on_record=False)

    @property
    def stuck(self) -> dict[str, Stuck]:
        """Keys that stand still, and where."""
        return {key: it.stuck for key, it in self._keys.items() if it.stuck is not None}

    @property
    def decisions(self) -> int:
        """Position behind the last decision on record."""
        return self.recorded.end

    @property
    def settled(self) -> bool:
        """Whether all decisions on record are folded: only then may the fold be saved."""
        return self.recorded.settled

    def state(self, key: str) -> S | None:
        """Return a key's state; None if it is not known, has ended or stands still."""
        known = self._keys.get(key)
        return known.state if known and known.stuck is None else None

    def states(self) -> Iterator[S]:
        """Yield the states of all keys that live and go on."""
        return (
            known.state
            for known in self._keys.values()
            if known.state is not None and known.stuck is None
        )

    def known(self, key: str) -> KeyFold[S] | None:
        """Return the fold of a key; None if it is not known, is left alone or torn."""
        return None if key in self.torn else self._keys.get(key)

    def adopt(self, key: str, it: Parked[S]) -> None:
        """Take a torn key as what is on record gives it, unless it is another one by now."""
        if key not in self.torn:
            return
        if key in self.parked:
            old = self.parked[key]
            self.parked[key] = structs.replace(it, reason=old.reason, level=old.level)
        elif it.known and it.known.stuck and it.known.stuck.rejection == self.torn[key].rejection:
            self._keys[key] = it.known
        else:
            return
        del self.torn[key]
        self._change(key)

    def _change(self, key: str) -> None:
        """Note that a key differs from the last snapshot."""
        self.changed.setdefault(key, self._place)

    def record(self, records: Sequence[Record]) -> list[Rejected]:
        """Scan and take decisions on record; must precede the facts that caused them."""
        return self.scan(records) + self.take(records)

    def scan(self, records: Sequence[Record]) -> list[Rejected]:
        """Find the causes on record; return records that cannot be read; their keys are parked."""
        rejected = []
        for record in records:
            self.recorded.scan_next(record)
            if self._skips(record.key):
                continue
            try:
                cause = self.recorded.scan(record, self._cause_of(record.key))
            except UndecodableEvent as error:
                rejected.append(self._park(record, str(error)))
                continue
            if cause is not None:
                self.contradicted |= cause[0] < self._next_of(record.key)
        return rejected

    def take(self, records: Sequence[Record]) -> list[Rejected]:
        """Take scanned decisions; return records that cannot be read; their keys are parked."""
        rejected = []
        for record in records:
            self.recorded.take_next(record)
            if self._skips(record.key):
                continue
            try:
                self.recorded.take(record, self._cause_of(record.key))
            except UndecodableEvent as error:
                rejected.append(self._park(record, str(error)))
        self.recorded.all_taken()
        return rejected

    def _skips(self, key: str) -> bool:
        return key in self.parked or (self._only is not None and key not in self._only)

    def _cause_of(self, key: str) -> Cause:
        known = self._keys.get(key)
        return known.cause if known else NO_CAUSE

    def _next_of(self, key: str) -> int:
        return self._ahead.get(key, self.facts) if self._ahead else self.facts

    def fold(self, record: Record, *, compare: bool = False) -> Folded:
        """Fold one fact and its decisions; it must not be one that `resumes` its key.

        With `compare` it is decided also where its decisions are on record, and these must name
        this fact as their cause.
        """
        assert record.position >= self.facts, (record, self.facts)
        self._proceed(record)
        if self._passes_by(record):
            return _NOTHING
        known = self._keys.get(record.key)
        recorded, is_open = self.recorded.of(record)
        if known is not None and known.stuck is not None:
            # What is on record here was written by a release that took the rejected fact before
            # it knew of the rejection, which is older.
            return _NOTHING
        for event in recorded:
            if cause_of(event)[0] != record.position:
                reason = (
                    f"decision {event.id} is caused by position {cause_of(event)[0]}, where no"
                    " fact of its key lies"
                )
                return Folded([], [], None, self._park(record, reason))
        turn = _Turn(record.position, is_open)
        return self._fold(record, turn, recorded, compare=compare)

    def resumes(self, record: Record) -> int | None:
        """Return the position of the rejected fact if a fact has its key go on from there."""
        known = self._keys.get(record.key)
        if known is None or known.stuck is None or self._passes_by(record):
            return None
        request = _request_in(record)
        if request is None or _rejection_of(request) != known.stuck.rejection:
            return None
        return known.stuck.position

    def resume(self, record: Record) -> None:
        """Begin to carry out a request, a fact that `resumes` its key.

        `fold_waiting` is to be called with all of the key's facts from the rejected one up to
        this one, then `end_waiting`. A torn key must have been brought before.
        """
        assert record.position >= self.facts, (record, self.facts)
        assert record.key not in self.torn, record
        self._proceed(record)
        known = self._keys[record.key]
        recorded, is_open = self.recorded.of(record)
        self._turn = _Turn(
            record.position,
            is_open,
            request=_request_in(record),
            stuck=known.stuck,
            recorded=deque(it for it in recorded if cause_of(it)[0] == record.position),
        )
        known.stuck = None
        self._change(record.key)

    def fold_waiting(
        self, records: Sequence[Record], *, compare: bool = False
    ) -> list[tuple[Record, Folded]]:
        """Fold facts that waited, the next ones of the key; return the result of each."""
        turn = self._turn
        assert turn is not None
        assert turn.stuck is not None
        assert turn.request is not None
        found = []
        for record in records:
            if turn.is_over:
                break
            rejected = record.position == turn.stuck.position
            if not (rejected and isinstance(turn.request.data, FactDropped)):
                recorded = _recorded_of(record, turn.recorded)
                step = structs.replace(turn, is_open=turn.is_open and not turn.recorded)
                found.append((record, self._fold(record, step, recorded, compare=compare)))
                turn.index, turn.is_over = step.index, step.is_over
        return found

    def end_waiting(self, record: Record) -> Folded:
        """Note that all facts that waited are folded; the key goes on."""
        turn, self._turn = self._turn, None
        assert turn is not None
        assert turn.request is not None
        if turn.is_over:
            return _NOTHING
        known = self._keys[record.key]
        recorded = list(turn.recorded)
        if len(recorded) > 1 or not all(isinstance(it.data, KeyResumed) for it in recorded):
            reason = f"decision {recorded[0].id} on record follows from no fact that waited"
            return Folded([], [], None, self._park(record, reason))
        new: list[Event] = []
        if not recorded and turn.is_open:
            data = KeyResumed(
                topic=self._processor.decisions, key=record.key, reader=self._processor.name
            )
            new.append(self._decision(data, turn.request, turn, turn.index, None))
        self._evolve(record.key, known, recorded + new)
        self.recorded.made(len(new))
        return Folded(new, recorded, None, None)

    def _proceed(self, record: Record) -> None:
        self.facts = record.position + 1
        decisions = self.recorded.next if self.settled else self._began
        self._place = Place(record.position, decisions)

    def _passes_by(self, record: Record) -> bool:
        return self._skips(record.key) or record.position < self._ahead.get(record.key, 0)

    def _fold(
        self, record: Record, turn: _Turn, recorded: list[Event], *, compare: bool
    ) -> Folded:
        """Fold a fact with its decisions on record; reject it where that fails."""
        if recorded and isinstance(recorded[0].data, FactRejected):
            self._stop(record, turn, recorded[0], recorded[0].data)
            return Folded([], recorded[:1], None, None)
        turn.index += len(recorded)
        known = self._keys.get(record.key)
        is_torn = False
        try:
            fact = decode_handled(record.value, self._types)
            level = 1 if fact is None else level_of(fact.data)
            if level > self._processor.level:
                on_record = bool(recorded) or not turn.is_open
                return self._fold_unsupported(record, turn, level, on_record=on_record)
            is_torn = True
            if turn.request is None and compare and fact is not None:
                _check_causes(recorded, fact, record.position)
            folded = self._fold_event(record, turn, fact, recorded, compare=compare)
        except UndecodableEvent as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - whatever a processor raises concerns its key alone
            reason = f"{type(error).__name__}: {error}"
        else:
            turn.index += len(folded.new)
            self.recorded.made(len(folded.new))
            return folded
        if recorded or not turn.is_open:
            turn.is_over = True
            return Folded([], [], None, self._park(record, reason))
        if known is None:
            self._keys[record.key] = KeyFold(self._processor.initial(record.key))
            is_torn = False
        return self._reject(record, turn, reason, is_torn=is_torn)

    def _fold_unsupported(
        self, record: Record, turn: _Turn, level: int, *, on_record: bool
    ) -> Folded:
        """Leave a key alone from the fact with an unsupported level on."""
        turn.is_over = True
        reason = self._leave_alone(record.key, record.position, level, on_record=on_record)
        if turn.request is not None:  # it is to go on before the request
            self.torn[record.key] = Torn()
        return Folded([], [], None, Rejected(record, reason, level))

    def _fold_event(
        self,
        record: Record,
        turn: _Turn,
        fact: Event | None,
        recorded: list[Event],
        *,
        compare: bool,
    ) -> Folded:
        if fact is None:
            return self._pass(record, recorded)
        known = self._keys.get(record.key)
        if known is None:
            known = self._keys[record.key] = KeyFold(self._processor.initial(record.key))
        if known.state is None and not self._reopen(record.key, known, fact):
            return self._pass(record, recorded)
        assert known.state is not None
        if not known.is_new(fact):
            return self._pass(record, recorded) if recorded else _NOTHING
        self._change(record.key)
        self._processor.evolve(known.state, fact.data)
        if turn.is_open:
            return self._decide(record, turn, known, fact, recorded)
        decided = self._processor.decide(known.state, fact.data) if compare else None
        self._evolve(record.key, known, recorded)
        return Folded([], recorded, decided, None) if recorded or compare else _NOTHING

    def _pass(self, record: Record, recorded: list[Event]) -> Folded:
        """Skip a fact that is not decided today, but fold its decisions on record."""
        if not recorded:
            return _NONE_DECIDED
        known = self._keys.get(record.key)
        if known is None:
            known = self._keys[record.key] = KeyFold(self._processor.initial(record.key))
        self._evolve(record.key, known, recorded)
        return Folded([], recorded, [], None)

    def _reopen(self, key: str, known: KeyFold[S], fact: Event) -> bool:
        """Give a key that has ended a state again, if the fact is one that asks for it."""
        if self._reopening is None or fact.type not in types_of(self._reopening.reopened_by):
            return False
        known.state = self._reopening.reopened(key)
        return True

    def _decide(
        self, record: Record, turn: _Turn, known: KeyFold[S], fact: Event, recorded: list[Event]
    ) -> Folded:
        """Decide, and complete what is on record."""
        assert known.state is not None
        decided = self._processor.decide(known.state, fact.data)
        if not decided and not recorded:
            self._evolve(record.key, known, [])
            return _NONE_DECIDED
        new = [
            self._decision(data, fact, turn, turn.index + ahead, known.trace_of(data, fact))
            for ahead, data in enumerate(decided[len(recorded) :])
        ]
        self._evolve(record.key, known, recorded + new)
        return Folded(new, recorded, decided, None)

    def _decision(
        self, data: Payload, fact: Event, turn: _Turn, index: int, traceparent: str | None
    ) -> Event:
        return decision(
            data,
            source=self._source,
            cause=fact,
            position=turn.position,
            index=index,
            traceparent=traceparent,
            request=turn.request,
        )

    def _evolve(self, key: str, known: KeyFold[S], events: list[Event]) -> None:
        self._change(key)
        for event in events:
            if known.state is not None and event.type in self._decided:
                self._processor.evolve(known.state, event.data)
            known.cause = cause_of(event)
        if known.state is not None and self._processor.ended(known.state):
            known.end()

    def _reject(self, record: Record, turn: _Turn, reason: str, *, is_torn: bool) -> Folded:
        """Decide that a fact is rejected."""
        data = FactRejected(
            topic=self._processor.decisions,
            key=record.key,
            partition=record.partition,
            position=record.position,
            reader=self._processor.name,
            reason=reason[:_REASON_MAX],
            value=record.value[:_VALUE_MAX].decode(errors="replace"),
        )
        event = self._decision(data, _event_in(record, data), turn, turn.index, None)
        event = structs.replace(event, time=now())
        self._stop(record, turn, event, data)
        if is_torn:
            end = Place(turn.position + 1, self.recorded.next + 1)
            begin = self.saving.get(record.key, self.changed[record.key])
            self.torn[record.key] = Torn(event.id, self.since, begin, end)
        self.recorded.made(1)
        return Folded([event], [], None, Rejected(record, data.reason))

    def _stop(self, record: Record, turn: _Turn, event: Event, data: FactRejected) -> None:
        """Have a key stand still before a fact that a decision rejects."""
        known = self._keys.get(record.key)
        if known is None:
            known = self._keys[record.key] = KeyFold(self._processor.initial(record.key))
        known.stuck = Stuck(event.id, record.position, data.reason)
        known.cause = cause_of(event)
        self._change(record.key)
        turn.is_over = True

    def _park(self, record: Record, reason: str) -> Rejected:
        """Leave a key alone because of a record; where it is to go on is still to be brought."""
        self._forget(record.key)
        self.parked[record.key] = Parked(reason=reason)
        self.torn[record.key] = Torn()
        self.changed.pop(record.key, None)
        return Rejected(record, reason)

    def _leave_alone(self, key: str, position: int, level: int, *, on_record: bool) -> str:
        """Leave a key alone from the fact with an unsupported level on; return why.

        `on_record` says whether decisions from that fact on are on record.
        """
        known = self._processor.level
        reason = (
            f"its logic level {level} is newer than those that this release of "
            f"{self._processor.name} knows (up to {known}): start a newer release"
        )
        # Where decisions are on record and not folded, their beginning is not known.
        decisions = self._began if on_record else self.decisions
        self.parked[key] = Parked(position, decisions, self._keys.get(key), reason, level)
        self._change(key)
        self._forget(key)
        return reason

    def _forget(self, key: str) -> None:
        self._keys.pop(key, None)
        self.recorded.forget(key)


def _check_causes(recorded: list[Event], fact: Event, position: int) -> None:
    """Assert that decisions on record were caused by this fact."""
    for event in recorded:
        assert event.cause == fact.id, (
            f"decision {event.id} is caused by the fact {event.cause}, "
            f"and at position {position} lies {fact.id}"
        )


def _recorded_of(record: Record, recorded: deque[Event]) -> list[Event]:
    """Remove and return the next decisions on record, as far as they are on a fact that waited."""
    if not recorded:
        return []
    first = recorded[0].data
    if isinstance(first, FactRejected):
        return [recorded.popleft()] if first.position == record.position else []
    found = []
    with contextlib.suppress(msgspec.DecodeError):
        name = msgspec.json.decode(record.value, type=_Head).id
        while recorded and recorded[0].cause == name and is_own(recorded[0].data):
            found.append(recorded.popleft())
    return found


def is_own(data: Payload) -> bool:
    """Return whether a decision is the processor's, not the runtime's."""
    return not isinstance(data, FactRejected | KeyResumed)


def _request_in(record: Record) -> Event | None:
    """Return the operator's request that a fact is; None for others."""
    with contextlib.suppress(UndecodableEvent):
        return decode_handled(record.value, _REQUESTS)
    return None


def _rejection_of(request: Event) -> str:
    assert isinstance(request.data, FactRetried | FactDropped), request
    return request.data.rejection


def _event_in(record: Record, data: FactRejected) -> Event:
    """Return the event of a rejected fact; of one that cannot be decoded, one with its place."""
    try:
        return decode(record.value)
    except UndecodableEvent:
        place = f"{record.topic}/{record.partition}/{record.position}/{record.key}"
        return Event(place, "", record.key, now(), data)

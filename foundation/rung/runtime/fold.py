"""One partition of a decider: how facts and decisions merge into the state of each key.

Theory of operation. A partition holds many keys, and each key is folded on its own: a fact, then
the decisions that it caused, then the key's next fact. The decisions come from one of two places:

* **on record**: the decisions topic already holds decisions of this key with this or a later
  cause. They are authoritative, even if today's code would decide otherwise.
* **decided anew**: the fact lies behind the key's last recorded cause. The last recorded cause
  itself is decided again, because a crash may have cut its decisions short: those that are
  missing, by index, are appended.

Two things are handled at the door, once for all processes: a fact whose origin's sequence was
already seen is dropped, and so is a decision whose cause is not later than the last one seen.

A key whose process raised is quarantined: nothing of it is folded or decided any more until the
process starts again. Nothing here knows the ledger; `loop.py` and `audit.py` do.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from msgspec import Struct, field

from rung.events import Event, Payload, UndecodableEvent, decision, decode, decode_from
from rung.events.envelope import experiment_of
from rung.ledger import Record
from rung.runtime.process import Process

S = TypeVar("S")

_TRACES_MAX: Final = 1_000
"""Of so many experiments is remembered what each follows from; the oldest is forgotten."""


class KeyFold(Struct, Generic[S]):
    """What is known of one key."""

    state: S
    marks: dict[str, int] = field(default_factory=dict[str, int])
    """Origin → the highest sequence folded."""
    cause: tuple[int, int] = (-1, -1)
    """Position and index of the last decision folded."""
    traces: dict[str, str] = field(default_factory=dict[str, str])
    """Experiment → the `traceparent` of the first fact about it that had one."""

    def remember(self, fact: Event) -> None:
        """Remember which request the experiment of a fact follows from."""
        experiment_id = experiment_of(fact.data)
        if fact.traceparent is None or experiment_id is None or experiment_id in self.traces:
            return
        self.traces[experiment_id] = fact.traceparent
        if len(self.traces) > _TRACES_MAX:
            del self.traces[next(iter(self.traces))]

    def trace_of(self, data: Payload, cause: Event) -> str | None:
        """Return the request that a decision follows from.

        It is that of its cause, unless the cause is about another experiment: a released slot
        goes to whoever waits for it, and what that one waits for is another request.
        """
        if not self.traces and cause.traceparent is None:
            return None
        experiment_id = experiment_of(data)
        if cause.traceparent is not None and experiment_id in {None, experiment_of(cause.data)}:
            return cause.traceparent
        return None if experiment_id is None else self.traces.get(experiment_id)


class Snapshot(Struct, Generic[S]):
    """A partition's fold between two facts."""

    version: int
    facts: int
    """Position of the next fact to fold."""
    decisions: int
    """Position behind the last decision folded."""
    keys: dict[str, KeyFold[S]]


class Rejected(NamedTuple):
    """A record that could not be folded, and why."""

    record: Record
    reason: str


class Folded(NamedTuple):
    """What came of one fact: the decisions to append, and what its process once decided."""

    new: list[Event]
    recorded: list[Event]
    decided: list[Payload] | None
    """What the process decides today; None where it was not asked."""
    rejected: Rejected | None


_NOTHING = Folded([], [], None, None)
_NONE_DECIDED = Folded([], [], [], None)


class PartitionFold(Generic[S]):
    """The fold of one partition; the caller brings facts and recorded decisions."""

    def __init__(self, process: Process[S], snapshot: Snapshot[S] | None = None) -> None:
        self._process = process
        self._source = f"/rung/{process.name}"
        self._keys: dict[str, KeyFold[S]] = snapshot.keys if snapshot else {}
        self._recorded: dict[str, deque[Event]] = {}
        self._quarantined: dict[str, str] = {}
        self.contradicted = False
        """Whether a decision on record is missing in the snapshot, which is therefore wrong."""
        self.facts = snapshot.facts if snapshot else 0
        self.decisions = snapshot.decisions if snapshot else 0

    @property
    def quarantined(self) -> dict[str, str]:
        """Keys that are no longer folded, with the reason."""
        return self._quarantined

    def snapshot(self) -> Snapshot[S] | None:
        """Return the fold as it is.

        None while a key is quarantined, for it must be retried, and while decisions on record
        wait for their facts, for whoever began from the snapshot would not read them again.
        """
        if self._quarantined or self._recorded:
            return None
        return Snapshot(self._process.version, self.facts, self.decisions, self._keys)

    def waiting(self) -> Iterator[tuple[str, int]]:
        """Yield key and cause's position of decisions on record that wait for their facts."""
        for key, events in self._recorded.items():
            if key not in self._quarantined:
                yield from ((key, _cause(event)[0]) for event in events)

    def state(self, key: str) -> S | None:
        """Return a key's state, None if nothing is known of it."""
        known = self._keys.get(key)
        return known.state if known else None

    def states(self) -> Iterator[S]:
        """Yield the states of all keys."""
        return (known.state for known in self._keys.values())

    def record(self, records: Sequence[Record]) -> list[Rejected]:
        """Take in decisions on record; must precede the facts that caused them."""
        rejected = []
        for record in records:
            assert record.position == self.decisions, (record, self.decisions)
            self.decisions += 1
            try:
                event = decode_from(record.topic, record.value)
            except UndecodableEvent as error:
                self._quarantined[record.key] = str(error)
                rejected.append(Rejected(record, str(error)))
                continue
            if self._is_later(record.key, event):
                self.contradicted |= _cause(event)[0] < self.facts
                self._recorded.setdefault(record.key, deque()).append(event)
        return rejected

    def _is_later(self, key: str, event: Event) -> bool:
        waiting = self._recorded.get(key)
        known = self._keys.get(key)
        last = _cause(waiting[-1]) if waiting else known.cause if known else (-1, -1)
        return _cause(event) > last

    def fold(self, record: Record, *, compare: bool = False) -> Folded:
        """Fold one fact and what follows from it.

        With `compare` the process is asked also where its decisions are on record, and these must
        name this very fact.
        """
        assert record.position >= self.facts, (record, self.facts)
        self.facts = record.position + 1
        if record.key in self._quarantined:
            return _NOTHING
        try:
            fact = decode(record.value)
        except UndecodableEvent as error:
            return Folded([], [], None, Rejected(record, str(error)))
        try:
            return self._fold(record, fact, compare=compare)
        except Exception as error:  # noqa: BLE001 - whatever a process raises concerns its key alone
            reason = f"{type(error).__name__}: {error}"
            self._quarantined[record.key] = reason
            return Folded([], [], None, Rejected(record, reason))

    def _fold(self, record: Record, fact: Event, *, compare: bool) -> Folded:
        known = self._keys.get(record.key)
        if known is None:
            known = self._keys[record.key] = KeyFold(self._process.initial(record.key))
        if fact.origin is not None and fact.sequence is not None:
            if fact.sequence <= known.marks.get(fact.origin, -1):
                return _NOTHING
            known.marks[fact.origin] = fact.sequence
        if fact.traceparent is not None:
            known.remember(fact)
        self._process.evolve(known.state, fact.data)
        waiting = self._recorded.get(record.key)
        if waiting is None:
            return self._decide(record, known, fact, [])
        last = _cause(waiting[-1])[0]
        recorded = self._take_recorded(record, waiting)
        if compare:
            _check_causes(recorded, fact, record.position)
        if record.position >= last:
            return self._decide(record, known, fact, recorded)
        decided = self._process.decide(known.state, fact.data) if compare else None
        if recorded:
            self._evolve(known, recorded)
        elif decided is None:
            return _NOTHING
        return Folded([], recorded, decided, None)

    def _decide(
        self, record: Record, known: KeyFold[S], fact: Event, recorded: list[Event]
    ) -> Folded:
        """Ask the process, and complete what is on record of its answer."""
        decided = self._process.decide(known.state, fact.data)
        if not decided and not recorded:
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
        self._evolve(known, recorded + new)
        return Folded(new, recorded, decided, None)

    def _evolve(self, known: KeyFold[S], events: list[Event]) -> None:
        for event in events:
            self._process.evolve(known.state, event.data)
            known.cause = _cause(event)

    def _take_recorded(self, record: Record, waiting: deque[Event]) -> list[Event]:
        """Return the decisions on record that this fact caused."""
        recorded = []
        while waiting and _cause(waiting[0])[0] <= record.position:
            event = waiting.popleft()
            assert _cause(event)[0] == record.position, (
                f"decision {event.id} is caused by position {_cause(event)[0]}, "
                "where no fact of its key lies"
            )
            recorded.append(event)
        if not waiting:
            del self._recorded[record.key]
        return recorded


def _check_causes(recorded: list[Event], fact: Event, position: int) -> None:
    """Hold that decisions on record were made of this fact, and not of one that lay there once."""
    for event in recorded:
        assert event.cause == fact.id, (
            f"decision {event.id} is caused by the fact {event.cause}, "
            f"and at position {position} lies {fact.id}"
        )


def _cause(event: Event) -> tuple[int, int]:
    assert event.causeposition is not None, event
    assert event.causeindex is not None, event
    return event.causeposition, event.causeindex


def snapshot_type(process: Process[Any]) -> Any:
    """Return the type that msgspec needs to read a snapshot of this process."""
    return Snapshot[process.state_type]  # type: ignore[name-defined]

"""Relays: append events of one topic to another one, under another key.

What a processor needs from elsewhere is relayed as a fact onto its own topic, so that the order in
which it saw events is itself on record. Relaying an event twice changes nothing:

* of a fact, the origin is the partition that it comes from, and the sequence its position there;
* of a decision, the origin is the decision's key in that partition, and the sequence is made of
  its cause. A decision that two replicas wrote is relayed twice under one number, and counts once.
  Its position cannot serve as sequence, and causes grow within one key only: a key that was
  left alone for a while is relayed later than others.

An event that cannot be read, or makes the relay raise, becomes a dead letter; the relay goes on.

It relays what is `staged`: what it appends, and its position, become durable with that or behind.
"""

from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, Final, NamedTuple, Protocol

from rung.events import Event, Payload, fact
from rung.ledger import Ledger, Record, staged
from rung.runtime.assignment.assignment import AllPartitions, Assignment
from rung.runtime.consumer import Consumer
from rung.runtime.fact_writer import now
from rung.runtime.processor.processor import types_of
from rung.runtime.retry import supervise

_DECISIONS_MAX: Final = 1 << 20
"""Of one fact. With 33 bits for the fact's position, a number still fits into 53."""

Number = tuple[str, int]
"""The origin of a fact, and the origin's sequence."""


def _kept(data: Payload) -> Sequence[Payload]:
    return (data,)


class Relay(NamedTuple):
    """A stateless translation of one topic onto another."""

    name: str
    """Under which its position is committed."""
    topic: str
    """What it follows."""
    source: str
    """Of the facts that it writes."""
    handles: UnionType | type[Payload]
    """The types that it translates; all others are skipped."""
    appends: tuple[str, ...]
    """The topics of these facts."""
    translate: Callable[[Any], Sequence[Payload]] = _kept
    """From an event's data to facts, at most one per destination key; pure. By default the fact is
    the event itself: only its topic and key change, which its type says (`RELAYED`)."""


async def relay(ledger: Ledger, it: Relay, assignment: Assignment | None = None) -> None:
    """Run a relay on the assigned partitions, by default all, until cancelled, in order in each.

    Raises:
        LedgerError: one that does not pass by itself.
    """

    async def work(partition: int) -> None:
        async def run() -> None:
            await _Relaying(staged(ledger), it, partition).run()

        await supervise(run, name=f"{it.name}/{partition}")

    await (assignment or AllPartitions(ledger)).run(it.topic, work)


def relayed(it: Relay, ledger_id: str, record: Record, event: Event) -> list[Event]:
    """Return the facts that a relay makes of an event."""
    number = number_of(ledger_id, record, event)
    return numbered(it, event, number, it.translate(event.data))


def number_of(ledger_id: str, record: Record, event: Event) -> Number:
    """Return the origin and sequence of the facts that are made of a record."""
    origin = f"{ledger_id}/{record.topic}/{record.partition}"
    if event.causeposition is None or event.causeindex is None:
        return origin, record.position
    assert event.causeindex < _DECISIONS_MAX, event
    return f"{origin}/{event.key}", event.causeposition * _DECISIONS_MAX + event.causeindex


class Writes(Protocol):
    """A component that makes facts of events."""

    @property
    def source(self) -> str:
        """Of its facts."""

    @property
    def appends(self) -> tuple[str, ...]:
        """Their topics."""


def numbered(it: Writes, event: Event, number: Number, facts: Sequence[Payload]) -> list[Event]:
    """Wrap facts that were made of an event, under an origin and its sequence.

    They have that number in common, so they must differ in topic or key.
    """
    origin, sequence = number
    made = [
        fact(
            data,
            source=it.source,
            origin=origin,
            sequence=sequence,
            time=now(),
            cause=event.id,
            traceparent=event.traceparent,
        )
        for data in facts
    ]
    for each in made:
        assert each.topic in it.appends, f"{each.type} is on {each.topic}, which is not declared"
    return made


class _Relaying(Consumer):
    """One partition of a relay."""

    def __init__(self, ledger: Ledger, it: Relay, partition: int) -> None:
        super().__init__(ledger, it.name, it.topic, partition, types_of(it.handles))
        self._it = it

    async def _take(self, record: Record, event: Event) -> list[Event]:
        return relayed(self._it, self._ledger.id, record, event)

    async def _take_again(self, record: Record, event: Event) -> list[Event]:
        # An origin of its own: facts of later events have been relayed before.
        origin, sequence = number_of(self._ledger.id, record, event)
        facts = self._it.translate(event.data)
        return numbered(self._it, event, (f"{origin}/{sequence}", 0), facts)

"""Carries what one topic says over to another, or does what it asks and records that.

What a process must know from elsewhere is forwarded as a fact onto its own topic, so that the
order in which it saw the world is itself on record. Forwarding something twice changes nothing:

* of a fact, the origin is the partition that it comes from, and the sequence its position there;
* of a decision, the origin is the decision's key in that partition, and the sequence is made of
  its cause. A decision may lie there twice, if two replicas believed in one partition; then it is
  forwarded twice under one number, and counts once. Its place says nothing, and causes grow key by
  key only: a key that could not be decided for a while follows later than its neighbours.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from rung.events import (
    Event,
    LedgerError,
    Payload,
    UndecodableEvent,
    decode,
    decode_from,
    encode,
    fact,
)
from rung.events.errors import ObjectError
from rung.ledger import Draft, Ledger, Record
from rung.runtime import tracing
from rung.runtime.assignment import Share, Whole
from rung.runtime.deadletter import dead_letter, say_rejected
from rung.runtime.fact_writer import now
from rung.runtime.fold import Rejected
from rung.runtime.health.loops import CURRENT
from rung.runtime.retry import supervise
from rung.runtime.seen import Seen
from rung.runtime.shield import finish

Translate = Callable[[Event], Awaitable[Sequence[Payload]]]

_DECISIONS_MAX: Final = 1 << 20
"""Of one fact. With 33 bits for the fact's position, a number still fits into 53."""
_AGAIN_S: Final = 3_600.0
"""Between two tries of what was postponed."""

_log = structlog.get_logger()


async def forward(  # noqa: PLR0913 - what it takes
    ledger: Ledger,
    *,
    name: str,
    topic: str,
    source: str,
    translate: Translate,
    share: Share | None = None,
    acts: bool = False,
) -> None:
    """Follow a topic from where it was left, and append what `translate` makes of its events.

    Runs until cancelled. Events are taken in order within a partition.

    Args:
        ledger: read from and appended to.
        name: under which the position is remembered.
        topic: what is followed.
        source: who signs the forwarded facts.
        translate: from an event to facts, at most one per destination key. It may have effects,
            which must be safe to repeat: it sees an event again after a crash.
        share: says which partitions are this replica's; all are if not given.
        acts: `translate` has effects, so it is not shown decisions that readers do not take, and
            a backlog of them keeps nobody from relying on this process. Where an object store
            refuses what it does, it goes on with the next, and tries this one now and then.

    Raises:
        LedgerError: one that does not pass by itself.
    """

    async def work(partition: int) -> None:
        seen = Seen(ledger, name, topic, partition) if acts else None
        forwarder = _Forwarder(ledger, name, topic, partition, source, translate, seen)
        await supervise(forwarder.run, name=f"{name}/{partition}", awaited=not acts)

    await (share or Whole(ledger)).hold(topic, work)


def number_of(ledger_id: str, record: Record, event: Event) -> tuple[str, int]:
    """Return the origin and sequence of what is forwarded of a record."""
    origin = f"{ledger_id}/{record.topic}/{record.partition}"
    if event.causeposition is None or event.causeindex is None:
        return origin, record.position
    assert event.causeindex < _DECISIONS_MAX, event
    return f"{origin}/{event.key}", event.causeposition * _DECISIONS_MAX + event.causeindex


class _Forwarder:
    def __init__(  # noqa: PLR0913, PLR0917 - what `forward` takes, and the partition
        self,
        ledger: Ledger,
        name: str,
        topic: str,
        partition: int,
        source: str,
        translate: Translate,
        seen: Seen | None = None,
    ) -> None:
        self._ledger = ledger
        self._name = name
        self._topic = topic
        self._partition = partition
        self._source = source
        self._translate = translate
        self._seen = seen

    async def run(self) -> None:
        start = await self._ledger.position(self._name, self._topic, self._partition)
        if self._seen is not None:
            start = await self._seen.open(start)
        trying = asyncio.create_task(self._try_postponed())
        try:
            async for records in self._ledger.follow(self._topic, self._partition, start):
                await finish(self._carry(records))
        finally:
            trying.cancel()
            await asyncio.gather(trying, return_exceptions=True)

    async def _carry(self, records: Sequence[Record]) -> None:
        drafts: list[Draft] = []
        for record in records:
            drafts += await self._forward(record)
        if drafts:
            await self._ledger.append(drafts)
        if self._seen is not None:
            await self._seen.save()
        behind = records[-1].position + 1
        await self._ledger.commit(self._name, self._topic, self._partition, behind)

    async def _try_postponed(self) -> None:
        """Try what was postponed, at the start and now and then."""
        if self._seen is None:
            return
        CURRENT.set(None)  # the loop's signs of life are those of the loop alone
        while True:
            for position in self._seen.postponed:
                try:
                    await self._try_again(self._seen, position)
                except LedgerError as error:
                    _log.warning("not tried again yet", name=self._name, reason=str(error))
                except ObjectError:
                    continue  # said already; next time
            await asyncio.sleep(_AGAIN_S)

    async def _try_again(self, seen: Seen, position: int) -> None:
        for record in await self._ledger.read(self._topic, self._partition, position, 1):
            event = self._decode(record)
            origin, sequence = number_of(self._ledger.id, record, event)
            # An origin of its own: what was forwarded of later decisions went before.
            await self._ledger.append(await self._facts(event, (f"{origin}/{sequence}", 0)))
        seen.settle(position)
        await seen.save()

    async def _forward(self, record: Record) -> list[Draft]:
        try:
            event = self._decode(record)
        except UndecodableEvent as error:
            rejected = Rejected(record, str(error))
            say_rejected(self._name, [rejected])
            return [dead_letter(self._ledger.id, self._name, rejected)]
        if self._seen is not None and not self._seen.is_new(record.position, event):
            return []
        try:
            return await self._facts(event, number_of(self._ledger.id, record, event))
        except ObjectError:
            if self._seen is None:
                raise
            self._seen.postpone(record.position)
            return []

    def _decode(self, record: Record) -> Event:
        """Return the event; what is to be acted on must say what caused it."""
        if self._seen is None:
            return decode(record.value)
        return decode_from(record.topic, record.value)

    async def _facts(self, event: Event, number: tuple[str, int]) -> list[Draft]:
        """Return what is appended of an event, under an origin and its number there.

        Raises:
            ObjectError: an object store refuses what it asks for.
        """
        origin, sequence = number
        facts = [
            fact(
                data,
                source=self._source,
                origin=origin,
                sequence=sequence,
                time=now(),
                cause=event.id,
                traceparent=event.traceparent,
            )
            for data in await self._act_on(event)
        ]
        return [Draft(item.topic, item.key, encode(item)) for item in facts]

    async def _act_on(self, event: Event) -> Sequence[Payload]:
        """Translate; where that has effects, what is logged of them says what they are for."""
        if self._seen is None:
            return await self._translate(event)
        with tracing.about(event):
            return await self._translate(event)

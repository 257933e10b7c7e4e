"""Carries what one topic says over to another, or does what it asks and records that.

What a process must know from elsewhere is forwarded as a fact onto its own topic, so that the
order in which it saw the world is itself on record. The forwarded fact's origin is the partition
that it comes from and its sequence the position there: forwarding one twice, after a crash,
changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rung.events import Event, Payload, UndecodableEvent, decode, encode, fact
from rung.host.fold import Rejected
from rung.host.loop import dead_letter
from rung.host.supervise import supervise
from rung.host.writer import now
from rung.ledger import Draft, Ledger, Record

Translate = Callable[[Event], Awaitable[Sequence[Payload]]]


async def forward(
    ledger: Ledger, *, name: str, topic: str, source: str, translate: Translate
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
    """
    async with asyncio.TaskGroup() as group:
        for partition in range(ledger.partitions(topic)):
            forwarder = _Forwarder(ledger, name, topic, partition, source, translate)
            group.create_task(supervise(forwarder.run, name=f"{name}/{partition}"))


class _Forwarder:
    def __init__(  # noqa: PLR0913, PLR0917 - what `forward` takes, and the partition
        self,
        ledger: Ledger,
        name: str,
        topic: str,
        partition: int,
        source: str,
        translate: Translate,
    ) -> None:
        self._ledger = ledger
        self._name = name
        self._topic = topic
        self._partition = partition
        self._source = source
        self._translate = translate
        self._origin = f"{ledger.id}/{topic}/{partition}"

    async def run(self) -> None:
        start = await self._ledger.position(self._name, self._topic, self._partition)
        async for records in self._ledger.follow(self._topic, self._partition, start):
            drafts: list[Draft] = []
            for record in records:
                drafts += await self._forward(record)
            if drafts:
                await self._ledger.append(drafts)
            await self._ledger.commit(
                self._name, self._topic, self._partition, records[-1].position + 1
            )

    async def _forward(self, record: Record) -> list[Draft]:
        try:
            event = decode(record.value)
        except UndecodableEvent as error:
            return [dead_letter(self._ledger.id, self._name, Rejected(record, str(error)))]
        facts = [
            fact(
                data,
                source=self._source,
                origin=self._origin,
                sequence=record.position,
                time=now(),
                cause=event.id,
            )
            for data in await self._translate(event)
        ]
        return [Draft(item.topic, item.key, encode(item)) for item in facts]

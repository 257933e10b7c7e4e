"""Answers to pins, where no checkpoint-gc runs."""

import asyncio

from rung.events import decision, decode, topic
from rung.events.checkpoint import CheckpointPinned, PinAnswered
from rung.ledger import Draft, Ledger


async def answer_pins(ledger: Ledger) -> None:
    """Answer each pin from now on that its checkpoint stays, until cancelled."""
    async with asyncio.TaskGroup() as group:
        for partition in range(ledger.partitions(topic.EXPERIMENTS)):
            position = await ledger.end(topic.EXPERIMENTS, partition)
            group.create_task(_answer(ledger, partition, position))


async def _answer(ledger: Ledger, partition: int, position: int) -> None:
    async for records in ledger.follow(topic.EXPERIMENTS, partition, position):
        for record in records:
            event = decode(record.value)
            if not isinstance(event.data, CheckpointPinned):
                continue
            data = PinAnswered(
                experiment_id=event.data.experiment_id,
                checkpoint_id=event.data.checkpoint_id,
                by=event.data.by,
                refused="",
            )
            source = "/rung/checkpoint-gc"
            made = decision(data, source=source, cause=event, position=record.position, index=0)
            await ledger.append([Draft.of(made)])

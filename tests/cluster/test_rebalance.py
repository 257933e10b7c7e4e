"""A rebalance disturbs the work on no partition that stays with its replica."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from rung.events import topic
from rung.ledger.kafka import KafkaSettings, parse_address
from rung.runtime.assignment.faust_application import FaustAssignment
from rung.runtime.assignment.settings import GroupSettings
from support.ledger.brokers import Ground

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


class Replica:
    """A member of the group that notes when work on partitions begins and ends."""

    def __init__(self, url: str) -> None:
        self.notes: list[str] = []
        self._changed = asyncio.Condition()
        self.assignment = FaustAssignment(
            parse_address(url),
            KafkaSettings(),
            service="rebalanced",
            topics=[topic.EXPERIMENTS],
            settings=GroupSettings(session_timeout_s=6, rebalance_timeout_s=3),
        )

    @property
    def partitions(self) -> set[int]:
        """The partitions that it works on."""
        begun, ended = (
            [note[1:] for note in self.notes if note[0] == sign] for sign in ("+", "-")
        )
        return {int(number) for number in begun if begun.count(number) > ended.count(number)}

    async def _work(self, partition: int) -> None:
        await self._note(f"+{partition}")
        try:
            await asyncio.Event().wait()
        finally:
            await self._note(f"-{partition}")

    async def _note(self, note: str) -> None:
        async with self._changed:
            self.notes.append(note)
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until its work meets a condition."""
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(condition)

    @contextlib.asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Be a member of the group while the context lasts."""
        async with self.assignment.joined():
            working = asyncio.create_task(self.assignment.run(topic.EXPERIMENTS, self._work))
            try:
                yield
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)


async def test_partitions_that_stay_are_worked_on_all_the_time(ground: Ground) -> None:
    """One replica more takes some of the first's; the others do not notice, nor when it leaves."""
    ledger = await ground.open()
    everything = set(range(ledger.partitions(topic.EXPERIMENTS)))
    first, second = Replica(ground.url), Replica(ground.url)
    async with first.joined():
        await first.until(lambda: first.partitions == everything)
        async with second.joined():
            await second.until(lambda: bool(second.partitions))
            moved = second.partitions
            await first.until(lambda: first.partitions == everything - moved)
            assert sorted(first.notes[len(everything) :]) == sorted(f"-{it}" for it in moved)
        await first.until(lambda: first.partitions == everything)
        changes = first.notes[len(everything) + len(moved) :]
        assert sorted(changes) == sorted(f"+{it}" for it in moved)
    assert first.partitions == set()
    await ledger.close()

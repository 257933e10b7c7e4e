"""Relays on a ledger: what they write of a batch, and when they say how far they are."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from rung.events import Event, LedgerUnavailable, topic
from rung.events.experiment import PauseRequested, ResumeRequested
from rung.ledger import Draft, MemoryLedger
from rung.runtime.relay import Relay, relay
from runtime.tally import pause, resume

IT = Relay(
    name="copier",
    topic=topic.EXPERIMENTS,
    source="/rung/copier",
    handles=PauseRequested,
    appends=(topic.EXPERIMENTS,),
    translate=lambda data: [ResumeRequested(experiment_id=data.experiment_id)],
)
PLACE = (topic.EXPERIMENTS, 0)


class Counted(MemoryLedger):
    """Notes what is written, and fails where that is wanted."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.writes: list[str] = []
        self.failing = 0
        self.wrote = asyncio.Event()

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append."""
        if self.failing and any(b"/rung/copier" in draft.value for draft in drafts):
            self.failing -= 1
            raise LedgerUnavailable("not now")
        return await super().append(drafts)

    async def append_and_commit(
        self, drafts: Sequence[Draft], consumer: str, topic: str, partition: int, position: int
    ) -> list[int]:
        """Append and commit."""
        positions = await super().append_and_commit(drafts, consumer, topic, partition, position)
        self.writes[-1] = f"both {position}"  # in place of the commit
        return positions

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Commit."""
        await super().commit(consumer, topic, partition, position)
        self.writes.append(f"commit {position}")
        self.wrote.set()

    async def until(self, position: int) -> None:
        """Wait until the relay committed a position, or a later one."""
        async with asyncio.timeout(20):
            while await self.position(IT.name, *PLACE) < position:
                self.wrote.clear()
                await self.wrote.wait()


@contextlib.asynccontextmanager
async def relaying(ledger: Counted) -> AsyncIterator[None]:
    """Run the relay."""
    task = asyncio.create_task(relay(ledger, IT))
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def write(ledger: Counted, *events: Event) -> None:
    """Append facts."""
    await ledger.append([Draft.of(event) for event in events])


async def test_facts_and_position_are_one_step() -> None:
    """What is made of a batch and the position behind it are written in one step."""
    ledger = Counted()
    async with relaying(ledger):
        await write(ledger, pause(1, "a"), pause(2, "b"))
        await ledger.until(2)
    assert ledger.writes[0] == "both 2"
    assert await ledger.end(*PLACE) == 4


async def test_batches_of_which_nothing_is_made_are_committed_now_and_then() -> None:
    """Passing over events costs a few commits, however many batches there are, and is seen."""
    ledger = Counted()
    clock = asyncio.get_running_loop().time
    began = clock()
    async with relaying(ledger):
        for number in range(1, 101):
            await write(ledger, resume(number, "a"))
            await asyncio.sleep(0)
        await ledger.until(100)
        took = clock() - began
    assert len(ledger.writes) <= 3 + 2 * took
    assert ledger.writes[-1] == "commit 100"


async def test_what_was_not_written_is_not_passed() -> None:
    """Where appending failed, the position stays before the batch, which is taken again."""
    ledger = Counted()
    ledger.failing = 3
    async with relaying(ledger):
        await write(ledger, resume(1, "a"))
        await write(ledger, pause(2, "a"))
        await ledger.until(2)
    assert ledger.failing == 0
    assert [it for it in ledger.writes if it not in {"commit 1", "commit 3"}] == ["both 2"]
    assert await ledger.end(*PLACE) == 3


async def test_a_loop_beside_does_not_end_in_silence() -> None:
    """An error of any kind ends the consumer, which then says so and does not stand still."""
    ledger = Broken()
    await write(ledger, resume(1, "a"))
    with pytest.raises(RuntimeError, match="of another kind"):
        async with asyncio.timeout(20):
            await relay(ledger, IT)


class Broken(Counted):
    """Cannot commit, for a reason that no ledger names."""

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Fail."""
        raise RuntimeError("of another kind")

"""What the tests of the scheduler's shell share: a clock moved by hand, and eyes on a ledger."""

import asyncio

from rung.events import Event, Payload, decode, partition_of
from rung.ledger import Ledger
from rung.runtime import FactWriter
from support.scheduler.scenario import POOL


class ManualClock:
    """A clock that one sleeper waits for and that a test moves."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._wake = asyncio.Event()
        self._asleep = asyncio.Event()
        self._until = 0.0

    def now(self) -> float:
        """Return the time to which the test moved it."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return once the test moved the clock so far."""
        self._until = self._now + seconds
        self._wake.clear()
        self._asleep.set()
        await self._wake.wait()

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking the sleeper whenever it wanted; wait until it sleeps again."""
        end = self._now + seconds
        await self._asleep.wait()
        while self._until <= end:
            self._now = self._until
            await self._rouse()
        self._now = end

    async def jump(self, seconds: float) -> None:
        """Let time pass in one go, as for a process that was stopped meanwhile."""
        await self._asleep.wait()
        self._now += seconds
        await self._rouse()

    async def _rouse(self) -> None:
        self._asleep.clear()
        self._wake.set()
        await self._asleep.wait()


def writer(ledger: Ledger, origin: str = "test") -> FactWriter:
    """Return a writer for whatever the other services would write."""
    return FactWriter(ledger, source="/rung/test", origin=origin)


async def all_of(ledger: Ledger, topic: str, *kinds: type[Payload]) -> list[Payload]:
    """Return what lies on the pool's partition of a topic, of these kinds."""
    partition = partition_of(POOL, ledger.partitions(topic))
    records = await ledger.read(topic, partition, 0, 1_000_000)
    events = [decode(record.value).data for record in records]
    return [event for event in events if not kinds or isinstance(event, kinds)]


async def next_of(ledger: Ledger, topic: str, kind: type[Payload], count: int = 1) -> list[Event]:
    """Wait until so many events of a kind lie on the pool's partition, and return them."""
    partition = partition_of(POOL, ledger.partitions(topic))
    found: list[Event] = []
    async with asyncio.timeout(20):
        async for records in ledger.follow(topic, partition, 0):
            events = [decode(record.value) for record in records]
            found += [event for event in events if isinstance(event.data, kind)]
            if len(found) >= count:
                break
    return found

"""What followers of one partition in one process have to do with each other."""

import asyncio
from typing import Any

import pytest

from rung.events import LedgerUnavailable, topic
from rung.events.errors import LedgerTrimmed
from rung.ledger.kafka import Address, KafkaSettings, parse_address
from rung.ledger.kafka.follower import Follower
from rung.ledger.port import Record

pytestmark = pytest.mark.ledger


class Away:
    """A cluster of which no broker takes a connection."""

    settings = KafkaSettings()
    address: Address = parse_address("kafka://localhost:1")

    def options(self) -> dict[str, Any]:
        """Refuse to configure a client."""
        raise ConnectionRefusedError

    async def started(self, client: Any) -> Any:
        """Return a client as it is."""
        return client


class Shelf:
    """A reader of a partition that is as long as whoever places a follower there says."""

    async def place(self, topic: str, partition: int, position: int) -> tuple[int, int]:
        """Return the position as the end."""
        return position, position

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return what is there up to position 9."""
        return [Record(topic, partition, at, "k", b"") for at in range(position, 9)]


async def test_who_waits_is_woken_when_another_goes_ahead() -> None:
    """What lies between is fetched for nobody any more: the one behind must read it itself."""
    follower = Follower(Away(), Shelf())  # type: ignore[arg-type]
    behind = follower.follow(topic.EXPERIMENTS, 0, 5)
    ahead = follower.follow(topic.EXPERIMENTS, 0, 9)
    waiting = asyncio.ensure_future(anext(behind))
    await asyncio.sleep(0)
    assert not waiting.done()
    other = asyncio.ensure_future(anext(ahead))
    records = await asyncio.wait_for(waiting, 5)
    assert [record.position for record in records] == [5, 6, 7, 8]
    assert not other.done()
    await follower.close(LedgerUnavailable("closed"))
    with pytest.raises(LedgerUnavailable):
        await other


class Trimmed(Shelf):
    """A shelf whose records before position 9 retention removes while one of them is read."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.trimmed = asyncio.Event()

    async def place(self, topic: str, partition: int, position: int) -> tuple[int, int]:
        """Return the position, and an end after it."""
        return position, 12

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return what is there up to position 12, or say that it was trimmed."""
        if position >= 9:
            return [Record(topic, partition, at, "k", b"") for at in range(position, 12)]
        self.asked.set()
        await self.trimmed.wait()
        raise LedgerTrimmed("trimmed", first=9)


async def test_one_ahead_does_not_fail_when_the_position_of_another_is_trimmed() -> None:
    """Its position exists; the follower behind gets the error."""
    shelf = Trimmed()
    follower = Follower(Away(), shelf)  # type: ignore[arg-type]
    behind = asyncio.ensure_future(anext(follower.follow(topic.EXPERIMENTS, 0, 5)))
    await shelf.asked.wait()
    ahead = asyncio.ensure_future(anext(follower.follow(topic.EXPERIMENTS, 0, 9)))
    await asyncio.sleep(0)
    shelf.trimmed.set()
    assert [record.position for record in await asyncio.wait_for(ahead, 5)] == [9, 10, 11]
    with pytest.raises(LedgerTrimmed):
        await asyncio.wait_for(behind, 5)
    await follower.close(LedgerUnavailable("closed"))

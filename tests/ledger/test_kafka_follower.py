"""What followers of one partition in one process have to do with each other."""

import asyncio
from typing import Any

import pytest

from rung.events import LedgerUnavailable, topic
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

"""The tail of a stream that followers share: read once, bounded, without gaps."""

import asyncio
from collections.abc import Sequence

import pytest

from rung.events import LedgerError, LedgerUnavailable
from rung.ledger import Record
from rung.ledger.channel import Channel


def records(begin: int, end: int, size: int = 1) -> list[Record]:
    """Return the records of some positions."""
    return [Record("logs", 0, position, "k", b"x" * size) for position in range(begin, end)]


class Disk:
    """The source of records that the channel lacks; counts the reads."""

    def __init__(self, end: int, size: int = 1) -> None:
        self.records = records(0, end, size)
        self.reads = 0
        self.failure: LedgerError | None = None

    async def take(self, channel: Channel, position: int, limit: int = 1000) -> Sequence[Record]:
        """Return what a follower at a position gets."""

        async def read() -> Sequence[Record]:
            self.reads += 1
            await asyncio.sleep(0)
            if self.failure is not None:
                raise self.failure
            return self.records[position : position + limit]

        return await channel.records(position, limit, read)


async def test_followers_share_a_read() -> None:
    """A hundred followers of another process's append make one read; it is cached then."""
    disk, channel = Disk(50), Channel()
    channel.grow(50)
    found = await asyncio.gather(*(disk.take(channel, 40) for _ in range(100)))
    assert all(it == records(40, 50) for it in found)
    assert await disk.take(channel, 45) == records(45, 50)
    assert disk.reads == 1


async def test_own_appends_are_not_read() -> None:
    """This process's own appends are cached without a read."""
    disk, channel = Disk(0), Channel()
    for position in range(10):
        channel.grow(position + 1, records(position, position + 1))
    assert await disk.take(channel, 3) == records(3, 10)
    assert disk.reads == 0


async def test_what_lies_between_own_appends_is_read_once() -> None:
    """Records of others between this process's own are read once, and joined with them."""
    disk, channel = Disk(20), Channel()
    channel.grow(5, records(0, 5))
    channel.grow(20, records(12, 20))
    assert await disk.take(channel, 5) == records(5, 20)
    assert await disk.take(channel, 9) == records(9, 20)
    assert await disk.take(channel, 13, 3) == records(13, 16)
    assert disk.reads == 1


async def test_a_follower_far_behind_displaces_nothing() -> None:
    """Records read far behind do not replace the cached newest ones."""
    disk, channel = Disk(100_000), Channel()
    channel.grow(100_000, records(99_000, 100_000))
    assert await disk.take(channel, 500) == records(500, 1500)
    assert disk.reads == 1
    assert await disk.take(channel, 99_000) == records(99_000, 100_000)
    assert disk.reads == 1


@pytest.mark.parametrize("size", [1, 3000, 2 << 20])
async def test_the_cache_is_bounded(size: int) -> None:
    """However much is appended, some 2,000 records and a megabyte are cached at most."""
    channel, kept = Channel(), 0
    for position in range(20_000 if size == 1 else 500):
        channel.grow(position + 1, records(position, position + 1, size))
    disk = Disk(0)
    for position in range(20_000 if size == 1 else 500):
        reads = disk.reads
        kept += bool(await disk.take(channel, position, 1)) and disk.reads == reads
    assert kept <= 2048
    assert kept * size <= 1 << 20


async def test_all_waiting_followers_raise_a_failed_read() -> None:
    """All that wait for a failed read raise its error; a retry reads again."""
    disk, channel = Disk(5), Channel()
    channel.grow(5)
    disk.failure = LedgerUnavailable("the disk is away")
    found = await asyncio.gather(
        *(disk.take(channel, 0) for _ in range(3)), return_exceptions=True
    )
    assert found == [disk.failure] * 3
    disk.failure = None
    assert await disk.take(channel, 0) == records(0, 5)
    assert disk.reads == 2


async def test_a_read_outlives_its_first_follower() -> None:
    """A read goes on for the others when the one that began it is canceled."""
    disk, channel = Disk(5), Channel()
    channel.grow(5)
    first, second = (asyncio.create_task(disk.take(channel, 0)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == records(0, 5)
    assert disk.reads == 1


async def test_trimmed_records_are_not_cached() -> None:
    """Removed records are read, so that the ledger raises their error."""
    disk, channel = Disk(10), Channel()
    channel.grow(10, records(0, 10))
    channel.trim(7)
    assert await disk.take(channel, 7) == records(7, 10)
    assert disk.reads == 0
    await disk.take(channel, 6)
    assert disk.reads == 1
    channel.trim(100)
    await disk.take(channel, 9)
    assert disk.reads == 2

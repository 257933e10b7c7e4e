"""The tail of one stream, shared by all followers in this process.

A channel has the stream's end and its newest records, and wakes followers that wait for more. The
adapter calls it, in the event loop, whenever the stream grows: after this process's own appends
with their records, after those of other processes with the new end alone.

A follower at the end gets its records from here. Where the channel lacks them, the first follower
reads them, others at that position wait for the same read, and the channel caches the result. So a
stream is read once, however many follow it. A follower that lies before the cached records reads
by itself until it catches up: memory depends neither on the number of followers nor on their
speed.

*Staged* followers get records as soon as these are staged: these have positions, but may not be
durable yet. All others wait for the durable end. The adapter makes staged records durable once no
staged follower is *busy* with them, together with what these followers appended in response.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from rung.events.errors import LedgerError
from rung.ledger.port import Record

_TAIL_RECORDS: Final = 2048
_TAIL_BYTES: Final = 1 << 20

Read = Callable[[], Awaitable[Sequence[Record]]]


class StagedFollower:
    """The position of one staged follower."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.waiting = False
        """Whether it has processed all that it got."""


class _Waiters:
    """Coroutines that wait for a stream to grow."""

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for the next `wake`; raise its failure."""
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        finally:
            if future in self._futures:
                self._futures.remove(future)

    def wake(self, failure: LedgerError | None = None) -> None:
        """Wake all that wait now."""
        woken, self._futures = self._futures, []
        for future in woken:
            if future.done():
                continue
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)


class Channel:
    """One stream: its end, its newest records, and the followers that wait."""

    def __init__(self) -> None:
        self.end = 0
        """The durable end, as far as this process has read or written."""
        self.staged_end = 0
        """The end including staged records."""
        self._staged_followers: list[StagedFollower] = []
        self._staged_waiters = _Waiters()
        self._waiters = _Waiters()
        self._tail: list[Record] = []
        self._tail_bytes = 0
        self._reading: dict[int, asyncio.Task[Sequence[Record]]] = {}
        self._closed: LedgerError | None = None

    def grow(self, end: int, records: Sequence[Record] = ()) -> None:
        """Extend the stream to `end`; cache its newest records."""
        if end > self.end:
            self.end = end
            self._waiters.wake()
        if records:
            self._cache(records)
        if end > self.staged_end:
            self.staged_end = end
            self._staged_waiters.wake()

    def stage(self, durable: int, records: Sequence[Record]) -> None:
        """Pass records to staged followers.

        Args:
            durable: the stream's durable end.
            records: from there on, or behind those that are staged.
        """
        self.grow(durable)
        self._cache(records)
        self.staged_end = max(self.staged_end, records[-1].position + 1)
        self._staged_waiters.wake()

    def unstage(self, failure: LedgerError) -> None:
        """Drop staged records; all staged followers raise the failure."""
        if self._tail:
            self._drop_from(max(0, self.end - self._tail[0].position))
        self.staged_end = self.end
        self._staged_followers.clear()
        self._staged_waiters.wake(failure)

    @property
    def busy(self) -> bool:
        """Whether a staged follower is at staged records, or about to be.

        Those that lie further back do not count.
        """
        return self.staged_end > self.end and any(
            it.position >= self.end and not (it.waiting and it.position >= self.staged_end)
            for it in self._staged_followers
        )

    @contextlib.contextmanager
    def staged_follower(self, position: int) -> Iterator[StagedFollower]:
        """Register a staged follower, while the context lasts."""
        it = StagedFollower(position)
        self._staged_followers.append(it)
        try:
            yield it
        finally:
            if it in self._staged_followers:
                self._staged_followers.remove(it)

    def trim(self, position: int) -> None:
        """Drop the records before a position, which were removed."""
        if self._tail:
            self._drop(max(0, min(position - self._tail[0].position, len(self._tail))))

    def fail(self, failure: LedgerError) -> None:
        """Raise a failure in all followers that wait now."""
        self._waiters.wake(failure)
        self._staged_waiters.wake(failure)

    def close(self, reason: LedgerError) -> None:
        """Raise the reason in all followers that wait now or later."""
        self._closed = reason
        self.fail(reason)

    async def records(
        self, position: int, limit: int, read: Read, *, staged: bool = False
    ) -> Sequence[Record]:
        """Return records from `position` on, which must lie before the end.

        Args:
            position: of the first.
            limit: how many cached records at most.
            read: reads records from the position on; called where they are not cached.
            staged: whether staged records are included, and the end is theirs.

        Raises:
            LedgerError: reading failed.
        """
        behind = self.staged_end if staged else self.end
        found = self._cached(position, min(limit, behind - position))
        if found:
            return found
        reading = self._reading.get(position)
        if reading is None:
            reading = asyncio.create_task(self._read(position, read))
            self._reading[position] = reading
            reading.add_done_callback(_retrieve)
        return await asyncio.shield(reading)

    async def wait(self, position: int) -> None:
        """Wait until the stream reaches beyond `position`."""
        while self.end <= position:
            self._check_open()
            await self._waiters.wait()

    async def wait_staged(self, it: StagedFollower) -> None:
        """Wait until there are staged or durable records at a staged follower's position."""
        it.waiting = True
        while self.staged_end <= it.position:
            self._check_open()
            await self._staged_waiters.wait()
        it.waiting = False

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _cached(self, position: int, limit: int) -> Sequence[Record]:
        if not self._tail or not self._tail[0].position <= position <= self._tail[-1].position:
            return ()
        first = position - self._tail[0].position
        return self._tail[first : first + limit]

    async def _read(self, position: int, read: Read) -> Sequence[Record]:
        try:
            records = await read()
        finally:
            del self._reading[position]
        oldest = self._tail[0].position if self._tail else self.end
        if records and records[-1].position + 1 >= oldest:
            self._cache(records)
        return records

    def _cache(self, records: Sequence[Record]) -> None:
        """Join records with the cached ones, or replace those where a gap lies between."""
        first, behind = records[0].position, records[-1].position + 1
        if not self._tail or first > self._tail[-1].position + 1:
            self._drop(len(self._tail))
            self._tail = list(records)
        elif behind < self._tail[0].position:
            return
        else:
            older = [it for it in records if it.position < self._tail[0].position]
            newer = [it for it in records if it.position > self._tail[-1].position]
            self._tail[:0] = older
            self._tail += newer
            records = older + newer
        self._tail_bytes += sum(len(record.value) for record in records)
        while len(self._tail) > _TAIL_RECORDS or self._tail_bytes > _TAIL_BYTES:
            durable = max(0, self.end - self._tail[0].position)
            if not durable:
                break  # staged records exist only here
            self._drop(min((len(self._tail) + 1) // 2, durable))

    def _drop(self, count: int) -> None:
        """Drop the oldest cached records."""
        self._tail_bytes -= sum(len(record.value) for record in self._tail[:count])
        del self._tail[:count]

    def _drop_from(self, count: int) -> None:
        """Drop all but the oldest `count` cached records."""
        self._tail_bytes -= sum(len(record.value) for record in self._tail[count:])
        del self._tail[count:]


def _retrieve(reading: asyncio.Task[Sequence[Record]]) -> None:
    """Retrieve a failure, also where every follower that awaited it was cancelled."""
    if not reading.cancelled():
        reading.exception()

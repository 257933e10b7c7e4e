"""The tail of one stream, shared by all followers in this process.

It knows where the stream ends, keeps its newest records, and wakes followers that wait for more.
An adapter tells it, in the event loop, whatever lets the stream grow: this process's own appends
with their records, those of other processes with the new end alone.

A follower at the end gets its records from here. Where they are not at hand, the first follower
that wants them reads them, the others at that position wait for the same read, and what it
brought is kept. So a stream is read once, however many follow it. A follower that lies further
back than what is kept reads by itself until it catches up: memory does not depend on how many
follow, nor on how slow they are.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rung.events.errors import LedgerError
from rung.ledger.port import Record

_TAIL_RECORDS: Final = 2048
_TAIL_BYTES: Final = 1 << 20

Read = Callable[[], Awaitable[Sequence[Record]]]


class Channel:
    """One stream: its end, its newest records, and the followers that wait."""

    def __init__(self) -> None:
        self.end = 0
        """The lowest position that nobody is known to have written yet."""
        self._tail: list[Record] = []
        self._tail_bytes = 0
        self._reading: dict[int, asyncio.Task[Sequence[Record]]] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._closed: LedgerError | None = None

    def grow(self, end: int, records: Sequence[Record] = ()) -> None:
        """Take note that the stream reaches up to `end`, and of its newest records."""
        if records:
            self._keep(records)
        if end > self.end:
            self.end = end
            self._wake(None)

    def trim(self, position: int) -> None:
        """Forget the records before a position, which were removed."""
        if self._tail:
            self._forget(max(0, min(position - self._tail[0].position, len(self._tail))))

    def fail(self, failure: LedgerError) -> None:
        """Make all who wait now meet a failure."""
        self._wake(failure)

    def close(self, reason: LedgerError) -> None:
        """Make all who wait now, and all who will, meet the reason."""
        self._closed = reason
        self._wake(reason)

    async def records(self, position: int, limit: int, read: Read) -> Sequence[Record]:
        """Return records from `position` on, which must lie before the end.

        Args:
            position: of the first.
            limit: how many at most, of those that are kept.
            read: reads records from the position on; called where they are not at hand.

        Raises:
            LedgerError: reading failed.
        """
        found = self._recent(position, limit)
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
            if self._closed is not None:
                raise self._closed
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)

    def _recent(self, position: int, limit: int) -> Sequence[Record]:
        if not self._tail or not self._tail[0].position <= position <= self._tail[-1].position:
            return ()
        first = position - self._tail[0].position
        return self._tail[first : first + limit]

    async def _read(self, position: int, read: Read) -> Sequence[Record]:
        try:
            records = await read()
        finally:
            del self._reading[position]
        if records and records[-1].position + 1 >= self._kept_from:
            self._keep(records)
        return records

    @property
    def _kept_from(self) -> int:
        """The position of the oldest record that is kept, the end if none is."""
        return self._tail[0].position if self._tail else self.end

    def _keep(self, records: Sequence[Record]) -> None:
        """Keep records beside those that are kept, or in place of them where a gap is between."""
        first, behind = records[0].position, records[-1].position + 1
        if not self._tail or first > self._tail[-1].position + 1:
            self._forget(len(self._tail))
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
            self._forget((len(self._tail) + 1) // 2)

    def _forget(self, count: int) -> None:
        self._tail_bytes -= sum(len(record.value) for record in self._tail[:count])
        del self._tail[:count]

    def _wake(self, failure: LedgerError | None) -> None:
        woken, self._waiting = self._waiting, []
        for waiting in woken:
            if waiting.done():
                continue
            if failure is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(failure)


def _retrieve(reading: asyncio.Task[Sequence[Record]]) -> None:
    """Take note of a failure, also where all who waited for it were cancelled."""
    if not reading.cancelled():
        reading.exception()

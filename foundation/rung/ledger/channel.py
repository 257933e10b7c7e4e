"""One stream as the followers in this process see it."""

import asyncio
from collections.abc import Sequence
from typing import Final

from rung.events.errors import LedgerError
from rung.ledger.port import Record

_TAIL_RECORDS: Final = 2048
_TAIL_BYTES: Final = 1 << 20


class Channel:
    """Knows where a stream ends, keeps its newest records at hand, and wakes who waits for more.

    Whatever lets the stream grow tells the channel, in the event loop: this process's own
    appends with their records, those of other processes with the new end alone. Followers that
    keep up are thus served from memory, without another read of the disk.
    """

    def __init__(self) -> None:
        self.end = 0
        """The lowest position that nobody is known to have written yet."""
        self._tail: list[Record] = []
        self._tail_bytes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._closed: LedgerError | None = None

    def grow(self, end: int, records: Sequence[Record] = ()) -> None:
        """Take note that the stream reaches up to `end`, and of its newest records."""
        if records:
            if self._tail and self._tail[-1].position + 1 != records[0].position:
                self._forget(len(self._tail))
            self._tail.extend(records)
            self._tail_bytes += sum(len(record.value) for record in records)
            while len(self._tail) > _TAIL_RECORDS or self._tail_bytes > _TAIL_BYTES:
                self._forget((len(self._tail) + 1) // 2)
        if end > self.end:
            self.end = end
            self._wake(None)

    def fail(self, failure: LedgerError) -> None:
        """Make all who wait now meet a failure."""
        self._wake(failure)

    def close(self, reason: LedgerError) -> None:
        """Make all who wait now, and all who will, meet the reason."""
        self._closed = reason
        self._wake(reason)

    def recent(self, position: int, limit: int) -> Sequence[Record]:
        """Return records from `position` on, nothing if they are not at hand."""
        if not self._tail or not self._tail[0].position <= position <= self._tail[-1].position:
            return ()
        first = position - self._tail[0].position
        return self._tail[first : first + limit]

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

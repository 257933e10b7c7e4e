"""What was fetched of one followed partition, and who follows it."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from rung.events.errors import LedgerError
from rung.ledger.kafka.fetch import Fetched
from rung.ledger.port import Record

_AHEAD_BYTES: Final = 1 << 20
"""Fetching goes on until this much lies ready for the foremost follower."""
_KEPT_BYTES: Final = 4 << 20
"""What is kept for slower ones; who falls behind that reads for itself."""


class Cursor:
    """Where one follower is, and what it waits for there."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.waiting: asyncio.Future[None] | None = None


class Stream:
    """One partition as the followers in this process see it.

    It is fetched once for all of them, at the foremost follower's pace.
    """

    def __init__(self, topic: str, partition: int, position: int) -> None:
        self.topic: Final = topic
        self.partition: Final = partition
        self.position = position
        """Where the next fetch begins."""
        self.fetching = False
        self.cursors: set[Cursor] = set()
        self._chunks: deque[Fetched] = deque()

    @property
    def wanted(self) -> bool:
        """Whether somebody follows the newest of it and has little left to take."""
        foremost = max((cursor.position for cursor in self.cursors), default=-1)
        first = self._chunks[0].records[0].position if self._chunks else self.position
        if foremost < first:
            return False
        ahead = sum(chunk.size for chunk in self._chunks if chunk.end > foremost)
        return ahead < _AHEAD_BYTES

    def recent(self, position: int, limit: int) -> Sequence[Record]:
        """Return records from a position on, nothing if they are not at hand."""
        for chunk in self._chunks:
            if position < chunk.records[0].position:
                break
            if position < chunk.end:
                index = position - chunk.records[0].position
                if index >= len(chunk.records) or chunk.records[index].position != position:
                    index = _index(chunk.records, position)
                return chunk.records[index : index + limit]
        return ()

    async def wait(self, cursor: Cursor) -> None:
        """Wait until there is something at the cursor's position, or a failure.

        Raises:
            LedgerError: following it failed.
        """
        self.skip(cursor.position)  # if it is ahead of the others, they read for themselves
        cursor.waiting = asyncio.get_running_loop().create_future()
        try:
            await cursor.waiting
        finally:
            cursor.waiting = None

    def skip(self, position: int) -> None:
        """Go on at a later position."""
        if position > self.position:
            self._chunks.clear()
            self.position = position
            self._wake()  # those behind read for themselves what nobody fetches for them now

    def grow(self, fetched: Fetched) -> None:
        """Take what was fetched at the stream's position."""
        self.position = fetched.end
        if fetched.records:
            self._chunks.append(fetched)
        self._trim()
        self._wake()

    def fail(self, error: LedgerError) -> None:
        """Make all who wait meet a failure."""
        for cursor in self.cursors:
            if cursor.waiting and not cursor.waiting.done():
                cursor.waiting.set_exception(error)

    def _wake(self) -> None:
        for cursor in self.cursors:
            if cursor.waiting and not cursor.waiting.done() and cursor.position < self.position:
                cursor.waiting.set_result(None)

    def _trim(self) -> None:
        positions = [cursor.position for cursor in self.cursors]
        hindmost, foremost = min(positions, default=0), max(positions, default=0)
        kept = sum(chunk.size for chunk in self._chunks)
        while self._chunks:
            first = self._chunks[0]
            if first.end > hindmost and not (kept > _KEPT_BYTES and first.end <= foremost):
                return
            kept -= first.size
            self._chunks.popleft()


def _index(records: Sequence[Record], position: int) -> int:
    """Return where records from a position on begin, among some that have gaps."""
    return next(
        (index for index, record in enumerate(records) if record.position >= position),
        len(records),
    )

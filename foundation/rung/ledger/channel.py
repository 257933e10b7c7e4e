"""The tail of one stream, shared by all followers in this process.

It knows where the stream ends, keeps its newest records, and wakes followers that wait for more.
An adapter tells it, in the event loop, whatever lets the stream grow: this process's own appends
with their records, those of other processes with the new end alone.

A follower at the end gets its records from here. Where they are not at hand, the first follower
that wants them reads them, the others at that position wait for the same read, and what it
brought is kept. So a stream is read once, however many follow it. A follower that lies further
back than what is kept reads by itself until it catches up: memory does not depend on how many
follow, nor on how slow they are.

*Early* followers get records as soon as these are staged: they have their positions, but may not
be durable yet. All others wait for the end to reach them. The adapter makes what it staged durable
once no early follower is *busy* with it: what they append because of it goes along.
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


class Early:
    """Where an early follower is."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.waiting = False
        """Whether it has taken what it was given."""


class Channel:
    """One stream: its end, its newest records, and the followers that wait."""

    def __init__(self) -> None:
        self.end = 0
        """The lowest position that nobody is known to have written yet."""
        self.staged_end = 0
        """The lowest position behind that of which nothing is staged."""
        self._early: list[Early] = []
        self._awaiting: list[asyncio.Future[None]] = []
        """Early followers that wait."""
        self._tail: list[Record] = []
        self._tail_bytes = 0
        self._reading: dict[int, asyncio.Task[Sequence[Record]]] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._closed: LedgerError | None = None

    def grow(self, end: int, records: Sequence[Record] = ()) -> None:
        """Take note that the stream reaches up to `end`, and of its newest records."""
        if end > self.end:
            self.end = end
            self._wake(None)
        if records:
            self._keep(records)
        if end > self.staged_end:
            self.staged_end = end
            self._wake_early(None)

    def stage(self, durable: int, records: Sequence[Record]) -> None:
        """Show records to early followers.

        Args:
            durable: where the stream ends that others know.
            records: from there on, or from behind those that are staged.
        """
        self.grow(durable)
        self._keep(records)
        self.staged_end = max(self.staged_end, records[-1].position + 1)
        self._wake_early(None)

    def unstage(self, failure: LedgerError) -> None:
        """Forget what is staged; send early followers away, whatever they have taken."""
        if self._tail:
            self._forget_from(max(0, self.end - self._tail[0].position))
        self.staged_end = self.end
        self._early.clear()
        self._wake_early(failure)

    @property
    def busy(self) -> bool:
        """Whether an early follower is at what is staged, or about to be.

        One that lies further back is not waited for.
        """
        return self.staged_end > self.end and any(
            it.position >= self.end and not (it.waiting and it.position >= self.staged_end)
            for it in self._early
        )

    @contextlib.contextmanager
    def early(self, position: int) -> Iterator[Early]:
        """Take note of an early follower, while the context lasts."""
        it = Early(position)
        self._early.append(it)
        try:
            yield it
        finally:
            if it in self._early:
                self._early.remove(it)

    def trim(self, position: int) -> None:
        """Forget the records before a position, which were removed."""
        if self._tail:
            self._forget(max(0, min(position - self._tail[0].position, len(self._tail))))

    def fail(self, failure: LedgerError) -> None:
        """Make all who wait now meet a failure."""
        self._wake(failure)
        self._wake_early(failure)

    def close(self, reason: LedgerError) -> None:
        """Make all who wait now, and all who will, meet the reason."""
        self._closed = reason
        self.fail(reason)

    async def records(
        self, position: int, limit: int, read: Read, *, early: bool = False
    ) -> Sequence[Record]:
        """Return records from `position` on, which must lie before the end.

        Args:
            position: of the first.
            limit: how many at most, of those that are kept.
            read: reads records from the position on; called where they are not at hand.
            early: whether staged records are among those, and the end is theirs.

        Raises:
            LedgerError: reading failed.
        """
        behind = self.staged_end if early else self.end
        found = self._recent(position, min(limit, behind - position))
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
            await self._wait_in(self._waiting)

    async def wait_early(self, it: Early) -> None:
        """Wait until something is staged, or durable, behind where an early follower is."""
        it.waiting = True
        while self.staged_end <= it.position:
            await self._wait_in(self._awaiting)
        it.waiting = False

    async def _wait_in(self, others: list[asyncio.Future[None]]) -> None:
        if self._closed is not None:
            raise self._closed
        waiting = asyncio.get_running_loop().create_future()
        others.append(waiting)
        try:
            await waiting
        finally:
            if waiting in others:
                others.remove(waiting)

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
            durable = max(0, self.end - self._tail[0].position)
            if not durable:
                break  # what is staged is nowhere else
            self._forget(min((len(self._tail) + 1) // 2, durable))

    def _forget(self, count: int) -> None:
        self._tail_bytes -= sum(len(record.value) for record in self._tail[:count])
        del self._tail[:count]

    def _forget_from(self, count: int) -> None:
        """Forget what comes after so many."""
        self._tail_bytes -= sum(len(record.value) for record in self._tail[count:])
        del self._tail[count:]

    def _wake(self, failure: LedgerError | None) -> None:
        woken, self._waiting = self._waiting, []
        _tell(woken, failure)

    def _wake_early(self, failure: LedgerError | None) -> None:
        woken, self._awaiting = self._awaiting, []
        _tell(woken, failure)


def _tell(waiting: list[asyncio.Future[None]], failure: LedgerError | None) -> None:
    for it in waiting:
        if it.done():
            continue
        if failure is None:
            it.set_result(None)
        else:
            it.set_exception(failure)


def _retrieve(reading: asyncio.Task[Sequence[Record]]) -> None:
    """Take note of a failure, also where all who waited for it were cancelled."""
    if not reading.cancelled():
        reading.exception()

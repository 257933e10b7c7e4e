"""Group commit: what is written at about the same time becomes durable in one transaction.

Theory of operation. The first write makes the `writer` open a transaction; all writes until it is
open, and then until it is committed, go into it. No other process appends while the transaction is
open, so each record gets its position here, in the event loop, and is *staged*: passed to staged
followers, which are processors and relays. What these append is staged in the same way, at once.
When all of them are idle, or after some milliseconds, the writer commits. So a fact, the decision
on it, the relayed copy of the decision and the decision on that take one sync of the disk.

Nothing of this is durable before the commit. All but staged writes return after it, and all but
staged followers get the records after it. A commit that fails undoes everything: writes raise,
every call by staged writers and followers of that *epoch* raises the failure, and their loops
start again from the durable records. Until a commit succeeds again, nothing is staged: on a full
disk each attempt would make all loops start again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from rung.events.errors import LedgerError, LedgerUnavailable
from rung.ledger.port import Record
from rung.ledger.sqlite.notify import Notifier
from rung.ledger.sqlite.tables import Metadata, retention_of
from rung.ledger.sqlite.watcher import Watcher
from rung.ledger.sqlite.writer import (
    Began,
    Changes,
    Committed,
    Ends,
    Result,
    Row,
    Statement,
    Writer,
)

_RECORDS: Final = 10_000
_BYTES: Final = 32 << 20
"""A transaction that holds more than this is committed."""
OPEN_S: Final = 0.05
"""How long a transaction waits for staged followers; other processes cannot write meanwhile."""


class Write(NamedTuple):
    """One atomic write; `done` gets its positions."""

    rows: Sequence[Row]
    size: int
    statement: Statement | None
    staged: bool
    """Whether it returns once it is staged."""
    done: asyncio.Future[list[int]]

    def fail(self, failure: LedgerError) -> None:
        """Raise a failure in the caller: nothing was written."""
        if not self.done.done():
            self.done.set_exception(failure)

    def succeed(self, positions: list[int]) -> None:
        """Return the positions to the caller."""
        if not self.done.done():
            self.done.set_result(positions)


class _Group:
    """The writes of one transaction."""

    def __init__(self, timer: asyncio.TimerHandle, settled: asyncio.Future[None]) -> None:
        self.timer = timer
        self.settled = settled
        """Done once the transaction is durable, or failed."""
        self.changes = Changes()
        self.writes: list[tuple[Write, list[int]]] = []
        self.records: dict[int, list[Record]] = {}
        """The staged records, by the first id of their stream."""
        self.size = 0

    @property
    def full(self) -> bool:
        return len(self.changes.values) > 3 * _RECORDS or self.size > _BYTES


class GroupCommit:
    """Makes transactions of writes; belongs to one event loop."""

    def __init__(self, metadata: Metadata, notifier: Notifier, watcher: Watcher) -> None:
        """Open the ledger's file for writing.

        Args:
            metadata: of the file.
            notifier: wakes the followers of other processes.
            watcher: has the channels of the followers in this one.
        """
        self._loop = asyncio.get_running_loop()
        self._metadata = metadata
        self._watcher = watcher
        self._ends = Ends(retention_of(metadata))
        self._state: Literal["idle", "beginning", "open", "committing"] = "idle"
        self._waiting: deque[Write] = deque()
        self._group: _Group | None = None
        self._check_scheduled = False
        self._staging = True
        """Whether staged followers get records before they are durable."""
        self._drained: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self.epoch = 0
        """How many commits of staged records have failed."""
        self.failure: LedgerError | None = None
        """Of the last one of them."""
        self.commits = 0
        """How many have succeeded."""
        self.refusal: Final = LedgerUnavailable(f"the ledger {metadata.path} is closed")
        self._writer = Writer(
            metadata.path,
            notifier=notifier,
            deliver=self._deliver,
            alive=lambda: not self._loop.is_closed(),
        )

    async def write(
        self, rows: Sequence[Row], size: int, statement: Statement | None, *, staged: bool
    ) -> list[int]:
        """Insert rows and run a statement; return the rows' positions.

        Args:
            rows: inserted.
            size: of their values, in bytes.
            statement: executed with them.
            staged: whether to return once they are staged.

        Raises:
            LedgerError: nothing was written.
        """
        if self._closed.done():
            raise self.refusal
        write = Write(rows, size, statement, staged, self._loop.create_future())
        if self._state == "open":
            self._place(write)
        else:
            self._waiting.append(write)
            self._begin()
        return await write.done

    def staged(self, first: int) -> Sequence[Record]:
        """Return the staged records of a stream."""
        if self._group is None or not self._staging:
            return ()
        return self._group.records.get(first, ())

    def commit_when_idle(self) -> None:
        """Commit soon if no staged follower is busy; to be called when one has become idle."""
        if self._state == "open" and not self._check_scheduled:
            self._check_scheduled = True
            self._loop.call_soon(self._check)

    async def flush(self) -> None:
        """Return once the staged records are durable, or failed."""
        self._commit()
        if self._group is not None:
            await asyncio.shield(self._group.settled)

    async def drain(self) -> None:
        """Return once all pending writes are done."""
        self._commit()
        if self._state != "idle":
            self._drained = self._drained or self._loop.create_future()
            await asyncio.shield(self._drained)

    async def close(self) -> None:
        """Finish pending writes and close the file."""
        await self.drain()
        self._writer.finish()
        await asyncio.shield(self._closed)

    def _begin(self) -> None:
        if self._state == "idle":
            self._state = "beginning"
            self._writer.begin()

    def _deliver(self, result: Result) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._handle, result)

    def _handle(self, result: Result) -> None:
        match result:
            case Began(ends):
                self._open(ends)
            case Committed():
                self._committed()
            case LedgerError():
                self._failed(result)
            case None:
                self._closed.set_result(None)
                self._next()

    def _open(self, ends: dict[int, int] | None) -> None:
        if ends is not None:
            self._ends.reset(ends)
        self._state = "open"
        timer = self._loop.call_later(OPEN_S, self._commit)
        self._group = _Group(timer, self._loop.create_future())
        while self._waiting and self._state == "open":
            self._place(self._waiting.popleft())

    def _place(self, write: Write) -> None:
        """Assign positions to records, and stage them."""
        group = self._group
        assert group is not None, "with a transaction open"
        positions = self._ends.place(write.rows, group.changes)
        if write.statement is not None:
            group.changes.statements.append(write.statement)
        group.writes.append((write, positions))
        group.size += write.size
        placed: dict[int, list[Record]] = {}
        for (first, key, value), position in zip(write.rows, positions, strict=True):
            record = Record(*self._metadata.names[first], position, key, value)
            placed.setdefault(first, []).append(record)
        for first, records in placed.items():
            staged = group.records.setdefault(first, [])
            staged += records
            if self._staging:
                self._watcher.stage(first, staged[0].position, records)
        if self._staging and write.staged:
            write.succeed(positions)
        if group.full:
            self._commit()
        else:
            self.commit_when_idle()

    def _check(self) -> None:
        """Commit, unless staged followers are busy."""
        self._check_scheduled = False
        if self._group is not None and not self._watcher.busy(self._group.records):
            self._commit()

    def _commit(self) -> None:
        if self._state == "open":
            assert self._group is not None, "it is open"
            self._group.timer.cancel()
            self._state = "committing"
            self._writer.commit(self._group.changes)

    def _committed(self) -> None:
        """Return the positions to writers and the records to followers."""
        group, self._group = self._group, None
        assert group is not None, "it was committed"
        group.settled.set_result(None)
        self._staging = True
        self.commits += 1
        for write, positions in group.writes:
            write.succeed(positions)
        for first, records in group.records.items():
            self._watcher.appended(first, records)
        self._next()

    def _failed(self, failure: LedgerError) -> None:
        """Raise the failure in all that took part in the transaction."""
        group, self._group = self._group, None
        failed = list(self._waiting)
        if group is not None:
            group.settled.set_result(None)
            # Staged writes that wait were made in response to staged records.
            failed = [write for write in failed if write.staged and self._staging]
            failed += [write for write, _ in group.writes]
            if self._staging:
                self.epoch += 1
                self.failure = failure
                self._staging = False
                self._watcher.unstage(failure)
        for write in failed:
            write.fail(failure)
        self._waiting = deque(write for write in self._waiting if not write.done.done())
        self._next()

    def _next(self) -> None:
        """Begin the next transaction, if there are writes for it."""
        self._state = "idle"
        if self._closed.done():
            for write in self._waiting:
                write.fail(self.refusal)
            self._waiting.clear()
        elif self._waiting:
            self._begin()
        if self._state == "idle" and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

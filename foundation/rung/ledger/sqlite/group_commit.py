"""Group commit: what is written at about the same time becomes durable in one transaction.

Theory of operation. The first write has the `writer` open a transaction; what is written until it
is open, and then until it is committed, goes into it. With the transaction open nobody else
appends, so each record gets its position here, in the event loop, and is *staged*: shown to early
followers, who decide and relay. What they append is staged in the same way, at once. When none of
them has anything left to do, or after some milliseconds, the writer commits. So a fact, what is
decided on it, what is relayed of that and decided on that again take one sync of the disk.

Nothing of this is durable before the commit. All but early writes return after it, and all but
early followers get it after it. A commit that fails takes everything with it: writers are told,
whatever early writers and followers of that *epoch* do from then on raises the failure, and their
loops start again from what is durable. Until a commit succeeds again, nothing is shown before its
commit: on a full disk each attempt would make all loops start again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from rung.events.errors import LedgerError, LedgerUnavailable
from rung.ledger.port import Record
from rung.ledger.sqlite.notify import Ringer
from rung.ledger.sqlite.tables import About, retention_of
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
"""A transaction takes no further write once it holds as much as this."""
OPEN_S: Final = 0.05
"""How long a transaction waits for early followers; others cannot write meanwhile."""


class Write(NamedTuple):
    """What one caller wants written in one piece; its positions go to `done`."""

    rows: Sequence[Row]
    size: int
    statement: Statement | None
    early: bool
    """Whether it is done once it is staged."""
    done: asyncio.Future[list[int]]

    def fail(self, failure: LedgerError) -> None:
        """Tell the caller that nothing of it was written."""
        if not self.done.done():
            self.done.set_exception(failure)

    def succeed(self, positions: list[int]) -> None:
        """Tell the caller the positions."""
        if not self.done.done():
            self.done.set_result(positions)


class _Group:
    """The writes of one transaction."""

    def __init__(self, timer: asyncio.TimerHandle, settled: asyncio.Future[None]) -> None:
        self.timer = timer
        self.settled = settled
        """Done once it is durable, or failed."""
        self.changes = Changes()
        self.writes: list[tuple[Write, list[int]]] = []
        self.records: dict[int, list[Record]] = {}
        """By the first id of their stream."""
        self.size = 0

    @property
    def full(self) -> bool:
        return len(self.changes.values) > 3 * _RECORDS or self.size > _BYTES


class GroupCommit:
    """Makes transactions of writes; belongs to one event loop."""

    def __init__(self, about: About, ringer: Ringer, watcher: Watcher) -> None:
        """Open the ledger's file for writing.

        Args:
            about: what it says about itself.
            ringer: wakes the followers of other processes.
            watcher: has the channels of the followers in this one.
        """
        self._loop = asyncio.get_running_loop()
        self._about = about
        self._watcher = watcher
        self._ends = Ends(retention_of(about))
        self._state: Literal["idle", "beginning", "open", "committing"] = "idle"
        self._waiting: deque[Write] = deque()
        self._group: _Group | None = None
        self._checking = False
        self._shows = True
        """Whether records are shown before they are durable."""
        self._drained: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self.epoch = 0
        """How many commits have failed of what was shown before."""
        self.failure: LedgerError | None = None
        """Why the last one of them did."""
        self.commits = 0
        """How many have succeeded."""
        self.refusal: Final = LedgerUnavailable(f"the ledger {about.path} is closed")
        self._writer = Writer(
            about.path,
            ringer=ringer,
            deliver=self._deliver,
            alive=lambda: not self._loop.is_closed(),
        )

    async def write(
        self, rows: Sequence[Row], size: int, statement: Statement | None, *, early: bool
    ) -> list[int]:
        """Insert rows and run a statement; return the rows' positions.

        Args:
            rows: inserted.
            size: of their values, in bytes.
            statement: executed with them.
            early: whether to return once they are staged.

        Raises:
            LedgerError: nothing of it was written.
        """
        if self._gone.done():
            raise self.refusal
        write = Write(rows, size, statement, early, self._loop.create_future())
        if self._state == "open":
            self._place(write)
        else:
            self._waiting.append(write)
            self._begin()
        return await write.done

    def staged(self, first: int) -> Sequence[Record]:
        """Return what is staged of a stream, if it is shown."""
        if self._group is None or not self._shows:
            return ()
        return self._group.records.get(first, ())

    def rested(self) -> None:
        """Take note that an early follower has nothing left to do."""
        if self._state == "open" and not self._checking:
            self._checking = True
            self._loop.call_soon(self._check)

    async def flush(self) -> None:
        """Return once what is staged is durable, or never was."""
        self._commit()
        if self._group is not None:
            await asyncio.shield(self._group.settled)

    async def drain(self) -> None:
        """Return once all is written that waits."""
        self._commit()
        if self._state != "idle":
            self._drained = self._drained or self._loop.create_future()
            await asyncio.shield(self._drained)

    async def close(self) -> None:
        """Let go of the file; what waits is written before."""
        await self.drain()
        self._writer.finish()
        await asyncio.shield(self._gone)

    def _begin(self) -> None:
        if self._state == "idle":
            self._state = "beginning"
            self._writer.begin()

    def _deliver(self, result: Result) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is gone, and who waited with it
            self._loop.call_soon_threadsafe(self._take, result)

    def _take(self, result: Result) -> None:
        match result:
            case Began(ends):
                self._open(ends)
            case Committed():
                self._settle()
            case LedgerError():
                self._fail(result)
            case None:
                self._gone.set_result(None)
                self._rest()

    def _open(self, ends: dict[int, int] | None) -> None:
        if ends is not None:
            self._ends.learn(ends)
        self._state = "open"
        timer = self._loop.call_later(OPEN_S, self._commit)
        self._group = _Group(timer, self._loop.create_future())
        while self._waiting and self._state == "open":
            self._place(self._waiting.popleft())

    def _place(self, write: Write) -> None:
        """Give records their positions, and show them."""
        group = self._group
        assert group is not None, "with a transaction open"
        positions = self._ends.place(write.rows, group.changes)
        if write.statement is not None:
            group.changes.statements.append(write.statement)
        group.writes.append((write, positions))
        group.size += write.size
        placed: dict[int, list[Record]] = {}
        for (first, key, value), position in zip(write.rows, positions, strict=True):
            record = Record(*self._about.names[first], position, key, value)
            placed.setdefault(first, []).append(record)
        for first, records in placed.items():
            staged = group.records.setdefault(first, [])
            staged += records
            if self._shows:
                self._watcher.stage(first, staged[0].position, records)
        if self._shows and write.early:
            write.succeed(positions)
        if group.full:
            self._commit()
        else:
            self.rested()

    def _check(self) -> None:
        """Commit, unless early followers are at what is staged."""
        self._checking = False
        if self._group is not None and not self._watcher.busy(self._group.records):
            self._commit()

    def _commit(self) -> None:
        if self._state == "open":
            assert self._group is not None, "it is open"
            self._group.timer.cancel()
            self._state = "committing"
            self._writer.commit(self._group.changes)

    def _settle(self) -> None:
        """Tell everybody that a transaction is durable."""
        group, self._group = self._group, None
        assert group is not None, "it was committed"
        group.settled.set_result(None)
        self._shows = True
        self.commits += 1
        for write, positions in group.writes:
            write.succeed(positions)
        for first, records in group.records.items():
            self._watcher.appended(first, records)
        self._rest()

    def _fail(self, failure: LedgerError) -> None:
        """Tell everybody that nothing of a transaction ever was."""
        group, self._group = self._group, None
        failed = list(self._waiting)
        if group is not None:
            group.settled.set_result(None)
            # What waits and is early follows from what was shown.
            failed = [write for write in failed if write.early and self._shows]
            failed += [write for write, _ in group.writes]
            if self._shows:
                self.epoch += 1
                self.failure = failure
                self._shows = False
                self._watcher.unstage(failure)
        for write in failed:
            write.fail(failure)
        self._waiting = deque(write for write in self._waiting if not write.done.done())
        self._rest()

    def _rest(self) -> None:
        """Turn to what has come meanwhile."""
        self._state = "idle"
        if self._gone.done():
            for write in self._waiting:
                write.fail(self.refusal)
            self._waiting.clear()
        elif self._waiting:
            self._begin()
        if self._state == "idle" and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

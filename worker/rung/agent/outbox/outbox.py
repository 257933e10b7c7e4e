"""Outbox: events on disk, numbered, in order, until the ledger has them.

    put        a fact gets the next number and waits in memory for the next commit
    commit     one transaction for all waiting facts (group commit), in a separate thread
    read       committed facts, in order, for the publisher to append to the ledger
    forget     the ledger has them; they are deleted with the next commit

A fact is appended to the ledger once it was committed here, or while this disk cannot be written.
Its origin is `agent/<agent_id>/<outbox id>/<session>`, its sequence the number. Both are stored
with it, so a fact that is appended a second time after a crash is the same event, and readers drop
it. A session is one start of the agent. A folder that was restored from a backup, or copied,
continues from a number that was used before, but under the origin of another session.

When the disk is full, facts stay in memory, the commit is retried, and the publisher reads them
from memory: the ledger may be on another disk. Beyond `pending_bytes_max` the outbox is
`saturated`, and the agent stops reading from its trials until there is room: they wait, nothing is
lost, memory stays bounded.
"""

import asyncio
import contextlib
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from rung.agent.outbox.outbox_file import Change, OutboxEntry, OutboxFile
from rung.events import Payload, fact
from rung.ledger import Draft
from rung.runtime import tracing
from rung.runtime.fact_writer import now

PENDING_BYTES_MAX: Final = 32 * 1024**2
_RETRY_S: Final = 0.5
_STALE_MAX: Final = 4096
"""How many facts that the ledger has may stay on disk until the next commit."""
_AGES_EVERY_S: Final = 1.0

_log = structlog.get_logger()


class Outbox:
    """Facts for the ledger. Its methods must be called from one event loop."""

    def __init__(
        self,
        path: Path,
        *,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = OutboxFile(path)
        self._pending_bytes_max = pending_bytes_max
        self._clock = clock
        self._pending: list[OutboxEntry] = []
        self._pending_bytes = 0
        self._changes: list[Change] = []
        self._ticket = self._written = 0
        """How many calls of `put` there were, and how many of them are on disk."""
        self._writers: list[tuple[int, asyncio.Future[None]]] = []
        self._forgotten = 0
        self._forgotten_on_disk = 0
        self._next = 1
        self._ages: deque[tuple[int, float]] = deque()
        """Numbers of facts with the times at which they were put, about one a second."""
        self._committed = 0
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._closing = False
        self.unwritable: str | None = None
        """Why commits fail, None if they do not."""
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._room: list[Callable[[], None]] = []
        self._news = asyncio.Event()
        self._threads = ThreadPoolExecutor(1, "outbox-reader")
        self.id = ""
        self.session: Final = secrets.token_hex(8)
        """The id of this start of the agent."""
        self.joined = self.session
        """The session that has joined the pool: this one or an earlier one."""
        self.agent_id = ""
        self.incarnation = 0

    def open(self, agent_id: str | None, default_agent_id: str) -> None:
        """Open the file, or create it for an agent.

        Args:
            agent_id: the agent of the outbox; None: the one in the file.
            default_agent_id: the agent of a new outbox where `agent_id` is None.

        Raises:
            OutboxUnusable: it cannot be opened, or belongs to another agent.
        """
        self._loop = asyncio.get_running_loop()
        marks = self._file.open(agent_id, default_agent_id)
        self.id, self.agent_id, self.incarnation = marks.id, marks.agent_id, marks.incarnation
        self._forgotten = self._forgotten_on_disk = marks.forgotten
        self._committed = marks.last
        self._next = marks.last + 1
        if self.backlog:
            self._ages.append((marks.forgotten + 1, self._clock()))
        self._thread = threading.Thread(target=self._commit_forever, name="outbox", daemon=True)
        self._thread.start()

    @property
    def origin(self) -> str:
        """The origin of all facts of this session."""
        return f"agent/{self.agent_id}/{self.id}/{self.session}"

    @property
    def source(self) -> str:
        """The source of all facts that this agent writes."""
        return f"/rung/agent/{self.agent_id}"

    @property
    def saturated(self) -> bool:
        """Whether it is full: nothing more should be put for now."""
        return self._pending_bytes > self._pending_bytes_max

    @property
    def forgotten(self) -> int:
        """The number up to which the ledger has all facts."""
        return self._forgotten

    @property
    def last(self) -> int:
        """The number of the newest fact."""
        return self._next - 1

    @property
    def backlog(self) -> int:
        """How many facts the ledger does not have yet."""
        return self._next - 1 - self._forgotten

    @property
    def oldest_s(self) -> float:
        """The age of the oldest of them in seconds, counted within this session."""
        return self._clock() - self._ages[0][1] if self.backlog and self._ages else 0.0

    def written_ms(self) -> int:
        """Return the time of the file's last write, Unix time in milliseconds; 0: never."""
        return self._file.written_ms()

    @property
    def size_bytes(self) -> int:
        """Its size on disk."""
        return self._file.size_bytes

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, as soon as the outbox is not saturated."""
        if self.saturated:
            self._room.append(callback)
        else:
            self._loop.call_soon(callback)

    def put(self, *payloads: Payload, changes: Sequence[Change] = ()) -> int:
        """Take facts, in this order; return the number of the last. Never blocks.

        Args:
            payloads: the facts.
            changes: written in the same transaction.
        """
        traceparent, now_s = tracing.current(), self._clock()
        if payloads and (not self._ages or now_s - self._ages[-1][1] > _AGES_EVERY_S):
            self._ages.append((self._next, now_s))
        entries = []
        for payload in payloads:
            event = fact(
                payload,
                source=self.source,
                origin=self.origin,
                sequence=self._next,
                time=now(),
                traceparent=traceparent,
            )
            entries.append(OutboxEntry(self._next, Draft.of(event)))
            self._next += 1
        with self._lock:
            self._pending += entries
            self._pending_bytes += sum(len(entry.draft.value) for entry in entries)
            self._changes += changes
            self._ticket += 1
            self._work.notify()
        if self.unwritable:
            self._news.set()
        return self._next - 1

    async def written(self) -> None:
        """Return when everything that was put so far, including changes, is on disk."""
        if self._ticket > self._written:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._writers.append((self._ticket, waiter))
            await waiter

    def runs(self) -> dict[str, bytes]:
        """Return the saved states of runs of an earlier session, by allocation."""
        return self._file.runs()

    def taken(self) -> dict[str, int]:
        """Return for each stream of these runs the last message that took effect."""
        return self._file.taken()

    def mark(self, name: str) -> str | None:
        """Return a mark of an earlier session, None if there is none."""
        return self._file.mark(name)

    async def durable(self, number: int) -> None:
        """Return when the fact of that number, and all before it, are durable.

        They are once they are on this disk or in the ledger.
        """
        if number > self._committed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((number, waiter))
            await waiter

    async def read(self, after: int, limit: int) -> list[OutboxEntry]:
        """Return facts with numbers above `after`; waits while there are none.

        They are committed ones, or, while the disk cannot be written, those in memory.
        """
        while self._committed <= after:
            if self.unwritable and (found := self._uncommitted(after, limit)):
                return found
            self._news.clear()
            await self._news.wait()
        return await self._loop.run_in_executor(
            self._threads, self._file.select, after, self._committed, limit
        )

    def forget(self, number: int) -> None:
        """Drop the facts up to that number: the ledger has them."""
        with self._lock:
            self._forgotten = max(self._forgotten, number)
            gone = [item for item in self._pending if item.number <= number]
            del self._pending[: len(gone)]
            if self._stale:
                self._work.notify()
        if number > self._committed:
            self._on_commit(number, sum(len(item.draft.value) for item in gone))
        # The age of a fact is that of the entry before it, which is at most a second older.
        while len(self._ages) > 1 and self._ages[1][0] <= self._forgotten + 1:
            self._ages.popleft()
        if not self.backlog:
            self._ages.clear()

    def _uncommitted(self, after: int, limit: int) -> list[OutboxEntry]:
        """Return the facts in memory after a number; none while the next one is being written."""
        with self._lock:
            found = [item for item in self._pending if item.number > after][:limit]
        return found if found and found[0].number == after + 1 else []

    @property
    def _stale(self) -> bool:
        return self._forgotten - self._forgotten_on_disk > _STALE_MAX

    @property
    def _has_work(self) -> bool:
        return bool(self._pending or self._changes or self._stale)

    async def start_incarnation(self, above: int = 0) -> int:
        """Begin an incarnation greater than `above`; durable when it returns."""
        while True:
            try:
                self.incarnation = await self._loop.run_in_executor(
                    self._threads, self._file.begin_incarnation, above
                )
            except sqlite3.Error as error:
                _log.error(
                    "the outbox cannot be written", path=str(self._file.path), error=str(error)
                )
                await asyncio.sleep(_RETRY_S)
            else:
                return self.incarnation

    async def close(self) -> None:
        """Commit what waits, if the disk can be written, and close the file."""
        with self._lock:
            self._closing = True
            self._work.notify()
        await self._loop.run_in_executor(self._threads, self._thread.join)
        self._threads.shutdown()
        self._file.close()

    def _commit_forever(self) -> None:
        """Commit all waiting facts, over and over; runs in the outbox's thread."""
        while True:
            with self._lock:
                while not (self._has_work or self._closing or self.unwritable):
                    self._work.wait()
                batch, self._pending = self._pending, []
                changes, self._changes = self._changes, []
                forgotten, closing, ticket = self._forgotten, self._closing, self._ticket
            try:
                self._file.commit(batch, forgotten, changes)
            except sqlite3.Error as error:
                if not self._put_back(batch, changes, error, closing=closing):
                    return
                continue
            self._forgotten_on_disk = forgotten
            if self.unwritable:
                self.unwritable = None
                _log.info("the outbox can be written again", path=str(self._file.path))
            if batch or changes:
                committed = batch[-1].number if batch else 0
                self._notify_loop(committed, sum(len(item.draft.value) for item in batch), ticket)
            if closing and not (self._pending or self._changes):
                return

    def _put_back(
        self,
        batch: list[OutboxEntry],
        changes: list[Change],
        error: sqlite3.Error,
        *,
        closing: bool,
    ) -> bool:
        """Put back a batch that could not be written, and wait; return False to stop retrying."""
        if not self.unwritable:
            self.unwritable = f"the outbox {self._file.path} cannot be written: {error}"
            _log.error(
                "the outbox cannot be written; reports wait in memory, trials will wait too",
                path=str(self._file.path),
                error=str(error),
                fix="free disk space or make the folder writable",
            )
        with self._lock:
            kept = [item for item in batch if item.number > self._forgotten]
            self._pending[:0] = kept
            self._changes[:0] = changes
        self._notify_loop(
            0, sum(len(item.draft.value) for item in batch[: len(batch) - len(kept)])
        )
        if not closing:
            with self._lock:
                self._work.wait(_RETRY_S)
            return True
        if kept:
            _log.error("reports are lost: the outbox could not be written", facts=len(kept))
        return False

    def _notify_loop(self, committed: int, size: int, ticket: int = 0) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: no reader is left
            self._loop.call_soon_threadsafe(self._on_commit, committed, size, ticket)

    def _on_commit(self, committed: int, size: int, ticket: int = 0) -> None:
        self._written = max(self._written, ticket)
        writing, self._writers = self._writers, []
        for number, waiter in writing:
            if number > self._written:
                self._writers.append((number, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._pending_bytes -= size
        self._committed = committed = max(self._committed, committed)
        self._news.set()
        waiting, self._waiters = self._waiters, []
        for number, waiter in waiting:
            if number > committed:
                self._waiters.append((number, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        if not self.saturated:
            room, self._room = self._room, []
            for callback in room:
                callback()

"""The agent's memory of what the ledger does not have yet: facts on disk, numbered, in order.

    put        a fact gets the next number and waits in memory for the next commit
    commit     one transaction for all that waited (group commit), in a thread of its own
    read       what is committed, in order, for the drain to append to the ledger
    forget     the ledger has them; they go with the next commit

A fact is appended to the ledger once it was committed here, or while this disk takes nothing. Its
origin is `agent/<agent_id>/<spool id>/<session>` and its sequence the number, so whatever is
appended a second time after a crash is the same event, and readers drop it: it lies in the file
with its origin. A session is one life of the agent. A folder that was restored from a backup, or
copied, goes on from a number that was given before, but under the origin of another session.

When the disk is full, what was put stays in memory, the commit is tried again, and the ledger gets
the facts from memory: it may lie elsewhere. Beyond `pending_bytes_max` the spool is `saturated`,
and the agent stops reading what its trials say until there is room: they wait, nothing is lost,
memory stays bounded.
"""

import asyncio
import contextlib
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from rung.agent.spool_file import Spooled, SpoolFile
from rung.events import Payload, fact
from rung.ledger import Draft
from rung.runtime import tracing
from rung.runtime.fact_writer import now

PENDING_BYTES_MAX: Final = 32 * 1024**2
_RETRY_S: Final = 0.5
_STALE_MAX: Final = 4096
"""So many facts that the ledger has may stay on disk while nothing new comes."""
_AGES_EVERY_S: Final = 1.0

_log = structlog.get_logger()


class Spool:
    """Facts on their way to the ledger. Its methods belong to one event loop."""

    def __init__(
        self,
        path: Path,
        *,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = SpoolFile(path)
        self._pending_bytes_max = pending_bytes_max
        self._clock = clock
        self._pending: list[Spooled] = []
        self._pending_bytes = 0
        self._forgotten = 0
        self._forgotten_on_disk = 0
        self._next = 1
        self._ages: deque[tuple[int, float]] = deque()
        """Now and then, the number that a fact got, and when."""
        self._committed = 0
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._closing = False
        self.unwritable: str | None = None
        """Why the disk does not take what waits, None if it does."""
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._room: list[Callable[[], None]] = []
        self._news = asyncio.Event()
        self._threads = ThreadPoolExecutor(1, "spool-reader")
        self.id = ""
        self.session: Final = secrets.token_hex(8)
        """Names this life of the agent."""
        self.agent_id = ""
        self.incarnation = 0

    def open(self, agent_id: str | None, default_agent_id: str) -> None:
        """Open the file, or create it for an agent.

        Args:
            agent_id: whose spool it must be; None: whose it is.
            default_agent_id: the name for a new spool without one.

        Raises:
            SpoolUnusable: it cannot be opened, or is another agent's.
        """
        self._loop = asyncio.get_running_loop()
        marks = self._file.open(agent_id, default_agent_id)
        self.id, self.agent_id, self.incarnation = marks.id, marks.agent_id, marks.incarnation
        self._forgotten = self._forgotten_on_disk = marks.forgotten
        self._committed = marks.last
        self._next = marks.last + 1
        if self.backlog:
            self._ages.append((marks.forgotten + 1, self._clock()))
        self._thread = threading.Thread(target=self._commit_forever, name="spool", daemon=True)
        self._thread.start()

    @property
    def origin(self) -> str:
        """The origin of all facts that are put into this spool by this life of the agent."""
        return f"agent/{self.agent_id}/{self.id}/{self.session}"

    @property
    def source(self) -> str:
        """The source of all facts that this agent writes."""
        return f"/rung/agent/{self.agent_id}"

    @property
    def saturated(self) -> bool:
        """Whether nobody should put more for the moment."""
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
        """For how long the oldest of them has been held, by this life of the agent."""
        return self._clock() - self._ages[0][1] if self.backlog and self._ages else 0.0

    def written_ms(self) -> int:
        """Return when the file was written last, Unix time in milliseconds; 0: never."""
        return self._file.written_ms()

    @property
    def size_bytes(self) -> int:
        """How much disk it takes."""
        return self._file.size_bytes

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, as soon as the spool is not saturated."""
        if self.saturated:
            self._room.append(callback)
        else:
            self._loop.call_soon(callback)

    def put(self, *payloads: Payload) -> int:
        """Take facts, in this order; return the number of the last. Never blocks."""
        traceparent, now_s = tracing.current(), self._clock()
        if not self._ages or now_s - self._ages[-1][1] > _AGES_EVERY_S:
            self._ages.append((self._next, now_s))
        for payload in payloads:
            event = fact(
                payload,
                source=self.source,
                origin=self.origin,
                sequence=self._next,
                time=now(),
                traceparent=traceparent,
            )
            draft = Draft.of(event)
            with self._lock:
                self._pending.append(Spooled(self._next, draft))
                self._pending_bytes += len(draft.value)
                self._work.notify()
            self._next += 1
        if self.unwritable:
            self._news.set()
        return self._next - 1

    async def durable(self, number: int) -> None:
        """Return when the fact of that number, and all before it, would survive a crash.

        That is so once they are on this disk or in the ledger.
        """
        if number > self._committed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((number, waiter))
            await waiter

    async def read(self, after: int, limit: int) -> list[Spooled]:
        """Return facts with numbers above `after`; waits while there are none.

        They are committed ones, or, while the disk takes nothing, what waits for that.
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
        # A fact is as old as the note before it, which is a second older at most.
        while len(self._ages) > 1 and self._ages[1][0] <= self._forgotten + 1:
            self._ages.popleft()
        if not self.backlog:
            self._ages.clear()

    def _uncommitted(self, after: int, limit: int) -> list[Spooled]:
        """Return what follows a number in memory; nothing while the next fact is being written."""
        with self._lock:
            found = [item for item in self._pending if item.number > after][:limit]
        return found if found and found[0].number == after + 1 else []

    @property
    def _stale(self) -> bool:
        return self._forgotten - self._forgotten_on_disk > _STALE_MAX

    async def start_incarnation(self, above: int = 0) -> int:
        """Count one more incarnation of the agent, above one; durable when it returns."""
        while True:
            try:
                self.incarnation = await self._loop.run_in_executor(
                    self._threads, self._file.count_incarnation, above
                )
            except sqlite3.Error as error:
                _log.error(
                    "the spool cannot be written", path=str(self._file.path), error=str(error)
                )
                await asyncio.sleep(_RETRY_S)
            else:
                return self.incarnation

    async def close(self) -> None:
        """Commit what waits, if the disk takes it, and close the file."""
        with self._lock:
            self._closing = True
            self._work.notify()
        await self._loop.run_in_executor(self._threads, self._thread.join)
        self._threads.shutdown()
        self._file.close()

    def _commit_forever(self) -> None:
        """Run in the spool's thread: one transaction after another, each with all that waits."""
        while True:
            with self._lock:
                while not (self._pending or self._closing or self._stale or self.unwritable):
                    self._work.wait()
                batch, self._pending = self._pending, []
                forgotten, closing = self._forgotten, self._closing
            try:
                self._file.commit(batch, forgotten)
            except sqlite3.Error as error:
                if not self._keep(batch, error, closing=closing):
                    return
                continue
            self._forgotten_on_disk = forgotten
            if self.unwritable:
                self.unwritable = None
                _log.info("the spool takes reports again", path=str(self._file.path))
            if batch:
                self._tell(batch[-1].number, sum(len(item.draft.value) for item in batch))
            if closing and not self._pending:
                return

    def _keep(self, batch: list[Spooled], error: sqlite3.Error, *, closing: bool) -> bool:
        """Put a batch back that the disk did not take, and wait; return False to give up."""
        if not self.unwritable:
            self.unwritable = f"the outbox {self._file.path} cannot be written: {error}"
            _log.error(
                "the spool cannot be written; reports wait in memory, trials will wait too",
                path=str(self._file.path),
                error=str(error),
                fix="free disk space or make the folder writable",
            )
        with self._lock:
            kept = [item for item in batch if item.number > self._forgotten]
            self._pending[:0] = kept
        self._tell(0, sum(len(item.draft.value) for item in batch[: len(batch) - len(kept)]))
        if not closing:
            with self._lock:
                self._work.wait(_RETRY_S)
            return True
        if kept:
            _log.error("reports are lost: the spool could not be written", reports=len(kept))
        return False

    def _tell(self, committed: int, size: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens
            self._loop.call_soon_threadsafe(self._on_commit, committed, size)

    def _on_commit(self, committed: int, size: int) -> None:
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

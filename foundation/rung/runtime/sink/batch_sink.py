"""Sinks whose stores keep the positions up to which they have the ledger.

* A `BatchSink` writes records in batches. One batch is written while the next is gathered and
  decoded; a store that is away holds reading back, so that memory is bounded.
* A `PeriodicSink` processes new records at intervals.

Neither commits a position to the ledger: it goes on from the store's position. So a store can be
deleted, or restored from a backup, at any time, and two replicas on the same partition are
harmless as long as writing twice is.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Final, NamedTuple, Protocol

from rung.backoff import Backoff
from rung.events import LedgerError, RungError, UndecodableEvent
from rung.ledger import Draft, Ledger, Record
from rung.runtime.assignment.assignment import Assignment
from rung.runtime.consumer import Consumer
from rung.runtime.deadletter import dead_letter, log_rejected
from rung.runtime.health.checks import HEALTH
from rung.runtime.health.loops import waiting_for
from rung.runtime.processor.fold import Rejected
from rung.runtime.retry import retry, supervise

Reject = Callable[[Sequence[Rejected]], Awaitable[None]]


class BatchStore(Protocol):
    """The target of a batch sink.

    Its methods raise a `RungError` that is retriable where the same call may succeed later.
    """

    @property
    def absorbed_bytes(self) -> int:
        """The size of records that were absorbed and are in no batch yet."""

    @property
    def pending_bytes(self) -> int:
        """The size of records that were absorbed and are not written yet."""

    def serving(self, reject: Reject) -> AbstractAsyncContextManager[None]:
        """Open it, with nothing absorbed; records that it cannot hold are passed to `reject`.

        They are passed on before the position behind them is stored.
        """

    async def positions(self) -> Mapping[tuple[str, int], int]:
        """Return its position in each partition; 0 in those that are missing."""

    def absorb(self, records: Sequence[Record]) -> None:
        """Absorb records of one partition, in their order."""

    async def cut(self) -> None:
        """Make a batch of the absorbed records."""

    async def write(self) -> bool:
        """Write the oldest batch and its positions; return whether there was one."""

    async def write_again(self, record: Record) -> str | None:
        """Write a record that was rejected before; return why it cannot be written, else None."""

    def ahead(self, topic: str, partition: int, start: int, end: int) -> Exception:
        """Return the error to raise where its position is behind the ledger's end."""


class BatchSink(NamedTuple):
    """Records of several topics, written in batches to a store that keeps its own positions."""

    name: str
    topics: tuple[str, ...]
    store: BatchStore
    batch_bytes: int = 8 << 20
    """A batch of this size is written at once."""
    batch_s: float = 1.0
    """A record waits at most this long until it is written."""
    gone: Callable[[Ledger, str, int, range], Awaitable[None]] | None = None
    """Called with positions that the store never had and the ledger has no more."""

    @property
    def behind(self) -> str:
        """The line of the log while writing fails."""
        return f"{self.name} behind"


Look = Callable[[], Awaitable[None]]
"""Processes new records; safe to repeat."""
Looks = Callable[[str, int], AbstractContextManager[Look]]
"""Opens a partition of a topic."""


class PeriodicSink(NamedTuple):
    """Partitions that are processed at intervals, each from the position that its target has."""

    name: str
    topics: tuple[str, ...]
    open: Callable[[Ledger], AbstractContextManager[Looks]]
    every_s: float
    backoff: Backoff

    @property
    def behind(self) -> str:
        """The line of the log while processing fails."""
        return f"{self.name} behind"


async def batch_sink(ledger: Ledger, it: BatchSink, assignment: Assignment) -> None:
    """Run a batch sink on assigned partitions until cancelled.

    Raises:
        RungError: of the ledger or the store, one that does not pass by itself.
    """
    intake = _Intake(it)

    async def reject(rejected: Sequence[Rejected]) -> None:
        log_rejected(it.name, rejected)
        await ledger.append([dead_letter(ledger.id, it.name, item) for item in rejected])

    async def follow(topic: str) -> None:
        async def work(partition: int) -> None:
            taking = _Taking(ledger, it, intake, topic, partition)
            await supervise(taking.run, name=f"{it.name}/{topic}/{partition}")

        await assignment.run(topic, work)

    async with contextlib.AsyncExitStack() as stack:
        await retry(lambda: stack.enter_async_context(it.store.serving(reject)), it.behind)
        async with asyncio.TaskGroup() as group:
            group.create_task(intake.cut())
            group.create_task(intake.write())
            for topic in it.topics:
                group.create_task(follow(topic))


async def periodic_sink(ledger: Ledger, it: PeriodicSink, assignment: Assignment) -> None:
    """Run a periodic sink on assigned partitions until cancelled.

    A `RungError` of a partition is retried with back-off.

    Raises:
        LedgerError: one that does not pass by itself.
    """

    def patience_s(error: BaseException) -> float:
        if isinstance(error, LedgerError):
            return math.inf if error.retriable else 0.0
        return math.inf if isinstance(error, RungError) else 0.0

    async def hold(topic: str, looks: Looks) -> None:
        async def work(partition: int) -> None:
            name = f"{it.name}-{topic}/{partition}"
            with HEALTH.loop(name, follows=False), looks(topic, partition) as look:
                while True:
                    await retry(
                        look,
                        it.behind,
                        backoff=it.backoff,
                        patience_s=patience_s,
                        level="error",
                        topic=topic,
                        partition=partition,
                    )
                    await asyncio.sleep(it.every_s)

        await assignment.run(topic, work)

    with it.open(ledger) as looks:
        async with asyncio.TaskGroup() as group:
            for topic in it.topics:
                group.create_task(hold(topic, looks))


class _Intake:
    """Passes records to the store, with back-pressure from two batches on."""

    def __init__(self, it: BatchSink) -> None:
        self.store: Final = it.store
        self._it = it
        self._came = asyncio.Event()
        self._full = asyncio.Event()
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def take(self, records: Sequence[Record]) -> None:
        """Pass records to the store, as soon as there is room."""
        if not self._room.is_set():
            with waiting_for(f"the store of {self._it.name}"):
                await self._room.wait()
        self.store.absorb(records)
        self._came.set()
        if self.store.absorbed_bytes >= self._it.batch_bytes:
            self._full.set()
        self._make_room()

    async def cut(self) -> None:
        """Make batches by size and time, for ever."""
        while True:
            await self._came.wait()
            self._came.clear()
            # Not `wait_for`: Python 3.11's forgets a cancellation that comes as it returns.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._it.batch_s):
                    await self._full.wait()
            self._full.clear()
            await self.store.cut()
            self._ready.set()

    async def write(self) -> None:
        """Write batches, for ever."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while await retry(self.store.write, self._it.behind):
                self._make_room()
            self._make_room()

    def _make_room(self) -> None:
        if self.store.pending_bytes < 2 * self._it.batch_bytes:
            self._room.set()
        else:
            self._room.clear()


class _Taking(Consumer):
    """One partition of a batch sink, from what the store has onwards."""

    def __init__(
        self, ledger: Ledger, it: BatchSink, intake: _Intake, topic: str, partition: int
    ) -> None:
        super().__init__(ledger, it.name, topic, partition, ())
        self._it = it
        self._intake = intake
        self._position: int | None = None
        """Behind the last record that was taken; None: none was."""

    async def _start(self) -> int:
        if self._position is None:
            self._position = await self._find()
        return self._position

    async def _find(self) -> int:
        positions = await retry(self._it.store.positions, self._it.behind)
        start = positions.get(self._place, 0)
        end = await self._ledger.end(*self._place)
        if start > end:
            raise self._it.store.ahead(*self._place, start, end)
        first = await self._ledger.start(*self._place)
        if start < first and self._it.gone:
            await self._it.gone(self._ledger, *self._place, range(start, first))
        return max(start, first)

    async def _deliver(self, records: Sequence[Record]) -> None:
        await self._intake.take(records)
        self._position = records[-1].position + 1

    async def _drafts_again(self, record: Record) -> list[Draft]:
        store, behind = self._it.store, self._it.behind
        reason = await retry(lambda: store.write_again(record), behind)
        if reason is not None:
            raise UndecodableEvent(reason)
        return []

"""A ledger around another one that measures its use, for metrics and health.

Composition roots put it around the ledger, so that all loops are measured alike.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from prometheus_client import Histogram

from rung.events import LedgerError
from rung.ledger import Draft, Ledger, Record, append_and_commit, read_of, staged
from rung.runtime.health.checks import HEALTH, ProcessHealth
from rung.runtime.metrics import catalog


class ObservedLedger:
    """Implements `rung.ledger.port.Ledger` by another ledger."""

    def __init__(
        self, ledger: Ledger, health: ProcessHealth = HEALTH, *, relied_on: bool = True
    ) -> None:
        """Measure the use of a ledger.

        Args:
            ledger: the real one.
            health: of the process.
            relied_on: whether the process is ready only while it answers.
        """
        self._ledger = ledger
        self._health = health
        self._appends: dict[str, Histogram] = {}
        if relied_on:
            health.watch(ledger)

    def staged(self) -> Ledger:
        """Return the ledger with what is not durable yet, whose use is measured as well."""
        return ObservedLedger(staged(self._ledger), self._health, relied_on=False)

    @property
    def id(self) -> str:
        """The ledger's id."""
        return self._ledger.id

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return self._ledger.partitions(topic)

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append, and measure the duration."""
        return await self._append(drafts, lambda: self._ledger.append(drafts))

    async def append_and_commit(
        self, drafts: Sequence[Draft], consumer: str, topic: str, partition: int, position: int
    ) -> list[int]:
        """Append and commit, in one step where the ledger can, and measure the duration."""
        place = (topic, partition)
        return await self._append(
            drafts, lambda: append_and_commit(self._ledger, drafts, consumer, place, position)
        )

    async def _append(
        self, drafts: Sequence[Draft], append: Callable[[], Awaitable[list[int]]]
    ) -> list[int]:
        topics = {draft.topic for draft in drafts}
        started = time.perf_counter()
        with self._calling(f"append to {', '.join(sorted(topics))}"):
            positions = await append()
        took = time.perf_counter() - started
        for topic in topics:
            watch = self._appends.get(topic)
            if watch is None:
                watch = self._appends[topic] = catalog.APPEND_SECONDS.labels(topic)
            watch.observe(took)
        return positions

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on."""
        with self._calling(f"read of {topic}/{partition}"):
            return await self._ledger.read(topic, partition, position, limit)

    async def read_of(
        self, topic: str, partition: int, begin: int, end: int, root: str
    ) -> tuple[list[Record], int]:
        """Return some records whose keys have a root."""
        with self._calling(f"read of {topic}/{partition}"):
            return await read_of(self._ledger, (topic, partition), begin, end, root)

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists."""
        with self._calling(f"start of {topic}/{partition}"):
            return await self._ledger.start(topic, partition)

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        with self._calling(f"end of {topic}/{partition}"):
            return await self._ledger.end(topic, partition)

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Remove the records before a position."""
        with self._calling(f"trim of {topic}/{partition}"):
            await self._ledger.trim(topic, partition, position)

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records, and note the position of the loop."""
        loop, clock = self._health.current, self._health.clock
        followed = loop.follow(topic, partition, position)
        batches = self._ledger.follow(topic, partition, position)
        try:
            async for records in batches:
                followed.given(clock())
                yield records
                followed.done(records[-1].position + 1, clock())
        except LedgerError as error:
            catalog.LEDGER_ERRORS.labels(type(error).__name__).inc()
            raise
        finally:
            loop.leave(followed)
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        """Return the position that a consumer committed last."""
        with self._calling(f"position in {topic}/{partition}"):
            return await self._ledger.position(consumer, topic, partition)

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Commit the position of a consumer."""
        with self._calling(f"commit of {topic}/{partition}"):
            await self._ledger.commit(consumer, topic, partition, position)

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Return the newest snapshot of a name, which may be in an object store that is away."""
        self._health.current.saved.setdefault((name, partition), self._health.clock())
        with self._calling(f"snapshot of {name}/{partition}", unbounded=True):
            return await self._ledger.snapshot(name, partition)

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Replace the snapshot of a name."""
        with self._calling(f"saving the snapshot of {name}/{partition}", unbounded=True):
            await self._ledger.save_snapshot(name, partition, value)
        self._health.current.saved[name, partition] = self._health.clock()

    async def close(self) -> None:
        """Close the ledger."""
        await self._ledger.close()

    def _calling(self, what: str, *, unbounded: bool = False) -> "_Call":
        return _Call(self._health, what, unbounded=unbounded)


class _Call:
    """One call of the ledger; a class, because a generator costs more."""

    def __init__(self, health: ProcessHealth, what: str, *, unbounded: bool) -> None:
        self._loop = health.current
        self._what = what
        self._unbounded = unbounded

    def __enter__(self) -> Self:
        self._number = self._loop.call(self._what, unbounded=self._unbounded)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.returned(self._number)
        if isinstance(error, LedgerError):
            catalog.LEDGER_ERRORS.labels(type(error).__name__).inc()

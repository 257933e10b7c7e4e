"""A ledger that takes note of what passes through it: times, errors, who is where.

Put around the ledger where a process is composed, it measures every loop alike, without any of
them knowing.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from prometheus_client import Histogram

from rung.events import LedgerError
from rung.ledger import Draft, Ledger, Record, append_and_commit, read_of, staged
from rung.runtime.health.checks import VITALS, Vitals
from rung.runtime.metrics import catalog


class ObservedLedger:
    """Implements `rung.ledger.port.Ledger` by another ledger."""

    def __init__(self, ledger: Ledger, vitals: Vitals = VITALS, *, relied_on: bool = True) -> None:
        """Take note of what passes through a ledger.

        Args:
            ledger: the real one.
            vitals: whose signs of life those are.
            relied_on: whether the process is ready only while it answers.
        """
        self._ledger = ledger
        self._vitals = vitals
        self._appends: dict[str, Histogram] = {}
        if relied_on:
            vitals.rely_on(ledger)

    def staged(self) -> Ledger:
        """Return the ledger with what is not durable yet, whose use is noted as well."""
        return ObservedLedger(staged(self._ledger), self._vitals, relied_on=False)

    @property
    def id(self) -> str:
        """The ledger's own name."""
        return self._ledger.id

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return self._ledger.partitions(topic)

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append, and note how long it took."""
        return await self._append(drafts, lambda: self._ledger.append(drafts))

    async def append_and_commit(
        self, drafts: Sequence[Draft], consumer: str, topic: str, partition: int, position: int
    ) -> list[int]:
        """Append and commit, in one step where the ledger can, and note how long it took."""
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
        """Return some records with keys of a root."""
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
        """Yield batches of records, and note how far the loop is that takes them."""
        pulse, clock = self._vitals.current, self._vitals.clock
        strand = pulse.follow(topic, partition, position)
        batches = self._ledger.follow(topic, partition, position)
        try:
            async for records in batches:
                strand.given(clock())
                yield records
                strand.done(records[-1].position + 1, clock())
        except LedgerError as error:
            catalog.LEDGER_ERRORS.labels(type(error).__name__).inc()
            raise
        finally:
            pulse.leave(strand)
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        """Return the position a consumer committed last."""
        with self._calling(f"position in {topic}/{partition}"):
            return await self._ledger.position(consumer, topic, partition)

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Remember where a consumer goes on after a restart."""
        with self._calling(f"commit of {topic}/{partition}"):
            await self._ledger.commit(consumer, topic, partition, position)

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Return the newest snapshot saved under the name.

        Snapshots may lie in an object store, and that one may be away for long.
        """
        self._vitals.current.saved.setdefault((name, partition), self._vitals.clock())
        with self._calling(f"snapshot of {name}/{partition}", patient=True):
            return await self._ledger.snapshot(name, partition)

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Replace the snapshot of that name, and note when."""
        with self._calling(f"saving the snapshot of {name}/{partition}", patient=True):
            await self._ledger.save_snapshot(name, partition, value)
        self._vitals.current.saved[name, partition] = self._vitals.clock()

    async def close(self) -> None:
        """Let go of the ledger."""
        await self._ledger.close()

    def _calling(self, what: str, *, patient: bool = False) -> "_Call":
        return _Call(self._vitals, what, patient=patient)


class _Call:
    """One call of the ledger, from beginning to end; cheaper than a generator."""

    def __init__(self, vitals: Vitals, what: str, *, patient: bool) -> None:
        self._pulse = vitals.current
        self._what = what
        self._patient = patient

    def __enter__(self) -> Self:
        self._number = self._pulse.call(self._what, patient=self._patient)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pulse.returned(self._number)
        if isinstance(error, LedgerError):
            catalog.LEDGER_ERRORS.labels(type(error).__name__).inc()

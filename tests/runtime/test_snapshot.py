"""Snapshots in buckets: cut short, written over one another, with keys that are left alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from rung.events import Event, LedgerUnavailable
from rung.ledger import Draft, MemoryLedger
from rung.runtime import PartitionFold
from rung.runtime.processor.replay import refold, scan_decisions
from rung.runtime.processor.snapshot import Snapshots
from runtime.tally import Count, Tally, pause

KEYS = [f"key-{number}" for number in range(6)]


class Cutting(MemoryLedger):
    """Takes so many writes of snapshots, and refuses all others."""

    room = 1 << 30

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Save while there is room."""
        if self.room == 0:
            raise LedgerUnavailable("the object store is away")
        self.room -= 1
        await super().save_snapshot(name, partition, value)


@contextlib.asynccontextmanager
async def _settled() -> AsyncIterator[None]:
    yield


async def _append(ledger: MemoryLedger, *events: Event) -> None:
    await ledger.append([Draft.of(event) for event in events])


class Replica:
    """A fold with its snapshots, which goes on from them or from what it has."""

    def __init__(self, ledger: Cutting) -> None:
        self._ledger = ledger
        self._tally = Tally()
        self._snapshots: Snapshots[Count] = Snapshots(ledger, self._tally, 0)
        self.fold: PartitionFold[Count] = PartitionFold(self._tally)

    async def start(self) -> None:
        """Load the newest snapshot, and the decisions behind it."""
        self.fold = PartitionFold(self._tally, await self._snapshots.load())
        assert await scan_decisions(self._ledger, self._tally, self.fold, 0) == []
        assert not self.fold.contradicted

    async def advance(self) -> None:
        """Fold what is there, and append what is not on record of it."""
        end = await self._ledger.end("experiments", 0)
        async for _, folded in refold(self._ledger, self._tally, self.fold, 0, until=end):
            assert folded.rejected is None
            if folded.new:
                await _append(self._ledger, *folded.new)
                self.fold.recorded.appended(len(folded.new))

    async def save(self) -> None:
        """Save, as far as there is room; only what is on record is saved."""
        if not self.fold.settled:
            return
        with contextlib.suppress(LedgerUnavailable):
            await self._snapshots.save(self.fold, _settled)


STEPS = st.lists(
    st.one_of(
        st.sampled_from(KEYS),
        st.tuples(st.integers(0, 1), st.integers(0, 4)),
        st.just("restart"),
    ),
    max_size=25,
)


@given(STEPS)
def test_whatever_is_cut_short_or_written_over(steps: list[str | tuple[int, int]]) -> None:
    """A start from what two replicas left, at any moment, is a start from the beginning.

    One of them may have been asleep for long: it writes what it knew.
    """

    async def check() -> None:
        ledger = Cutting(partitions=1)
        replicas = [Replica(ledger), Replica(ledger)]
        for number, step in enumerate(steps, start=1):
            if isinstance(step, tuple):
                which, ledger.room = step
                await replicas[which].save()
                ledger.room = 1 << 30
            elif step == "restart":
                await replicas[0].start()
            else:
                await _append(ledger, pause(number, step))
                await _advance_first(replicas)
        third = Replica(ledger)
        await third.start()
        decided = await ledger.end("searches", 0)
        await third.advance()
        assert await ledger.end("searches", 0) == decided
        whole: PartitionFold[Count] = PartitionFold(Tally())
        for record in await ledger.read("experiments", 0, 0, 1_000):
            whole.fold(record)
        assert [third.fold.state(key) for key in KEYS] == [whole.state(key) for key in KEYS]

    asyncio.run(check())


async def _advance_first(replicas: list[Replica]) -> None:
    """Let one replica decide; the other follows every now and then, from a new start."""
    await replicas[0].advance()
    if replicas[0].fold.facts % 3 == 0:
        await replicas[1].start()
        await replicas[1].advance()


async def test_only_what_changed_is_written() -> None:
    """The cost of a save is that of the keys that changed since the one before."""
    ledger = Cutting(partitions=1)
    replica = Replica(ledger)
    await _append(ledger, *(pause(1, f"key-{number}") for number in range(300)))
    await replica.advance()
    await replica.save()
    await _append(ledger, pause(2, "key-7"))
    await replica.advance()
    ledger.room = 2  # a bucket, and the mark
    await replica.save()
    assert ledger.room == 0
    again = Replica(ledger)
    await again.start()
    assert (again.fold.facts, again.fold.state("key-7")) == (301, Count(pauses=2, decisions=4))


async def test_a_damaged_snapshot_is_left_out() -> None:
    """Whatever part of it was altered: folding begins at the first fact, and comes to the same."""
    ledger = Cutting(partitions=1)
    replica = Replica(ledger)
    await _append(ledger, *(pause(1, key) for key in KEYS))
    await replica.advance()
    await replica.save()
    saved = dict(ledger._snapshots)
    assert saved
    for place, value in saved.items():
        for at in range(0, len(value), 7):
            ledger._snapshots = saved | {
                place: value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
            }
            again = Replica(ledger)
            await again.start()
            assert again.fold.facts == 0, (place, at)
    await again.advance()
    assert [again.fold.state(key) for key in KEYS] == [replica.fold.state(key) for key in KEYS]

"""Archives come to hold what the ledger holds, whatever happens to those who write them."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.archive.stores import Killed, Mortal, Stale
from rung.checkpoint_gc.archiver import archive_now, archiving
from rung.events import LedgerDamaged, partition_of, topic
from rung.ledger import Draft, MemoryLedger
from rung.ledger.archive import Archived, ArchiveLedger, ArchiveSettings, ledgers_in, verify
from rung.ledger.archive.index import TOPICS, read_index
from rung.ledger.export.export import import_
from rung.runtime.assignment.assignment import ChangingAssignment
from rung.runtime.service import serve
from rung.storage import FolderStore, ObjectError
from support.ledger.conformance import draft
from support.ledger.events import populate
from support.ledger.history import contents, exported, simulated

pytestmark = pytest.mark.usefixtures("no_power_cuts")

SMALL = ArchiveSettings(segment_bytes=900, every_s=0.01, retry_s=0.01)


async def same(ledger: MemoryLedger, store: FolderStore) -> None:
    """Check that an archive is whole and holds what the ledger holds."""
    report = verify(store)
    assert report.problems == []
    assert report.notes == []
    again = await ArchiveLedger.open(store)
    assert again.id == ledger.id
    assert await contents(again) == await contents(ledger)


async def test_an_archive_holds_all_but_heartbeats(tmp_path: Path) -> None:
    """Every record of every topic, in segments; nothing of heartbeats."""
    ledger = MemoryLedger()
    await populate(ledger, ["aaaaaaaa", "bbbbbbbb"])
    await ledger.append([draft("a", name=topic.HEARTBEATS), draft("x", name=topic.DEADLETTER)])
    store = FolderStore(tmp_path)
    done = await archive_now(ledger, store, SMALL)
    await same(ledger, store)
    assert ledgers_in(store) == [ledger.id]
    assert {it.topic for it in done} == set(TOPICS)
    assert sum(it.records for it in done) == 2 * 5 * 5 + 5 * 2 + 1
    assert sum(it.segments for it in done) == len(read_index(store, ledger.id))
    assert all(it.behind == 0 for it in done)


async def test_archiving_again_adds_what_is_new(tmp_path: Path) -> None:
    """What lies in the store is where it goes on, and nothing else."""
    ledger = MemoryLedger()
    await populate(ledger, ["aaaaaaaa"])
    store = FolderStore(tmp_path)
    await archive_now(ledger, store, SMALL)
    before = store.list("")
    assert sum(it.records for it in await archive_now(ledger, store, SMALL)) == 0
    assert store.list("") == before
    await ledger.append([draft("bbbbbbbb")])
    (added,) = [it for it in await archive_now(ledger, store, SMALL) if it.records]
    assert (added.topic, added.partition, added.records) == (
        topic.EXPERIMENTS,
        partition_of("bbbbbbbb", 4),
        1,
    )
    assert set(before) < set(store.list(""))
    await same(ledger, store)


async def test_an_export_of_an_archive_is_that_of_the_ledger(tmp_path: Path) -> None:
    """Whatever reads a ledger reads an archive."""
    ledger = await simulated()
    store = FolderStore(tmp_path)
    await archive_now(ledger, store, ArchiveSettings(segment_bytes=20_000))
    assert await exported(await ArchiveLedger.open(store)) == await exported(ledger)


drafts = st.lists(
    st.builds(Draft, st.sampled_from(TOPICS), st.sampled_from("abc"), st.binary(max_size=40)),
    max_size=30,
)
kills = st.tuples(st.integers(1, 8), st.booleans())
turns = st.lists(
    st.tuples(drafts, st.integers(1, 2_000), st.one_of(st.none(), kills, st.just("stale"))),
    max_size=12,
)
"""What is appended; how large segments are; and how the look at it ends."""


@pytest.mark.sim
@given(turns)
@settings(max_examples=40)
async def test_killed_at_any_moment_by_any_number_of_writers(
    script: list[tuple[list[Draft], int, tuple[int, bool] | str | None]],
) -> None:
    """Writers that cut otherwise, are killed, or see nothing of each other, do no harm."""
    ledger = MemoryLedger(partitions=2)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        unseen = Stale(root)
        for added, size, end in script:
            await ledger.append(added)
            sizes = ArchiveSettings(segment_bytes=size)
            if isinstance(end, tuple):
                with contextlib.suppress(Killed):
                    await archive_now(ledger, Mortal(root, end[0], after=end[1]), sizes)
            elif end == "stale":
                await archive_now(ledger, unseen, sizes)
                unseen = Stale(root)
            else:
                await archive_now(ledger, FolderStore(root), sizes)
            await beginning(ledger, FolderStore(root))
        await ledger.append([draft("a")])
        await archive_now(ledger, FolderStore(root))
        await same(ledger, FolderStore(root))


async def beginning(ledger: MemoryLedger, store: FolderStore) -> None:
    """Check that an archive is whole and holds a beginning of each partition."""
    if not ledgers_in(store):
        return
    assert verify(store).problems == []
    held = await contents(ledger)
    for place, records in (await contents(await ArchiveLedger.open(store))).items():
        assert records == held[place][: len(records)]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("puts", range(1, 12))
async def test_no_decision_without_its_fact(tmp_path: Path, puts: int, *, after: bool) -> None:
    """A writer that is killed leaves an archive that can be imported as it is."""
    ledger = MemoryLedger(partitions=1)
    await populate(ledger, ["aaaaaaaa", "bbbbbbbb"])
    with contextlib.suppress(Killed):
        await archive_now(ledger, Mortal(tmp_path, puts, after=after), SMALL)
    store = FolderStore(tmp_path)
    if ledgers_in(store):
        lines = (await exported(await ArchiveLedger.open(store))).splitlines()
        await import_(MemoryLedger(), lines)


class Running:
    """An archiver that runs, and what it tells."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], int] = {}
        self._told = asyncio.Event()

    def watch(self, archived: Archived) -> None:
        """Take note."""
        self._ends[archived.topic, archived.partition] = archived.end
        self._told.set()

    async def until(self, name: str, partition: int, end: int) -> None:
        """Wait until the archive holds a partition up to a position."""
        async with asyncio.timeout(30):
            while self._ends.get((name, partition), 0) < end:
                self._told.clear()
                await self._told.wait()


async def test_it_goes_on_for_ever(tmp_path: Path) -> None:
    """What is appended while it runs comes into the archive too, also after a restart."""
    ledger = MemoryLedger(partitions=1)
    store = FolderStore(tmp_path)
    for end in (2, 4):
        running = Running()
        task = asyncio.create_task(serve(ledger, (archiving(store, SMALL, watch=running.watch),)))
        for more in (1, 0):
            await ledger.append([draft("a"), draft("a", name=topic.LOGS)])
            await running.until(topic.EXPERIMENTS, 0, end - more)
            await running.until(topic.LOGS, 0, end - more)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await same(ledger, store)


async def test_partitions_are_shared(tmp_path: Path) -> None:
    """A replica archives the partitions that are its own, with the decisions on their facts."""
    ledger = MemoryLedger(partitions=2)
    await populate(ledger, ["aaaaaaaa", "bbbbbbbb", "cccccccc"])
    store = FolderStore(tmp_path)
    replicas = [ChangingAssignment(), ChangingAssignment()]
    tell = [Running(), Running()]
    tasks = [
        asyncio.create_task(
            serve(ledger, (archiving(store, SMALL, watch=running.watch),), assignment)
        )
        for assignment, running in zip(replicas, tell, strict=True)
    ]
    for partition, (assignment, running) in enumerate(zip(replicas, tell, strict=True)):
        held = [topic.EXPERIMENTS, topic.POOLS, topic.METRICS, topic.LOGS, topic.DEADLETTER]
        await assignment.change({name: [partition] for name in held})
        for name in (topic.EXPERIMENTS, topic.SEARCHES, topic.RETIREMENTS):
            await running.until(name, partition, await ledger.end(name, partition))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await archive_now(ledger, store)
    await same(ledger, store)


async def test_a_store_that_refuses_is_asked_again(tmp_path: Path) -> None:
    """An archiver outlives an outage of its store, and forgets nothing meanwhile."""

    class Refusing(FolderStore):
        refusals = 5

        def put_bytes(self, name: str, data: bytes) -> None:
            if self.refusals:
                self.refusals -= 1
                raise ObjectError("the disk is full")
            super().put_bytes(name, data)

    ledger = MemoryLedger(partitions=1)
    await ledger.append([draft("a")] * 3)
    store, running = Refusing(tmp_path), Running()
    task = asyncio.create_task(serve(ledger, (archiving(store, SMALL, watch=running.watch),)))
    await running.until(topic.EXPERIMENTS, 0, 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert store.refusals == 0
    await same(ledger, store)


async def test_an_archive_ahead_of_its_ledger_is_an_error(tmp_path: Path) -> None:
    """A ledger that lost what was archived is not archived further, silently."""
    store = FolderStore(tmp_path)
    ledger = MemoryLedger(partitions=1, ledger_id="one")
    await ledger.append([draft("a")] * 3)
    await archive_now(ledger, store)
    shorter = MemoryLedger(partitions=1, ledger_id="one")
    await shorter.append([draft("a")] * 2)
    with pytest.raises(LedgerDamaged, match=r"experiments/0 up to 2, but .* ends at 2"):
        await archive_now(shorter, store)


async def test_what_retention_took_away_is_noted(tmp_path: Path) -> None:
    """Printed lines that the ledger dropped before they were archived are a hole that is told."""
    store = FolderStore(tmp_path)
    ledger = MemoryLedger(partitions=1)
    await ledger.append([draft("a", name=topic.LOGS)] * 40)
    await archive_now(ledger, store)
    await ledger.append([draft("a", name=topic.LOGS)] * 40)
    ledger._stream(topic.LOGS, 0).trim(10)
    await archive_now(ledger, store)
    report = verify(store)
    assert report.whole
    assert report.notes == [
        "positions 40 to 69 of logs/0 were never archived: the ledger no longer had them"
    ]
    held = (await contents(await ArchiveLedger.open(store)))[topic.LOGS, 0]
    assert [record.position for record in held] == [*range(40), *range(70, 80)]


async def test_what_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    """Lines of which the ledger has none any more are not behind for ever."""
    ledger = MemoryLedger(partitions=1)
    await ledger.append([draft("a", name=topic.LOGS)] * 40)
    stream = ledger._stream(topic.LOGS, 0)
    stream.first = 40
    stream.records.clear()
    (done,) = [it for it in await archive_now(ledger, FolderStore(tmp_path)) if it.end]
    assert done == Archived(topic.LOGS, 0, records=0, segments=0, end=40, behind=0)


async def test_two_writers_come_together_again(tmp_path: Path) -> None:
    """Where two wrote side by side, both go on behind the one that reached further."""
    ledger = MemoryLedger(partitions=1)
    await ledger.append([draft("a")] * 10)
    unseen = Stale(tmp_path)
    store = FolderStore(tmp_path)
    await archive_now(ledger, store, ArchiveSettings(segment_bytes=500))
    await archive_now(ledger, unseen, ArchiveSettings(segment_bytes=700))
    before = len(read_index(store, ledger.id))
    await ledger.append([draft("a")])
    for size in (500, 700):
        await archive_now(ledger, store, ArchiveSettings(segment_bytes=size))
    assert len(read_index(store, ledger.id)) == before + 1
    await same(ledger, store)

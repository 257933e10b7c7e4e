"""Projections: folded in transactions; a restart goes on from the file, or rebuilds it."""

import asyncio
import contextlib
import errno
import shutil
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from rung.events import (
    Event,
    LedgerDamaged,
    LedgerError,
    fact,
    partition_of,
    topic,
)
from rung.events.deadletter import MessageRetryRequested
from rung.events.experiment import PauseRequested, ResumeRequested
from rung.ledger import Draft, MemoryLedger, Record
from rung.runtime.processor.fold import Rejected
from rung.runtime.projection import Projection, Projections, runner
from rung.runtime.projection import store as module
from rung.runtime.projection.merge import Rejection, rejected_of
from rung.runtime.projection.store import StoreDamaged, prepare


class Pauses(Projection):
    """Who was paused, in the order of arrival."""

    name = "pauses"
    facts = topic.EXPERIMENTS
    handles = PauseRequested
    schema = "CREATE TABLE pauses (number INTEGER PRIMARY KEY, id TEXT CHECK (id != 'poison'))"
    slow_s: ClassVar[float] = 0.0

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:
        """Note a pause."""
        if self.slow_s:
            time.sleep(self.slow_s)
        db.execute("INSERT INTO pauses (id) VALUES (?)", (key,))
        if key == "broken":
            raise ValueError("what it wrote is undone")


class Requests(Pauses):
    """Who was paused, and which messages were to be retried, which have keys of their own."""

    name = "requests"
    handles = PauseRequested | MessageRetryRequested
    streams = (topic.DEADLETTER,)


def _draft(key: str, sequence: int, kind: type[PauseRequested | ResumeRequested]) -> Draft:
    event = fact(
        kind(experiment_id=key), source="/rung/test", origin="test", sequence=sequence, time="t"
    )
    return Draft.of(event)


async def _pause(ledger: MemoryLedger, *keys: str, first: int = 1) -> None:
    drafts = [_draft(key, first + n, PauseRequested) for n, key in enumerate(keys)]
    await ledger.append(drafts)


def _names(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT id FROM pauses ORDER BY number")]


@contextlib.asynccontextmanager
async def _running(
    ledger: MemoryLedger, folder: Path | None = None, projection: Projection | None = None
) -> AsyncIterator[Projections]:
    running = Projections(ledger, [projection or Pauses()], reader="test", folder=folder)
    await running.start(wait_s=20)
    yield running
    await running.close()


async def _found(running: Projections, ledger: MemoryLedger) -> list[str]:
    ends = {
        (topic.EXPERIMENTS, n): await ledger.end(topic.EXPERIMENTS, n) - 1
        for n in range(ledger.partitions(topic.EXPERIMENTS))
    }
    assert await running.reached(ends, wait_s=20)
    return await running.stores["pauses"].read(_names)


async def _rejected(running: Projections) -> list[Rejection]:
    return await running.stores["pauses"].read(rejected_of)


@pytest.fixture
def ledger() -> MemoryLedger:
    """Return a ledger of one partition."""
    return MemoryLedger(partitions=1)


async def test_repetitions_count_once(ledger: MemoryLedger) -> None:
    """Live or caught up; other types are skipped."""
    await _pause(ledger, "a", "b")
    async with _running(ledger) as running:
        await ledger.append([_draft("a", 9, ResumeRequested)])
        await _pause(ledger, "a", "b", "c")

        assert await _found(running, ledger) == ["a", "b", "c"]


async def test_a_record_that_raises_is_undone_alone(ledger: MemoryLedger) -> None:
    """What is around it is folded; the file says which it is and why, and the ledger nothing."""
    await _pause(ledger, "a", "broken", "b", "poison", "c")
    await ledger.append([Draft(topic.EXPERIMENTS, "x", b"nonsense")])
    async with _running(ledger) as running:
        assert await _found(running, ledger) == ["a", "b", "c"]
        rejected = await _rejected(running)

    assert [(it.key, it.position, it.reason.split(":")[0]) for it in rejected] == [
        ("broken", 1, "ValueError"),
        ("poison", 3, "IntegrityError"),
        ("x", 5, "not an event"),
    ]
    assert rejected[-1].value == "nonsense"
    assert await ledger.end(topic.DEADLETTER, 0) == 0


async def test_restart_goes_on_from_the_file(ledger: MemoryLedger, tmp_path: Path) -> None:
    """Nothing is folded twice, and what came meanwhile is folded."""
    await _pause(ledger, "a", "b")
    async with _running(ledger, tmp_path):
        pass
    await _pause(ledger, "c", first=3)
    with sqlite3.connect(tmp_path / "pauses.db") as db:
        db.execute("INSERT INTO pauses (id) VALUES ('kept')")
    db.close()
    async with _running(ledger, tmp_path) as running:
        assert await _found(running, ledger) == ["a", "b", "kept", "c"]


class _Busy(MemoryLedger):
    """Others append to it whenever it is read."""

    async def read(self, name: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return records, after which there is one more."""
        found = await super().read(name, partition, position, limit)
        await asyncio.sleep(0)
        await _pause(self, "more", first=1 + await self.end(topic.EXPERIMENTS, 0))
        return found


async def test_a_start_ends_although_events_come_all_the_time() -> None:
    """What the ledger held at the start is folded; the rest never ends."""
    ledger = _Busy(partitions=1)
    await _pause(ledger, "a", "b")
    async with asyncio.timeout(20), _running(ledger) as running:
        assert running.behind() is None
        assert (await running.stores["pauses"].read(_names))[:2] == ["a", "b"]


class _Counted(MemoryLedger):
    """Counts how often it is read."""

    reads = 0

    async def read(self, name: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return records."""
        self.reads += 1
        return await super().read(name, partition, position, limit)


async def test_records_are_looked_for_where_there_are_some() -> None:
    """One read for a record, however many topics a projection has, and none where nothing came."""
    ledger = _Counted(partitions=4)
    async with _running(ledger, projection=Requests()) as running:
        await _pause(ledger, "first")
        positions = {
            (topic.EXPERIMENTS, n): await ledger.end(topic.EXPERIMENTS, n) - 1 for n in range(4)
        }
        assert await running.reached(positions, wait_s=20)
        before = ledger.reads
        for number in range(10):
            place = (topic.EXPERIMENTS, partition_of("a", 4))
            await _pause(ledger, "a", first=10 + number)
            reached = {place: await ledger.end(*place) - 1}
            assert await running.reached(reached, wait_s=20)
        assert ledger.reads - before <= 10


class _Newer(Pauses):
    version = 2


@pytest.mark.parametrize("damage", ["bytes", "version", "ledger", "history"])
async def test_a_file_that_is_not_right_is_rebuilt(
    ledger: MemoryLedger, tmp_path: Path, damage: str
) -> None:
    """One that is damaged, of another version, ledger or history; the log says so."""
    await _pause(ledger, "a", "b")
    async with _running(ledger, tmp_path):
        pass
    projection = Pauses()
    if damage == "bytes":
        (tmp_path / "pauses.db").write_bytes(b"nonsense" * 1_000)
    elif damage == "version":
        projection = _Newer()
    elif damage == "ledger":
        ledger = MemoryLedger(partitions=1)
        await _pause(ledger, "a", "b")
    else:
        ledger = MemoryLedger(partitions=1, ledger_id=ledger.id)
        await _pause(ledger, "c", "d", "e")
    with capture_logs() as logs:
        async with _running(ledger, tmp_path, projection) as running:
            found = await _found(running, ledger)

    assert found == (["c", "d", "e"] if damage == "history" else ["a", "b"])
    assert [it["event"] for it in logs].count("projection rebuilt") == 1


async def test_a_file_that_is_damaged_while_it_is_used_is_rebuilt(
    ledger: MemoryLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on by itself."""
    await _pause(ledger, "a")
    async with _running(ledger, tmp_path) as running:

        def corrupt(db: sqlite3.Connection) -> None:
            monkeypatch.undo()
            raise _corruption()

        monkeypatch.setattr(Pauses, "flush", lambda _, db: corrupt(db))
        with capture_logs() as logs:
            await _pause(ledger, "b", first=2)
            async with asyncio.timeout(20):
                while running.behind() is None:
                    await running.stores["pauses"].write(lambda: None)

            assert await _found(running, ledger) == ["a", "b"]
    assert [it["event"] for it in logs].count("projection rebuilt") == 1


_SPREAD = [
    next(name for n in range(1_000) if partition_of(name := f"{n}", 4) == partition)
    for partition in range(4)
]
"""A key of each of four partitions."""


async def test_a_damaged_file_is_rebuilt_for_all_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are idle begin again as well; until then nobody is told that they are folded."""
    ledger = MemoryLedger(partitions=4)
    await _pause(ledger, *_SPREAD)
    async with _running(ledger, tmp_path) as running:
        store = running.stores["pauses"]
        told = list[bool]()

        def look(db: sqlite3.Connection, projection: Projection, ledger_id: str) -> None:
            prepare(db, projection, ledger_id)
            told.append(running.behind() is None or any(it.positions for it in running._loops))

        def corrupt() -> None:
            monkeypatch.undo()
            monkeypatch.setattr("rung.runtime.projection.store.prepare", look)
            raise _corruption()

        monkeypatch.setattr(Pauses, "flush", lambda _, __: corrupt())
        await _pause(ledger, _SPREAD[2], first=5)
        async with asyncio.timeout(20):
            while not told:
                await store.write(lambda: None)

        assert sorted(await _found(running, ledger)) == sorted([*_SPREAD, _SPREAD[2]])
        assert running.behind() is None
    assert told == [False]


@pytest.mark.parametrize("differ", [{0}, {3}, {1, 3}, {1, 2, 3}, {0, 1, 2, 3}])
async def test_a_restored_ledger_is_folded_in_all_partitions(
    tmp_path: Path, differ: set[int]
) -> None:
    """Whichever of them hold other records than were folded."""
    ledger = MemoryLedger(partitions=4)
    await _pause(ledger, *_SPREAD)
    async with _running(ledger, tmp_path):
        pass
    restored = MemoryLedger(partitions=4, ledger_id=ledger.id)
    for number, name in enumerate(_SPREAD):
        first = 1 + number + (10 if number in differ else 0)
        await _pause(restored, name, first=first)
        if number in differ:
            await _pause(restored, name, first=first + 10)
    async with _running(restored, tmp_path) as running:
        found = await _found(running, restored)

        assert running.behind() is None
    assert sorted(found) == sorted([*_SPREAD, *(_SPREAD[number] for number in differ)])


@pytest.mark.parametrize("by", ["read", "peek"])
async def test_damage_that_a_query_meets_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A large file is not looked through when it is opened."""
    monkeypatch.setattr("rung.runtime.projection.store._SMALL", 0)
    ledger = MemoryLedger(partitions=4)
    await _pause(ledger, *_SPREAD)
    async with _running(ledger, tmp_path):
        pass
    with sqlite3.connect(tmp_path / "pauses.db") as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'pauses'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
        db.execute("PRAGMA journal_mode = DELETE")
    db.close()
    with (tmp_path / "pauses.db").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    async with _running(ledger, tmp_path) as running:
        store = running.stores["pauses"]
        with pytest.raises(StoreDamaged):
            _ = await store.read(_names) if by == "read" else store.peek(_names)
        await store.write(lambda: None)

        assert sorted(await _found(running, ledger)) == sorted(_SPREAD)
        assert sorted(store.peek(_names)) == sorted(_SPREAD)


async def test_a_file_that_cannot_be_made_anew_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries say so meanwhile, and the loops go on once the disk has space."""
    ledger = MemoryLedger(partitions=4)
    await _pause(ledger, *_SPREAD)
    async with _running(ledger, tmp_path) as running:
        store = running.stores["pauses"]
        generation = store.generation

        def damaged(_: sqlite3.Connection) -> None:
            raise _corruption()

        def fail(*_: object) -> None:
            monkeypatch.undo()
            raise OSError(errno.ENOSPC, "no space left")

        monkeypatch.setattr("rung.runtime.projection.store.prepare", fail)
        with pytest.raises(StoreDamaged):
            await store.read(damaged)
        await store.write(lambda: None)

        assert store.generation >= generation + 2
        assert sorted(await _found(running, ledger)) == sorted(_SPREAD)


def _corruption() -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


async def test_files_are_of_one_process(ledger: MemoryLedger, tmp_path: Path) -> None:
    """Another one that is given the same folder is refused, with what to do."""
    other = Projections(ledger, [Pauses()], reader="test", folder=tmp_path)
    async with _running(ledger, tmp_path):
        with pytest.raises(LedgerError, match="give each a folder of its own"):
            await other.start(wait_s=0)
        await other.close()
    async with _running(ledger, tmp_path):
        pass


async def test_a_close_that_is_cut_short_lets_go_of_the_files(
    ledger: MemoryLedger, tmp_path: Path
) -> None:
    """Another replica in the same process may have them."""
    running = Projections(ledger, [Pauses()], reader="test", folder=tmp_path)
    await running.start(wait_s=20)
    closing = asyncio.create_task(running.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    async with _running(ledger, tmp_path):
        pass
    await running.close()


async def test_a_full_disk_is_waited_for(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is rejected that the disk is to blame for."""
    async with _running(ledger) as running:

        def fill(db: sqlite3.Connection) -> None:
            monkeypatch.undo()
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        monkeypatch.setattr(Pauses, "flush", lambda _, db: fill(db))
        await _pause(ledger, "a", "b")

        assert await _found(running, ledger) == ["a", "b"]
        assert await _rejected(running) == []


async def test_what_lacks_the_newest_alone_is_whole(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that a full disk has start again is behind; its file has all but what came since."""
    await _pause(ledger, "a", "b")
    async with _running(ledger) as running:

        def fail(db: sqlite3.Connection) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        monkeypatch.setattr(Pauses, "flush", lambda _, db: fail(db))
        await _pause(ledger, "c", first=3)
        while running.behind() is None:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0)
        assert running.whole
        monkeypatch.undo()
        assert await _found(running, ledger) == ["a", "b", "c"]


async def test_it_answers_while_it_catches_up(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start waits as long as it is told; the event loop runs on while a batch is folded."""
    monkeypatch.setattr(Pauses, "slow_s", 0.3)
    await _pause(ledger, "a", "b")
    running = Projections(ledger, [Pauses()], reader="test")
    await running.start(wait_s=0.05)
    behind = running.behind()
    assert not running.whole
    gaps = [0.0]
    while running.behind() is not None:
        before = time.perf_counter()
        await asyncio.sleep(0)
        gaps.append(time.perf_counter() - before)
    found = await running.stores["pauses"].read(_names)
    await running.close()

    assert str(behind) == "catching up: 0 of 2 records"
    assert len(gaps) > 100
    assert sorted(gaps)[-len(gaps) // 100] < 0.01
    assert found == ["a", "b"]


class _Mended(Pauses):
    """A later release, which folds what the one before could not."""

    schema = "CREATE TABLE pauses (number INTEGER PRIMARY KEY, id TEXT)"

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:
        """Note a pause."""
        db.execute("INSERT INTO pauses (id) VALUES (?)", (key,))


@pytest.fixture
def mend(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what mends `Pauses`, whose schema and version stay."""
    return lambda: monkeypatch.setattr(Pauses, "evolve", _Mended.evolve)


@pytest.mark.parametrize("release", ["the next", "the same"])
async def test_another_release_folds_what_one_could_not(
    release: str,
    ledger: MemoryLedger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mend: Callable[[], None],
) -> None:
    """The whole file is rebuilt in the order of the ledger; the same release would fail again."""
    await _pause(ledger, "a", "broken", "b")
    async with _running(ledger, tmp_path) as running:
        assert await _found(running, ledger) == ["a", "b"]
    mend()
    if release == "the next":
        monkeypatch.setattr(module, "RELEASE", release)
    async with _running(ledger, tmp_path) as running:
        is_folded = release == "the next"
        assert await _found(running, ledger) == ["a", *["broken"] * is_folded, "b"]
        assert [it.key for it in await _rejected(running)] == ["broken"] * (not is_folded)


async def test_a_file_that_lacks_nothing_is_gone_on_from_by_each_release(
    ledger: MemoryLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that release's from then on: what it cannot fold, the one before may be able to."""
    await _pause(ledger, "a")
    async with _running(ledger, tmp_path):
        pass
    first = module.RELEASE
    folded: list[str] = []
    evolve = Pauses.evolve

    def note(self: Pauses, db: sqlite3.Connection, key: str, event: Event) -> None:
        folded.append(key)
        evolve(self, db, key, event)

    monkeypatch.setattr(Pauses, "evolve", note)
    monkeypatch.setattr(module, "RELEASE", "the next")
    async with _running(ledger, tmp_path) as running:
        await _pause(ledger, "broken", first=2)
        assert await _found(running, ledger) == ["a"]
        assert set(folded) == {"broken"}
    folded.clear()
    monkeypatch.setattr(module, "RELEASE", first)
    async with _running(ledger, tmp_path) as running:
        assert await _found(running, ledger) == ["a"]
    assert set(folded) == {"a", "broken"}


async def test_further_topics_are_folded_by_themselves(tmp_path: Path) -> None:
    """All of them, in the order of each, also what comes later and behind a restart."""
    ledger = MemoryLedger(partitions=2)

    async def retry(number: int) -> None:
        data = MessageRetryRequested(
            topic="experiments", partition=0, position=number, key="k", reader="r"
        )
        event = fact(data, source="/rung/test", origin="test", sequence=number, time="t")
        await ledger.append([Draft.of(event)])

    async def folded(running: Projections) -> list[str]:
        places = {
            (name, partition): await ledger.end(name, partition) - 1
            for name in (topic.EXPERIMENTS, topic.DEADLETTER)
            for partition in range(2)
        }
        assert await running.reached(places, wait_s=20)
        return sorted(await running.stores["requests"].read(_names))

    await _pause(ledger, "a", "b")
    await retry(1)
    async with _running(ledger, tmp_path, Requests()) as running:
        assert await folded(running) == ["a", "b", "experiments"]
        await retry(2)
        assert await folded(running) == ["a", "b", "experiments", "experiments"]
    await retry(3)
    await _pause(ledger, "c", first=3)
    async with _running(ledger, tmp_path, Requests()) as running:
        assert await folded(running) == ["a", "b", "c", *["experiments"] * 3]


async def test_a_folder_that_is_removed_is_made_anew(ledger: MemoryLedger, tmp_path: Path) -> None:
    """Its files are rebuilt beside the running process, which answers again without a restart."""
    await _pause(ledger, "a")
    folder = tmp_path / "projections"
    async with _running(ledger, folder, Pauses()) as running:
        assert await _found(running, ledger) == ["a"]
        shutil.rmtree(folder)
        await _pause(ledger, "b", first=2)
        store = running.stores[Pauses.name]
        store._local = threading.local()  # as of a thread that has not read yet
        async with asyncio.timeout(20):
            found: list[str] = []
            while found != ["a", "b"]:
                with contextlib.suppress(LedgerError):  # while it is being rebuilt
                    found = await store.read(_names)
                await asyncio.sleep(0)
        assert (folder / "pauses.db").exists()


async def test_a_kill_loses_no_rejection(
    ledger: MemoryLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed with the position behind it: a kill right then leaves both or neither."""
    await _pause(ledger, "broken", "a")

    def kill(_self: object, rejected: Sequence[Rejected]) -> None:
        if rejected:
            raise LedgerDamaged("killed")

    with monkeypatch.context() as patch:
        patch.setattr(runner._Loop, "_note", kill)
        killed = Projections(ledger, [Pauses()], reader="test", folder=tmp_path)
        with pytest.raises(LedgerDamaged):
            await killed.start(wait_s=20)
        await killed.close()
    async with _running(ledger, tmp_path) as running:
        assert await _found(running, ledger) == ["a"]
        assert [(it.key, it.position) for it in await _rejected(running)] == [("broken", 0)]

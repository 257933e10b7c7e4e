"""Copies of projections' files: a replica without a file starts from another one's."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rung.events import Event, fact, topic
from rung.events.errors import ObjectUnavailable
from rung.events.experiment import PauseRequested
from rung.ledger import Draft, MemoryLedger, Record
from rung.runtime.projection import Projection, Projections
from rung.runtime.projection.copies import Copies
from rung.storage import FolderStore, ObjectInfo

PLACES = 2


class Pauses(Projection):
    """Who was paused, in the order of arrival within a partition."""

    name = "pauses"
    facts = topic.EXPERIMENTS
    handles = PauseRequested
    schema = "CREATE TABLE pauses (number INTEGER PRIMARY KEY, id TEXT)"

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:
        """Note a pause."""
        db.execute("INSERT INTO pauses (id) VALUES (?)", (key,))


class Newer(Pauses):
    """The same in tables of another version."""

    version = 2


class Watched(MemoryLedger):
    """A ledger that notes from which positions it was read."""

    def __init__(self, **options: Any) -> None:
        super().__init__(partitions=PLACES, **options)
        self.lowest: dict[int, int] = {}

    async def read(self, name: str, partition: int, position: int, limit: int) -> list[Record]:
        """Note the lowest position of what is read to be folded, then read."""
        if limit > 1:
            self.lowest[partition] = min(position, self.lowest.get(partition, position))
        return await super().read(name, partition, position, limit)


class Away(FolderStore):
    """An object store that does not answer."""

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Raise."""
        raise ObjectUnavailable("it is away")


async def _pause(ledger: MemoryLedger, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        event = fact(
            PauseRequested(experiment_id=f"e{number}"),
            source="/rung/test",
            origin="test",
            sequence=number,
            time="t",
        )
        await ledger.append([Draft.of(event)])


@contextlib.asynccontextmanager
async def _replica(
    ledger: MemoryLedger, objects: FolderStore, folder: Path, projection: Projection | None = None
) -> AsyncIterator[Projections]:
    made = [projection or Pauses()]
    running = Projections(ledger, made, reader="test", folder=folder, objects=objects)
    await running.start(wait_s=20)
    assert running.behind() is None
    yield running
    await running.close()


async def _follows(replica: Projections, ledger: MemoryLedger) -> None:
    """Wait until a replica has folded all that there is."""
    ends = {
        (topic.EXPERIMENTS, place): await ledger.end(topic.EXPERIMENTS, place) - 1
        for place in range(PLACES)
    }
    assert await replica.reached(ends, wait_s=20)


async def _shown(replica: Projections) -> set[str]:
    def read(db: sqlite3.Connection) -> list[str]:
        return [name for (name,) in db.execute("SELECT id FROM pauses")]

    found = await replica.stores["pauses"].read(read)
    assert len(found) == len(set(found))
    return set(found)


def _names(*numbers: int) -> set[str]:
    return {f"e{number}" for number in range(*numbers)}


def _copies(objects: FolderStore) -> list[str]:
    return [item.name for item in objects.list("snapshots/")]


def _left(folder: Path) -> list[Path]:
    """Return the copies in folders of replicas."""
    return list(folder.glob("*/*.copy"))


@pytest.fixture
def ledger() -> Watched:
    """Return an empty ledger."""
    return Watched()


@pytest.fixture
def objects(tmp_path: Path) -> FolderStore:
    """Return an empty object store."""
    return FolderStore(tmp_path / "objects")


async def test_a_replica_without_a_file_starts_from_a_copy(
    ledger: Watched, objects: FolderStore, tmp_path: Path
) -> None:
    """It reads what was appended behind the copy alone, and goes on as any other."""
    await _pause(ledger, 50)
    async with _replica(ledger, objects, tmp_path / "a") as first:
        await first.publish(worth=1)
    published = [await ledger.end(topic.EXPERIMENTS, place) for place in range(PLACES)]
    await _pause(ledger, 15, first=50)
    ledger.lowest.clear()
    async with _replica(ledger, objects, tmp_path / "b") as second:
        assert await _shown(second) == _names(65)
        await _pause(ledger, 5, first=65)
        await _follows(second, ledger)
        assert await _shown(second) == _names(70)

    assert all(published)
    assert ledger.lowest == dict(enumerate(published))
    assert _left(tmp_path) == []


async def test_a_copy_is_one_moment_of_a_file_that_is_written(
    ledger: Watched, objects: FolderStore, tmp_path: Path
) -> None:
    """What replicas show that start from copies of such moments is all there is, and once."""
    await _pause(ledger, 50)
    async with _replica(ledger, objects, tmp_path / "a") as first:
        for number in range(5):
            begun = 50 + 40 * number
            await asyncio.gather(_pause(ledger, 40, first=begun), first.publish(worth=1))
            async with _replica(ledger, objects, tmp_path / f"b{number}") as other:
                assert await _shown(other) == _names(begun + 40)
    assert len(_copies(objects)) == 2


async def test_it_is_published_where_it_is_worth_it(
    ledger: Watched, objects: FolderStore, tmp_path: Path
) -> None:
    """With so many more records than the newest copy has, whoever published that."""
    await _pause(ledger, 50)
    async with (
        _replica(ledger, objects, tmp_path / "a") as first,
        _replica(ledger, objects, tmp_path / "b") as second,
    ):
        await first.publish(worth=51)
        assert _copies(objects) == []
        await first.publish(worth=50)
        await second.publish(worth=1)
        assert len(_copies(objects)) == 1


async def test_old_copies_go(ledger: Watched, objects: FolderStore, tmp_path: Path) -> None:
    """All but two of these tables, and those of others that are older; a newer one stays."""
    await _pause(ledger, 10)
    async with (
        _replica(ledger, objects, tmp_path / "a", Newer()) as newer,
        _replica(ledger, objects, tmp_path / "b") as older,
    ):
        await newer.publish(worth=1)
        [oldest] = _copies(objects)
        await older.publish(worth=1)
        assert oldest in _copies(objects)
        for number in (10, 11):
            await _pause(ledger, 1, first=number)
            await _follows(older, ledger)
            await older.publish(worth=1)
        assert oldest not in _copies(objects)
        assert len(_copies(objects)) == 2
        await newer.publish(worth=1)
        assert len(_copies(objects)) == 3


@pytest.mark.parametrize("fault", ["damaged", "of other tables", "gone", "of another history"])
async def test_a_copy_that_will_not_do_is_left_out(
    ledger: Watched, objects: FolderStore, tmp_path: Path, fault: str
) -> None:
    """The ledger is folded from its start then."""
    await _pause(ledger, 50)
    async with _replica(ledger, objects, tmp_path / "a") as first:
        await first.publish(worth=1)
    ledger.lowest.clear()
    [name] = _copies(objects)
    projection, expected = Pauses(), _names(50)
    if fault == "damaged":
        data = bytearray(objects.read(name))
        data[len(data) // 2] ^= 1
        objects.put_bytes(name, bytes(data))
    elif fault == "of other tables":
        projection = Newer()
    elif fault == "gone":
        objects.delete(name)
    else:
        ledger, expected = Watched(ledger_id=ledger.id), _names(1_000, 1_060)
        await _pause(ledger, 60, first=1_000)
    async with _replica(ledger, objects, tmp_path / "b", projection) as second:
        assert await _shown(second) == expected
    assert ledger.lowest == dict.fromkeys(range(PLACES), 0)


async def test_a_file_that_can_be_gone_on_from_stays(
    ledger: Watched, objects: FolderStore, tmp_path: Path
) -> None:
    """A copy is no better, even a newer one."""
    await _pause(ledger, 50)
    async with _replica(ledger, objects, tmp_path / "a"):
        pass
    file = (tmp_path / "a" / "pauses.db").stat().st_ino
    await _pause(ledger, 50, first=50)
    async with _replica(ledger, objects, tmp_path / "b") as other:
        await other.publish(worth=1)
    async with _replica(ledger, objects, tmp_path / "a"):
        pass
    assert (tmp_path / "a" / "pauses.db").stat().st_ino == file


async def test_nothing_depends_on_the_store(ledger: Watched, tmp_path: Path) -> None:
    """Where it is away a replica folds from the start, and says that it cannot publish."""
    await _pause(ledger, 50)
    with capture_logs() as logs:
        async with _replica(ledger, Away(tmp_path / "objects"), tmp_path / "a") as first:
            await first.publish(worth=1)
            assert await _shown(first) == _names(50)
    found = [it["event"] for it in logs if it.get("reason") == "it is away"]
    assert found == ["no copy of a projection", "projection not published"]


def test_the_newest_copy_has_the_most_records(objects: FolderStore, tmp_path: Path) -> None:
    """Whatever was published last."""
    copies = Copies(objects, "ledger")
    (tmp_path / "file").write_bytes(b"x")
    for records in (9, 100, 20):
        copies.publish("pauses", "tables", tmp_path / "file", records)
    newest = copies.newest("pauses", "tables")
    assert newest is not None
    assert newest.records == 100

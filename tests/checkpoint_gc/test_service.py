"""checkpoint-gc on a ledger and a store: what is retired is deleted, and that is recorded."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from checkpoint_gc.scenario import EXPERIMENT, ended, over, stored, submitted
from rung.checkpoint_gc import CheckpointGC
from rung.checkpoint_gc.service import components
from rung.checkpoint_gc.settings import Settings
from rung.events import Event, Payload, decode, partition_of, topic
from rung.events.checkpoint import CheckpointDeleted, CheckpointRetired
from rung.events.experiment import ExperimentEnded
from rung.events.trial import TrialClosed
from rung.ledger import Ledger, MemoryLedger, SqliteLedger
from rung.ledger.archive import verify
from rung.runtime import FactWriter, audit
from rung.runtime.service import serve
from rung.storage import FolderStore, ObjectError, ObjectUnavailable, checkpoint_prefix
from support.runtime.decided import append_decision

_FAST = Settings(retry_min=0.01, retry_max=0.01)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """An empty store."""
    return FolderStore(tmp_path / "objects")


@contextlib.asynccontextmanager
async def _serving(ledger: Ledger, store: FolderStore) -> AsyncIterator[None]:
    task = asyncio.create_task(serve(ledger, components(store, _FAST)))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _prefix(checkpoint_id: str) -> str:
    return checkpoint_prefix(EXPERIMENT, checkpoint_id)


def _write(store: FolderStore, checkpoint_id: str) -> None:
    for name in ("manifest.json", "model.pt", "more/state.pt"):
        store.put_bytes(_prefix(checkpoint_id) + name, b"x")


def _names(store: FolderStore) -> list[str]:
    """Return the checkpoints of which any object is left."""
    return sorted({info.name.split("/")[2] for info in store.list(f"checkpoints/{EXPERIMENT}/")})


def _writer(ledger: Ledger, origin: str = "test") -> FactWriter:
    return FactWriter(ledger, source="/rung/test", origin=origin)


async def _next(ledger: Ledger, name: str, kind: type[Payload], count: int = 1) -> list[Event]:
    partition = partition_of(EXPERIMENT, ledger.partitions(name))
    found: list[Event] = []
    async with asyncio.timeout(20):
        async for records in ledger.follow(name, partition, 0):
            events = [decode(record.value) for record in records]
            found += [event for event in events if isinstance(event.data, kind)]
            if len(found) >= count:
                break
    return found


async def _fill(ledger: Ledger, store: FolderStore, count: int) -> None:
    """Store checkpoints c1, c2, … of one live trial whose policy is its latest only."""
    await _writer(ledger, "gateway").write(submitted(0, 0, 1))
    agent = _writer(ledger, "agent")
    for steps in range(1, count + 1):
        _write(store, f"c{steps}")
        await agent.write(stored(f"c{steps}", steps))


async def test_what_is_retired_is_deleted_and_recorded(store: FolderStore) -> None:
    """Older checkpoints go while the trial lives, the one before the latest when it is closed."""
    ledger = MemoryLedger()
    async with _serving(ledger, store):
        await _fill(ledger, store, 4)
        await _next(ledger, topic.EXPERIMENTS, CheckpointDeleted, count=2)
        assert _names(store) == ["c3", "c4"]

        await append_decision(ledger, ended())
        await _next(ledger, topic.EXPERIMENTS, CheckpointDeleted, count=3)
    verdict = await audit(ledger, CheckpointGC())

    assert _names(store) == ["c4"]
    assert (verdict.decisions, verdict.differences) == (3, [])


async def test_the_end_of_an_experiment_is_relayed_as_it_is(store: FolderStore) -> None:
    """The searcher's decision is a fact to the collector, of the same type."""
    ledger = MemoryLedger()
    await _fill(ledger, store, 1)
    await append_decision(ledger, over())
    [end] = await _next(ledger, topic.SEARCHES, ExperimentEnded)
    async with _serving(ledger, store):
        [fact] = await _next(ledger, topic.EXPERIMENTS, ExperimentEnded)

    assert (end.topic, fact.topic) == (topic.SEARCHES, topic.EXPERIMENTS)
    assert (fact.data, fact.cause, fact.source) == (over(), end.id, "/rung/checkpoint-gc")


async def test_a_deletion_without_a_record_is_repeated(store: FolderStore) -> None:
    """Killed between delete and record, the collector finds nothing to delete, and records it."""
    ledger = MemoryLedger()
    async with _serving(ledger, store):
        await _fill(ledger, store, 3)
        await _next(ledger, topic.EXPERIMENTS, CheckpointDeleted)
    for partition in range(ledger.partitions(topic.RETIREMENTS)):
        await ledger.commit("checkpoint-gc-deleter", topic.RETIREMENTS, partition, 0)
        await ledger.commit("checkpoint-gc-intake", topic.SEARCHES, partition, 0)
    await append_decision(ledger, ended())
    async with _serving(ledger, store):
        await _next(ledger, topic.EXPERIMENTS, TrialClosed)
        deleted = await _next(ledger, topic.EXPERIMENTS, CheckpointDeleted, count=3)
    retired = await _next(ledger, topic.RETIREMENTS, CheckpointRetired)

    assert [e.data.checkpoint_id for e in deleted] == ["c1", "c1", "c2"]  # type: ignore[union-attr]
    assert deleted[0].id == deleted[1].id
    assert len(retired) == 2
    assert _names(store) == ["c3"]


class _Refusing(FolderStore):
    """A store that deletes single objects, but no folders until it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.works = False
        self.tries = 0
        self.tried_twice = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def delete(self, prefix: str) -> int:
        """Delete, or fail as a store does that is away."""
        if prefix.endswith("/") and not self.works:
            self.tries += 1
            if self.tries == 2:
                self._loop.call_soon_threadsafe(self.tried_twice.set)
            raise ObjectUnavailable(f"cannot delete {prefix!r}: connection lost")
        return super().delete(prefix)


async def test_a_store_that_refuses_is_asked_again(tmp_path: Path) -> None:
    """A deletion that fails half-way leaves no manifest; it is repeated, and nothing skipped."""
    ledger = MemoryLedger()
    store = _Refusing(tmp_path / "objects")
    async with _serving(ledger, store):
        await _fill(ledger, store, 4)
        async with asyncio.timeout(20):
            await store.tried_twice.wait()
        assert _names(store) == ["c1", "c2", "c3", "c4"]
        assert [info.name.rsplit("/", 1)[1] for info in store.list(_prefix("c1"))] == [
            "model.pt",
            "state.pt",
        ]

        store.works = True
        deleted = await _next(ledger, topic.EXPERIMENTS, CheckpointDeleted, count=2)

    assert [e.data.checkpoint_id for e in deleted] == ["c1", "c2"]  # type: ignore[union-attr]
    assert _names(store) == ["c3", "c4"]


class _Locking(FolderStore):
    """A store in which one checkpoint is locked until somebody lets it go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.locked = True

    def delete(self, prefix: str) -> int:
        """Delete, but not what is locked."""
        if self.locked and prefix.startswith(_prefix("c1")):
            raise ObjectError(f"cannot delete {prefix!r}: it is locked")
        return super().delete(prefix)


async def test_a_checkpoint_that_is_locked_holds_up_no_other(tmp_path: Path) -> None:
    """It is left for later, also when the service starts again, and goes once it is let go."""
    ledger = MemoryLedger()
    store = _Locking(tmp_path / "objects")
    async with _serving(ledger, store):
        await _fill(ledger, store, 4)
        await _next(ledger, topic.EXPERIMENTS, CheckpointDeleted)
        assert _names(store) == ["c1", "c3", "c4"]
    async with _serving(ledger, store):
        await append_decision(ledger, ended())
        await _next(ledger, topic.EXPERIMENTS, CheckpointDeleted, count=2)
    store.locked = False
    async with _serving(ledger, store):
        deleted = await _next(ledger, topic.EXPERIMENTS, CheckpointDeleted, count=3)

    assert [e.data.checkpoint_id for e in deleted] == ["c2", "c3", "c1"]  # type: ignore[union-attr]
    assert _names(store) == ["c4"]
    marks: dict[str | None, int] = {}
    for event in deleted:  # no reader takes one of them for a repetition
        assert event.sequence is not None
        assert event.sequence > marks.get(event.origin, -1)
        marks[event.origin] = event.sequence


@pytest.mark.parametrize("name", ["../c2", "c2/more", "", ".", "..", ".incoming", "x" * 500])
async def test_an_id_that_is_no_name_deletes_nothing(store: FolderStore, name: str) -> None:
    """A script that reports a strange checkpoint id harms neither others nor the collector."""
    ledger = MemoryLedger()
    async with _serving(ledger, store):
        await _writer(ledger, "gateway").write(submitted(0, 0, 1))
        agent = _writer(ledger, "agent")
        await agent.write(stored(name, 0))
        for steps in (1, 2, 3):
            _write(store, f"c{steps}")
            await agent.write(stored(f"c{steps}", steps))
        [deleted] = await _next(ledger, topic.EXPERIMENTS, CheckpointDeleted)

    assert deleted.data.checkpoint_id == "c1"  # type: ignore[union-attr]
    assert _names(store) == ["c2", "c3"]


async def test_the_program_collects_and_leaves_when_told(tmp_path: Path) -> None:
    """`python -m rung.checkpoint_gc` serves a ledger on disk and ends with code 0 at SIGTERM."""
    store = FolderStore(tmp_path / "objects")
    ledger = await SqliteLedger.open(tmp_path / "ledger")
    options = ["--ledger", str(tmp_path / "ledger"), "--objects", store.url]
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rung.checkpoint_gc", *options
    )
    try:
        await _fill(ledger, store, 3)
        await _next(ledger, topic.EXPERIMENTS, CheckpointDeleted)
        program.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await program.wait() == 0
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
        await ledger.close()

    assert _names(store) == ["c2", "c3"]


async def test_the_program_archives_the_ledger(tmp_path: Path) -> None:
    """With --archive it does; on a ledger in a file only then."""
    store = FolderStore(tmp_path / "objects")
    ledger = await SqliteLedger.open(tmp_path / "ledger", partitions=1)
    options = ["--ledger", str(tmp_path / "ledger"), "--objects", store.url]
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rung.checkpoint_gc", *options),
        *("--archive", "--archive-every", "0.2"),
    )
    try:
        await _fill(ledger, store, 3)
        async with asyncio.timeout(30):
            prefix = f"archive/{ledger.id}/{topic.RETIREMENTS}/"
            while not store.list(prefix):  # noqa: ASYNC110 - it lies in another process
                await asyncio.sleep(0.05)
        program.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await program.wait() == 0
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
        await ledger.close()
    assert verify(store).whole


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retry_min", 0.0),
        ("retry_min", float("nan")),
        ("retry_max", 0.5),
        ("retry_max", float("inf")),
        ("snapshot_every", 0),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    """A setting that makes no sense is named, with one that would."""
    with pytest.raises(ValueError, match=f"{name} is .*such as"):
        Settings(**{name: value})  # type: ignore[arg-type]

"""Models on a ledger and a store: directory, relay, processor and sink, killed between any two."""

import asyncio
import contextlib
import io
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec import structs

from checkpoint_gc.scenario import EXPERIMENT, ended, over, stored, submitted, trial_id, unwanted
from rung.checkpoint_gc import CheckpointGC
from rung.checkpoint_gc.service import components
from rung.checkpoint_gc.settings import Settings
from rung.cli.operations.components import CONSUMERS
from rung.cli.operations.ledger.import_recovery import hand_over, hand_over_alone
from rung.events import LedgerDamaged, changes, topic
from rung.events.directory import (
    ADMIN,
    DEFAULT,
    ChangeRefused,
    ChangeRequested,
    DirectoryChanged,
)
from rung.gateway.directory.directory import Directory
from rung.gateway.directory.processor import DirectoryProcessor
from rung.ledger import Draft, Ledger, MemoryLedger
from rung.ledger.export.export import export, import_
from rung.ledger.port import read_all
from rung.runtime import FactWriter, audit, host
from rung.runtime.service import serve
from rung.storage import FolderStore, Provenance, delete_checkpoint, store_checkpoint
from support.runtime.decided import append_decision

_FAST = Settings(retry_min=0.01, retry_max=0.01)


class _Killing(MemoryLedger):
    """A ledger behind which whoever appends is killed after some records."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.left = 1_000
        """Records until then."""
        self.killed = asyncio.Event()

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append, perhaps a part; who is killed learns of nothing, and does nothing more."""
        part = drafts[: self.left]
        found = await super().append(part)
        self.left -= len(part)
        if self.left == 0:
            self.killed.set()
            raise LedgerDamaged("killed")
        return found


@contextlib.asynccontextmanager
async def _serving(ledger: Ledger, store: FolderStore) -> AsyncIterator[Directory]:
    """Run both services, and a replica's directory."""
    directory = Directory(ledger)
    await directory.start()
    tasks = [
        asyncio.create_task(serve(ledger, components(store, _FAST))),
        asyncio.create_task(host(ledger, DirectoryProcessor(), snapshot_every=1_000)),
        asyncio.create_task(directory.run()),
    ]
    try:
        yield directory
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _store(
    ledger: Ledger, store: FolderStore, folder: Path, *names: str, area: str = ""
) -> None:
    """Store checkpoints of an experiment in an area, of which an agent reports."""
    await asyncio.to_thread(folder.mkdir)
    await asyncio.to_thread((folder / "model.pt").write_bytes, b"weights")
    provenance = Provenance(
        experiment_id=EXPERIMENT,
        trial_id=trial_id(0),
        run=1,
        code=None,
        config="",
        environment={},
        data=None,
    )
    asked = submitted(0, 0, 9)
    if area:
        asked = structs.replace(asked, areas={EXPERIMENT: area})
    await FactWriter(ledger, source="/rung/test", origin="gateway").write(asked)
    agent = FactWriter(ledger, source="/rung/test", origin="agent")
    for steps, name in enumerate(names, 1):
        store_checkpoint(
            store.area(area),
            folder,
            checkpoint_id=name,
            steps_completed=steps,
            metadata={},
            provenance=provenance,
        )
        await agent.write(stored(name, steps))


class _People:
    """Who asks for changes."""

    def __init__(self, ledger: Ledger) -> None:
        self._writer = FactWriter(ledger, source="/rung/gateway", origin="gateway/1")
        self.count = 0

    async def ask(self, change: changes.Change) -> str:
        """Write a request; return its id."""
        self.count += 1
        name = f"r{self.count}"
        data = ChangeRequested(request_id=name, by=ADMIN, at_ms=self.count, change=change)
        await self._writer.write(data)
        return name

    async def register(self, checkpoint_id: str, area: str = "") -> str:
        """Write the request for a version; return its id."""
        change = changes.RegisterVersion(
            model_version_id=f"v{self.count + 1}",
            model_id="m",
            experiment_id=EXPERIMENT,
            trial_id=trial_id(0),
            checkpoint_id=checkpoint_id,
            area=area,
        )
        return await self.ask(change)


async def _answer(directory: Directory, name: str) -> DirectoryChanged | ChangeRefused:
    async with asyncio.timeout(20):
        await directory.until(lambda: directory.answer_to(name) is not None)
    found = directory.answer_to(name)
    assert found is not None
    return found


async def _either(killed: asyncio.Event, directory: Directory, names: list[str]) -> None:
    """Wait until whoever appends is killed, or all requests are answered."""
    waits = [
        asyncio.create_task(killed.wait()),
        asyncio.create_task(directory.until(lambda: all(map(directory.answer_to, names)))),
    ]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


_MODEL = changes.CreateModel(model_id="m", workspace_id=DEFAULT, name="digits")


@pytest.mark.parametrize("area", ["", "teams/vision"])
@pytest.mark.parametrize("closed", [False, True])
async def test_a_version_is_there_once_its_checkpoint_is_held(
    tmp_path: Path, *, closed: bool, area: str
) -> None:
    """And its checkpoint may be deleted once it is not; audits decide all of it again."""
    ledger, whole = MemoryLedger(), FolderStore(tmp_path / "objects")
    await _store(ledger, whole, tmp_path / "files", "a", "b", area=area)
    store, unwanted_there = whole.area(area), structs.replace(unwanted("a"), area=area)
    people = _People(ledger)
    async with _serving(ledger, whole) as directory:
        await people.ask(_MODEL)
        await append_decision(ledger, ended())
        if closed:
            await append_decision(ledger, over())
        for expected in (1, 2):
            answer = await _answer(directory, await people.register("a", area))
            assert isinstance(answer, DirectoryChanged)
            found = list(directory.state.model_versions.values())[-1]
            assert (found.number, found.checkpoint_id) == (expected, "a")

        delete_checkpoint(store, EXPERIMENT, "b")
        answer = await _answer(directory, await people.register("b", area))
        assert isinstance(answer, ChangeRefused)
        assert (answer.code, answer.field) == ("gone", "checkpoint_id")
        assert "not in the object store" in answer.reason

        agent = FactWriter(ledger, source="/rung/gateway", origin="gateway/2")
        await agent.write(unwanted_there)
        await _answer(directory, await people.ask(changes.RemoveModel(model_id="m")))
        assert store.list(f"checkpoints/{EXPERIMENT}/a/")
        await agent.write(unwanted_there)
        async with asyncio.timeout(20):
            while store.list(f"checkpoints/{EXPERIMENT}/a/"):
                await asyncio.sleep(0.01)
                await agent.write(unwanted_there)  # the release is relayed meanwhile
    for verdict in (
        await audit(ledger, CheckpointGC()),
        await audit(ledger, DirectoryProcessor()),
    ):
        assert verdict.differences == []


@pytest.mark.parametrize("alone", [False, True])
async def test_what_was_held_where_an_import_comes_from(tmp_path: Path, *, alone: bool) -> None:
    """What was not answered yet is answered; no experiment is kept for a model left behind."""
    before, store = MemoryLedger(partitions=1), FolderStore(tmp_path / "objects")
    await _store(before, store, tmp_path / "files", "a")
    people = _People(before)
    async with _serving(before, store) as directory:
        await people.ask(_MODEL)
        await append_decision(before, ended())
        await append_decision(before, over())
        await _answer(directory, await people.register("a"))

    moment, after = MemoryLedger(partitions=1), MemoryLedger(partitions=1)
    for name in (topic.EXPERIMENTS, topic.RETIREMENTS, topic.REQUESTS, topic.DIRECTORY):
        records = [record async for record in read_all(before, name, 0)]
        if name in {topic.REQUESTS, topic.DIRECTORY}:
            records.pop()  # as if the sink had not told the directory yet
        await moment.append([Draft(name, record.key, record.value) for record in records])
    out = io.BytesIO()
    await export(moment, out, experiment_id=EXPERIMENT if alone else None)
    finish = hand_over_alone if alone else hand_over
    await import_(after, out.getvalue().splitlines(), consumers=CONSUMERS, finish=finish)

    gone = f"checkpoints/{EXPERIMENT}/a/"
    async with _serving(after, store) as directory:
        if not alone:
            async with asyncio.timeout(20):
                await directory.until(lambda: bool(directory.state.model_versions))
            return
        agent = FactWriter(after, source="/rung/gateway", origin="gateway/2")
        async with asyncio.timeout(20):
            while store.list(gone):
                await agent.write(unwanted("a"))
                await asyncio.sleep(0.01)  # the release is relayed meanwhile


@pytest.mark.parametrize("seed", range(20))
async def test_killed_after_any_append_all_is_answered_once(tmp_path: Path, seed: int) -> None:
    """All goes on from the record: nothing depends on who took the request."""
    draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
    ledger, store = _Killing(), FolderStore(tmp_path / "objects")
    await _store(ledger, store, tmp_path / "files", "a", "b")
    await append_decision(ledger, ended())
    await append_decision(ledger, over())
    people = _People(ledger)
    await people.ask(_MODEL)
    await people.register("a")
    await people.register("missing")
    await people.ask(changes.RemoveVersion(model_version_id="v2"))
    await people.register("b")
    answers: dict[str, DirectoryChanged | ChangeRefused] = {}
    names = [f"r{number + 1}" for number in range(people.count)]
    kills = 0
    async with asyncio.timeout(60):
        while answers.keys() != set(names):
            ledger.left = draw.randint(2, 8)
            ledger.killed.clear()
            async with _serving(ledger, store) as directory:
                await _either(ledger.killed, directory, names)
            kills += ledger.killed.is_set()
            replica = Directory(ledger)
            async with asyncio.timeout(20):
                await replica.start()
            answers |= {name: it for name in names if (it := replica.answer_to(name))}
    assert kills > 1
    assert {name: type(it) for name, it in answers.items()} == {
        "r1": DirectoryChanged,
        "r2": DirectoryChanged,
        "r3": ChangeRefused,
        "r4": ChangeRefused,
        "r5": DirectoryChanged,
    }
    ledger.left = 1_000
    async with _serving(ledger, store) as directory, asyncio.timeout(20):
        await directory.until(lambda: len(directory.state.model_versions) == 2)
    assert (await audit(ledger, CheckpointGC())).same
    assert (await audit(ledger, DirectoryProcessor())).same

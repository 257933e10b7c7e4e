"""Checkpoints of ranks on two agents, by way of both to S3: whole when there is a manifest."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent.pair import Pair, running_pair
from agent.stored_checkpoint import store_at
from rung.events.checkpoint import CheckpointStored
from rung.events.trial import TrialExited, TrialRestored
from rung.storage import FolderStore, ObjectMissing, ObjectStore, load_checkpoint, read_manifest
from servers.seaweed import Seaweed
from support.agent_rig import SPEAK, Rig
from support.processes import eventually

pytestmark = pytest.mark.processes

STORE = """
import os, signal, time
from rung import core
with core.init() as ctx:
    rank = ctx.distributed.rank
    latest = ctx.checkpoint.download_latest()
    if latest:
        with ctx.checkpoint.restore_path(latest) as path:
            print(sorted(it.name for it in path.iterdir()), flush=True)
    def save(writer):
        writer.write(f"table-{rank}", lambda f: f.write(b"t" * 300_000), may_be_unchanged=True)
        writer.write(f"rank-{rank}", lambda f: f.write(b"%d" % rank))
        if len(steps) == 2:
            open(f"{FOLDER}/{rank}", "w").close()
        if rank == DIES and len(steps) == 2:
            while len(os.listdir(FOLDER)) < 4:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    steps = []
    for step in (5, 6):
        steps.append(step)
        ctx.checkpoint.save_async(save, steps_completed=step, shard=True)
        ctx.checkpoint.wait()
"""
FILES = sorted(f"{name}-{rank}" for name in ("rank", "table") for rank in range(4))


@pytest.fixture(params=["folder", "S3"])
async def pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Pair]:
    """Give two running agents on one ledger, and a store of each kind."""
    store: ObjectStore = FolderStore(tmp_path / "objects")
    if request.param == "S3":
        store = store_at(request.getfixturevalue("seaweed"), monkeypatch)
    async with running_pair(tmp_path, store) as both:
        yield both


def script(folder: Path, dies: int | None = None) -> str:
    """Return the script; in it a rank may die in its second checkpoint, when all have written."""
    written = folder / "written"
    written.mkdir(exist_ok=True)
    return f"DIES, FOLDER = {dies}, {str(written)!r}\n{STORE}"


def is_empty(folder: Path) -> Callable[[], bool]:
    """Return what says whether a folder has nothing in it, or is not there."""
    return lambda: not folder.exists() or not any(folder.iterdir())


def is_gone(store: ObjectStore, prefix: str) -> Callable[[], bool]:
    """Return what says whether a store has nothing of that name."""
    return lambda: not store.list(prefix)


async def test_all_ranks_files_are_one_checkpoint(pair: Pair, tmp_path: Path) -> None:
    """The first agent makes it known, once the files of both are in the store; nothing stays."""
    ended = await pair.end_of(await pair.grant(script(tmp_path)))
    assert ended.exit.outcome == "finished", ended.printed("stderr")
    told = ended.of(CheckpointStored)
    assert [(each.steps_completed, each.files) for each in told] == [(5, 8), (6, 8)]
    for number, each in enumerate(told):
        folder = tmp_path / f"back-{number}"
        stored = load_checkpoint(pair.first.store, "exp00001", each.checkpoint_id, folder)
        assert list(stored.manifest.files) == FILES
        assert stored.digest == each.digest
        assert [(folder / f"rank-{rank}").read_text() for rank in range(4)] == [*"0123"]
    for rig in (pair.first, pair.second):
        await eventually(is_empty(rig.folder / "agent" / "staged"))


@pytest.mark.e2e
async def test_a_rank_killed_between_the_parts_leaves_no_checkpoint(
    pair: Pair, tmp_path: Path
) -> None:
    """The run after it goes on from the one before, and what was half-stored is swept."""
    scheduler = asyncio.create_task(pair.pass_failures_on())
    first = await pair.end_of(await pair.grant(script(tmp_path, dies=3)))
    await scheduler
    said = [each.message for each in first.of(TrialExited)]
    assert all("rank 3: killed by signal 9" in message for message in said), said
    name = f"{first.allocation_id}.5"  # may be carried on still when the run is over
    [stored] = await pair.first.until(CheckpointStored, lambda it: it.checkpoint_id == name)
    half = f"checkpoints/exp00001/{first.allocation_id}.6"
    with pytest.raises(ObjectMissing):
        read_manifest(pair.first.store, "exp00001", f"{first.allocation_id}.6")
    again = await pair.grant(script(tmp_path), restore=[stored.checkpoint_id])
    second = await pair.end_of(again)
    assert {each.outcome for each in second.of(TrialExited)} == {"finished"}, second.printed(
        "stderr"
    )
    assert [each.steps_completed for each in second.of(TrialRestored)] == [5]
    assert second.printed() == [str(FILES)] * 4
    await eventually(is_gone(pair.first.store, half))


async def test_what_a_part_may_not_hold_is_refused(
    tmp_path: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rank writes a manifest, what it has not staged, or what is another run's."""
    entry = "{'size_bytes': 1, 'blake3': 'x'}"
    words = SPEAK + (
        "hello()\n"
        "own = os.environ['RUNG_ALLOCATION'] + '.5'\n"
        "for name in ('manifest.json', '../x', 'absent'):\n"
        f"    say(type='staged_part', checkpoint_id=own, files={{name: {entry}}})\n"
        "    print(channel.makefile().readline(), flush=True)\n"
        f"say(type='staged_part', checkpoint_id='exp00001.77.1.5', files={{'x': {entry}}})\n"
    )
    rig = Rig(tmp_path, store=store_at(seaweed, monkeypatch))
    rig.start()
    try:
        ended = await rig.run_script(words)
    finally:
        await rig.close()
    said = [text for text in ended.printed() if text]
    assert "the name is taken by Rung" in said[0]
    assert "names are relative" in said[1]
    assert "absent is missing" in said[2]
    assert any("is not one of this run's" in text for text in ended.printed("platform"))
    assert rig.store.list("checkpoints/") == []

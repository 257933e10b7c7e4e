"""A disk that fails: whose fault a failure is, and what the agent takes meanwhile."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rung.agent.membership.suspension import Suspension
from rung.agent.objects.removal import remove_tree
from rung.config.run_config import run_config
from rung.events.allocation import AgentJoined, AgentResumed, AgentSuspended
from rung.events.trial import TrialStarted
from support.agent_rig import Ended, Rig
from support.processes import eventually
from support.small_disk import fill, small_disk

pytestmark = pytest.mark.processes

WRITES = """
import pathlib, time
print('begun', flush=True)
while not pathlib.Path({go!r}).exists():
    time.sleep(0.01)
pathlib.Path('result').write_bytes(bytes(200_000))
"""


@pytest.fixture
async def on_small_disk() -> AsyncIterator[Rig]:
    """Give a running agent that has a small disk to itself."""
    with small_disk(16) as disk:
        rig = Rig(disk)
        rig.start()
        try:
            yield rig
        finally:
            (disk / "ballast").unlink(missing_ok=True)
            await rig.close()


async def _run(*command: str) -> None:
    await asyncio.to_thread(subprocess.run, command, check=True)


async def _fails_on_full_disk(rig: Rig, go: Path) -> Ended:
    """Have a run write its result when the disk is full; return how it ended."""
    allocation = await rig.grant(code=rig.code(train=WRITES.format(go=str(go))))
    await rig.until_printed("begun")
    fill(rig.folder)
    await asyncio.to_thread(go.touch)
    ballast = rig.folder / "ballast"
    await eventually(lambda: rig.agent._suspension.reason is not None)
    assert "is full" in (await rig.agent.unready() or "")
    await asyncio.to_thread(ballast.unlink)
    return await rig.end_of(allocation)


async def test_a_full_disk_is_the_machines_fault(on_small_disk: Rig, tmp_path: Path) -> None:
    """A script that fails on it is said to have failed for that, and its agent is suspended."""
    rig = on_small_disk
    ended = await _fails_on_full_disk(rig, tmp_path / "go")

    assert (ended.exit.outcome, ended.exit.machine) == ("failed", True)
    assert "is full" in ended.exit.message
    assert ended.exit.fault == "disk_full"
    (suspended,) = await rig.until(AgentSuspended)
    assert "is full" in suspended.reason
    await rig.until(AgentResumed)
    assert await rig.agent.unready() is None
    assert (await rig.run_script("print('well')")).printed() == ["well"]


async def test_the_disk_of_the_data_cache_counts(tmp_path: Path) -> None:
    """A run that fails while that disk is full has failed for that; the agent waits for room."""
    with small_disk() as disk:
        rig = Rig(tmp_path / "rig")
        rig.start(cache=disk)
        try:
            go = tmp_path / "go"
            script = WRITES.format(go=str(go)) + "raise SystemExit(3)"
            allocation = await rig.grant(code=rig.code(train=script))
            await rig.until_printed("begun")
            ballast = fill(disk)
            go.touch()
            ended = await rig.end_of(allocation)
            assert (ended.exit.outcome, ended.exit.machine) == ("failed", True)
            (suspended,) = await rig.until(AgentSuspended)
            assert f"the disk of {disk} is full" in suspended.reason
            ballast.unlink()
            await rig.until(AgentResumed)
        finally:
            await rig.close()


@pytest.mark.parametrize(
    "options", [{}, {"labels": ["new"]}], ids=["configuration fetched", "configuration new"]
)
async def test_what_was_granted_waits_for_room(
    on_small_disk: Rig, tmp_path: Path, options: dict[str, Any]
) -> None:
    """A run that was granted before the scheduler heard of it starts once there is room."""
    rig = on_small_disk
    await rig.run_script("print('the code folder is there')")
    code = rig.code(train="print('ran')")
    stored = run_config({"entrypoint": "python3 train.py", **options})
    rig.store.put_bytes(stored.name, stored.data)
    ballast = fill(rig.folder)
    await rig.agent._suspension.machine_fault("", tmp_path)
    allocation = await rig.grant(code=code, **options)
    await eventually(lambda: allocation in rig.agent._tasks)
    started = [event for event in await rig.events() if isinstance(event.data, TrialStarted)]
    ballast.unlink()

    assert (await rig.end_of(allocation)).printed() == ["ran"]
    assert len(started) == 1


async def test_a_run_that_fills_the_disk_is_at_fault_itself(on_small_disk: Rig) -> None:
    """A script whose own files are most of what the disk holds has failed, and that counts."""
    script = "file = open('big', 'wb')\nwhile True: file.write(bytes(65536))\n"
    ended = await on_small_disk.run_script(script)

    assert (ended.exit.outcome, ended.exit.machine) == ("failed", False)
    assert ended.exit.fault == "disk_full"


async def test_words_alone_blame_no_machine(running: Rig) -> None:
    """A script that says that a disk is full, where none is, has failed by itself."""
    ended = await running.run_script("raise OSError(28, 'No space left on device')")

    assert (ended.exit.outcome, ended.exit.machine) == ("failed", False)


async def test_a_checkpoint_that_does_not_fit_is_no_fault_of_the_script(running: Rig) -> None:
    """What the platform could not store is the machine's fault, though there is room again."""
    script = (
        "from rung.storage import ObjectError\n"
        "raise ObjectError(\"cannot write 'checkpoints/x': the disk is full\")\n"
    )
    ended = await running.run_script(script)

    assert (ended.exit.outcome, ended.exit.machine) == ("failed", True)
    assert running.agent._suspension.reason is None


async def test_a_script_that_writes_a_checkpoint_is_not_to_blame_for_the_disk(
    running: Rig,
) -> None:
    """What it writes into the checkpoint's folder itself is no less the machine's."""
    script = (
        "from rung import core\n"
        "with core.init() as context, context.checkpoint.store_path(steps_completed=1):\n"
        "    raise OSError(28, 'No space left on device')\n"
    )
    ended = await running.run_script(script)

    assert (ended.exit.outcome, ended.exit.machine) == ("failed", True)
    assert ended.exit.fault == "disk_full"


async def test_where_a_checkpoint_did_not_fit_there_must_be_room_for_it(tmp_path: Path) -> None:
    """The agent is suspended until the size of the one before is free, and says so."""

    class Outbox:
        unwritable: str | None = None

    words = "ObjectError: checkpoint x could not be stored: [Errno 28] No space left on device"
    said: list[str | None] = []
    with small_disk(16) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(10 << 20))
        suspension = Suspension([disk], Outbox(), said.append, checkpoints=[disk])
        fault = await suspension.machine_fault(words, tmp_path, 8_000_000)
        assert fault is not None
        assert "a checkpoint of 8.0 MB did not fit" in fault.reason
        assert suspension.reason == fault.reason
        ballast.unlink()
        assert await suspension.machine_fault("ValueError", tmp_path) is None
        assert suspension.reason is None
        fault = await suspension.machine_fault(words, tmp_path, 80_000_000)  # never fits there
        assert fault is not None
        assert suspension.reason is None
    assert len(said) == 2


async def test_a_read_only_disk_and_a_vanished_mount_suspend(tmp_path: Path) -> None:
    """Not only a full disk does; each passes once the disk is as it was."""

    class Outbox:
        unwritable: str | None = None

    said: list[str | None] = []
    outbox = Outbox()
    with small_disk() as disk:
        folder = disk / "agent"
        folder.mkdir()
        suspension = Suspension([folder], outbox, said.append)
        assert await suspension.machine_fault("ValueError", tmp_path) is None
        await _run("mount", "-o", "remount,ro", str(disk))
        fault = await suspension.machine_fault("ValueError", tmp_path)
        await _run("mount", "-o", "remount,rw", str(disk))
        assert fault is not None
        assert "Read-only file system" in fault.reason
        assert await suspension.machine_fault("ValueError", tmp_path) is None
        await _run("mount", "-t", "tmpfs", "tmpfs", str(folder))
        fault = await suspension.machine_fault("ValueError", tmp_path)
        await _run("umount", str(folder))
        assert fault is not None
        assert "another device" in fault.reason
        folder.rmdir()
        fault = await suspension.machine_fault("ValueError", tmp_path)
        folder.mkdir()
        assert fault is not None
        assert "No such file" in fault.reason
        outbox.unwritable = "the outbox cannot be written"
        fault = await suspension.machine_fault("ValueError", tmp_path)
        assert fault is not None
        assert fault.reason == outbox.unwritable
        outbox.unwritable = None
        assert await suspension.machine_fault("ValueError", tmp_path) is None
    assert [bool(each) for each in said] == [True, False] * 2


async def test_a_path_that_a_script_names_is_not_probed_through_its_links(running: Rig) -> None:
    """Nor where the platform's own folders are: what a failure names is the script's choice."""
    await running.until(AgentJoined)
    foreign = running.folder / "foreign"
    foreign.mkdir()
    outside = running.folder / "link"
    private = running.folder / "agent" / "private"
    private.mkdir()
    outside.symlink_to(private)
    before = foreign.stat().st_mtime_ns, private.stat().st_mtime_ns
    script = (
        "import os\n"
        f"os.symlink({str(foreign)!r}, 'link')\n"
        f"names = [os.path.abspath('link/x'), {str(private / 'x')!r}, {str(outside / 'x')!r}]\n"
        "raise OSError(f'No space left on device: {names}')\n"
    )
    ended = await running.run_script(script)

    assert (ended.exit.outcome, ended.exit.machine) == ("failed", False)
    assert (foreign.stat().st_mtime_ns, private.stat().st_mtime_ns) == before


async def test_folders_that_are_nested_deeper_than_python_recurses(running: Rig) -> None:
    """A script that made them, and failed for the platform, is judged as any other."""
    script = (
        "import os\n"
        "from rung.storage import ObjectError\n"
        "for _ in range(1_500):\n"
        "    os.mkdir('d')\n"
        "    os.chdir('d')\n"
        "raise ObjectError(\"cannot write 'checkpoints/x': the disk is full\")\n"
    )
    try:
        ended = await running.run_script(script)
    finally:
        remove_tree(running.folder / "agent" / "work")  # what pytest could not

    assert (ended.exit.outcome, ended.exit.machine) == ("failed", True)
    assert "the disk is full" in ended.exit.message

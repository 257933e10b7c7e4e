"""Checkpoints stored behind the script's back: in order, whole, and never lost unheard."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from core.conftest import Managed
from rung.core.ipc.protocol import Reported, Stored
from rung.storage import CheckpointWriter, FolderStore, ObjectError, load_checkpoint, open_store
from support.agent_end import agent_end


def test_a_folder_is_stored_behind_and_announced_when_whole(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block's end waits for nothing; the announcement comes with the manifest."""
    agent, ctx = managed()
    may_store, real = threading.Event(), FolderStore.put_bytes

    def put_bytes(self: FolderStore, name: str, data: bytes) -> None:
        may_store.wait()
        real(self, name, data)

    monkeypatch.setattr(FolderStore, "put_bytes", put_bytes)
    with ctx.checkpoint.store_path_async(steps_completed=3) as (folder, checkpoint_id):
        (folder / "state").write_text("three")
    assert not ctx.checkpoint.stored()
    ctx.train.report_training_metrics(4, {"loss": 1.0})
    agent.wait_for(lambda agent: bool(agent.of(Reported)))
    assert agent.of(Stored) == []
    may_store.set()
    ctx.checkpoint.wait()
    assert ctx.checkpoint.stored()
    agent.wait_for(lambda agent: bool(agent.of(Stored)))
    assert not folder.exists()
    assert agent.of(Stored)[0].checkpoint_id == checkpoint_id


def test_a_name_that_cannot_be_stored_is_refused_at_once(managed: Managed) -> None:
    """Where the block ends, and not at the next checkpoint."""
    _, ctx = managed()

    def store() -> None:
        with ctx.checkpoint.store_path_async(steps_completed=3) as (folder, _):
            (folder / "two\nlines").write_text("odd")

    with pytest.raises(ObjectError, match=r"two\\nlines"):
        store()


def test_permissions_and_empty_folders_are_restored(managed: Managed, tmp_path: Path) -> None:
    """In copies and in downloads."""
    _, ctx = managed()
    with ctx.checkpoint.store_path_async(steps_completed=3) as (folder, checkpoint_id):
        (folder / "run.sh").write_text("#!/bin/sh")
        (folder / "run.sh").chmod(0o755)
        (folder / "empty").mkdir()
    ctx.checkpoint.wait()
    ctx.checkpoint.download(checkpoint_id, tmp_path / "target")
    with ctx.checkpoint.restore_path(checkpoint_id) as copied:
        for found in (copied, tmp_path / "target"):
            assert (found / "run.sh").stat().st_mode & 0o777 == 0o755
            assert (found / "empty").is_dir()


def test_one_that_is_being_stored_is_there(managed: Managed) -> None:
    """Whether a step has a checkpoint is answered once it has: no script stores it twice."""
    _, ctx = managed()
    asked = threading.Event()

    def save(writer: CheckpointWriter) -> None:
        asked.wait()
        writer.write("state", lambda file: file.write(b"state"))

    ctx.checkpoint.save_async(save, steps_completed=9)
    assert not ctx.checkpoint.has(8)
    threading.Timer(0.1, asked.set).start()
    assert ctx.checkpoint.has(9)


def test_a_function_writes_straight_into_the_store(managed: Managed, tmp_path: Path) -> None:
    """What it writes is a checkpoint like any other."""
    agent, ctx = managed()

    def save(writer: CheckpointWriter) -> None:
        writer.write("state", lambda file: file.write(b"state"))

    checkpoint_id = ctx.checkpoint.save_async(save, {"note": 1}, steps_completed=9)
    ctx.close()
    agent.wait_for_end()
    [stored] = agent.of(Stored)
    assert (stored.checkpoint_id, stored.steps_completed) == (checkpoint_id, 9)
    store = open_store(agent.objects_url)
    loaded = load_checkpoint(store, "exp00000", checkpoint_id, tmp_path / "back")
    assert loaded.manifest.metadata == {"note": 1, "steps_completed": 9}
    assert (tmp_path / "back" / "state").read_bytes() == b"state"


def test_checkpoints_are_announced_in_their_order(managed: Managed) -> None:
    """However they are stored, each waits for the one before, and reports stay before it."""
    agent, ctx = managed()
    for step in range(6):
        ctx.train.report_training_metrics(step, {"loss": 1.0})
        if step % 2:
            with ctx.checkpoint.store_path(steps_completed=step) as (folder, _):
                (folder / "state").write_text(str(step))
        else:
            ctx.checkpoint.save_async(
                lambda writer: writer.write("x", lambda file: file.write(b"x")),
                steps_completed=step,
            )
    ctx.close()
    agent.wait_for_end()
    assert [message.steps_completed for message in agent.of(Stored)] == list(range(6))
    seen = 0
    for message in agent.messages:
        if isinstance(message, Reported):
            seen = message.step
        else:
            assert isinstance(message, Stored)
            assert message.steps_completed <= seen


def fail(writer: CheckpointWriter) -> None:
    """Write half of a checkpoint."""
    writer.write("half", lambda file: file.write(b"half"))
    raise ObjectError("the disk is full")


def test_a_failure_behind_is_the_next_calls(managed: Managed) -> None:
    """Half of it is removed, nothing is announced, and whoever comes next hears of it."""
    agent, ctx = managed()
    ctx.checkpoint.save_async(fail, steps_completed=1)
    with pytest.raises(ObjectError, match="disk is full"):
        ctx.checkpoint.wait()
    ctx.checkpoint.save_async(fail, steps_completed=2)
    with pytest.raises(ObjectError, match="disk is full"):
        ctx.close()
    agent.wait_for_end()
    assert agent.of(Stored) == []
    assert open_store(agent.objects_url).list("") == []


_SCRIPT = """
import sys, os
from rung import core
from rung.storage import ObjectError

def save(writer):
    if sys.argv[1] == "fails":
        raise ObjectError("the disk is full")
    for number in range(20):
        writer.write(str(number), lambda file: file.write(bytes(100_000)))

def main(ctx):
    ctx.checkpoint.save_async(save, steps_completed=1)

if sys.argv[2] == "with":
    with core.init() as ctx:
        main(ctx)
else:
    ctx = core.init()
    main(ctx)
"""


@pytest.mark.parametrize("how", ["with", "without"])
@pytest.mark.parametrize("what", ["works", "fails"])
def test_a_script_that_ends_is_not_done_before_its_checkpoint(
    tmp_path: Path, how: str, what: str
) -> None:
    """It waits for it, closed or not; and if it cannot be stored, the script has failed."""
    with agent_end(tmp_path) as agent:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, what, how],
            check=False,
            cwd=tmp_path,
            env=os.environ | agent.environment,
            capture_output=True,
            text=True,
        )
        agent.wait_for_end()
        assert done.returncode == (0 if what == "works" else 1), done.stderr
        assert ("the disk is full" in done.stderr) == (what == "fails")
        assert len(agent.of(Stored)) == (1 if what == "works" else 0)


def test_files_are_restored_in_their_place(managed: Managed, tmp_path: Path) -> None:
    """Of a store in a folder nothing is copied to be read; a path to write to is a copy."""
    agent, ctx = managed()
    with ctx.checkpoint.store_path(steps_completed=1) as (folder, checkpoint_id):
        (folder / "state").write_text("one")
    with ctx.checkpoint.restore_files(checkpoint_id) as files:
        assert str(files["state"]).startswith(agent.objects_url.removeprefix("file://"))
    with ctx.checkpoint.restore_path(checkpoint_id) as folder:
        (folder / "state").write_text("changed")
    with ctx.checkpoint.restore_files(checkpoint_id) as files:
        assert files["state"].read_text() == "one"


_KILLED = _SCRIPT.replace("raise ObjectError", "os.kill(os.getpid(), 9); raise ObjectError")


def test_killed_while_it_stores_a_run_has_said_nothing(tmp_path: Path) -> None:
    """Half of a checkpoint is never announced."""
    with agent_end(tmp_path) as agent:
        done = subprocess.run(
            [sys.executable, "-c", _KILLED, "fails", "with"],
            check=False,
            cwd=tmp_path,
            env=os.environ | agent.environment,
        )
        agent.wait_for_end()
        assert done.returncode == -signal.SIGKILL
        messages: list[Any] = agent.messages
        assert messages == []

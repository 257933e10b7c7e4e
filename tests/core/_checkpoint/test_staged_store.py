"""What a run stages for its agent: nothing is written twice, though it was carried on long ago."""

import os
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from rung import core
from rung.core._checkpoint.staged_store import StagedStore
from rung.core.ipc.protocol import FromTrial, Stored, Uploaded
from rung.core.ipc.staged_folder import ANNOUNCED
from rung.storage import CheckpointWriter, FolderStore, ObjectError, load_checkpoint, open_store
from support.agent_end import AgentEnd, agent_end

TABLE = b"table" * 1000


class Carrier:
    """The agent's part: looks at what is staged, takes it away, and says so."""

    def __init__(self, agent: AgentEnd) -> None:
        store = open_store(agent.objects_url)
        assert isinstance(store, FolderStore)
        self.store = store
        self.tables: queue.Queue[tuple[int, bytes]] = queue.Queue()
        self._agent = agent
        agent.staged = True
        agent.on_message = self._carry_on

    def _carry_on(self, message: FromTrial) -> None:
        if not isinstance(message, Stored):
            return
        place = f"checkpoints/exp00000/{message.checkpoint_id}"
        taken = self.store.root.with_name("taken")
        load_checkpoint(self.store, "exp00000", message.checkpoint_id, taken)
        path = self.store.root / place / "table"
        found = path.stat().st_ino, path.read_bytes()
        self.store.delete(f"{place}/")
        self._agent.say(Uploaded(message.checkpoint_id))
        self.tables.put(found)


def store_of(ctx: core.Context) -> StagedStore:
    """Return where a run stages."""
    store = ctx.checkpoint._writer._store
    assert isinstance(store, StagedStore)
    return store


def open_folder(url: str) -> Path:
    """Return the folder at a URL."""
    store = open_store(url)
    assert isinstance(store, FolderStore)
    return store.root


Staging = tuple[Carrier, core.Context]


@pytest.fixture
def carrier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Staging]:
    """A run that stages its checkpoints, and the one who carries them on."""
    with agent_end(tmp_path / "agent") as agent:
        carrier = Carrier(agent)
        for name, value in agent.environment.items():
            monkeypatch.setenv(name, value)
        with core.init() as ctx:
            yield carrier, ctx


def store(carrier: Carrier, ctx: core.Context, step: int, table: bytes) -> tuple[int, bytes]:
    """Store a checkpoint with a table that may be unchanged; return what came of that."""

    def save(writer: CheckpointWriter) -> None:
        writer.write("table", lambda file: file.write(table), may_be_unchanged=True)
        writer.write("step", lambda file: file.write(b"%d" % step))

    ctx.checkpoint.save_async(save, steps_completed=step)
    ctx.checkpoint.wait()
    return carrier.tables.get(timeout=20)


def test_what_is_unchanged_is_staged_once(carrier: Staging) -> None:
    """It is the same file in all checkpoints, although each was taken away before the next."""
    found = [store(*carrier, step, TABLE) for step in (1, 2, 3)]
    assert {data for _, data in found} == {TABLE}
    assert len({number for number, _ in found}) == 1


def test_of_what_was_carried_on_only_that_is_kept(carrier: Staging) -> None:
    """A file that changed takes the place of the one before, and no other file is kept."""
    store(*carrier, 1, TABLE)
    assert store(*carrier, 2, b"other")[1] == b"other"
    kept = carrier[0].store.list("kept/")
    assert [info.name.rpartition("/")[2] for info in kept] == ["table"]
    assert [info.size_bytes for info in kept] == [len(b"other")]


def staged_before(staged: StagedStore, *steps: int) -> list[Path]:
    """Have checkpoints on their way that a process before this one stored; return manifests."""
    root = open_folder(staged.url)
    manifests = [
        root / f"checkpoints/exp00000/exp00000.3.1.{step}/manifest.json" for step in steps
    ]
    for manifest in manifests:
        manifest.parent.mkdir(parents=True)
        manifest.touch()
    return manifests


def test_what_processes_before_staged_takes_room(
    carrier: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third checkpoint waits, of whatever process, until the agent has carried one on."""
    staged = store_of(carrier[1])
    first, second = staged_before(staged, 1, 2)
    monkeypatch.setattr(staged._changed, "wait", lambda _: first.unlink())
    with staged.room_for("exp00000.3.1.3"):
        assert (first.exists(), second.exists()) == (False, True)


def test_what_will_never_be_stored_is_not_waited_for(carrier: Staging) -> None:
    """The agent has written down why."""
    staged = store_of(carrier[1])
    staged_before(staged, 1, 2)
    noted = open_folder(staged.url) / ANNOUNCED / "exp00000.3.1.1"
    noted.parent.mkdir()
    noted.write_text("checkpoint exp00000.3.1.1 could not be stored: denied")
    with pytest.raises(ObjectError, match="denied"), staged.room_for("exp00000.3.1.3"):
        pass


def test_what_was_stored_is_known_by_its_manifest_or_its_announcement(carrier: Staging) -> None:
    """Of which there is always one: the agent notes it before it carries it on."""
    ctx = carrier[1]
    (manifest,) = staged_before(store_of(ctx), 1)
    assert (ctx.checkpoint.has(1), ctx.checkpoint.has(2)) == (True, False)
    noted = open_folder(store_of(ctx).url) / ANNOUNCED / "exp00000.3.1.1"
    noted.parent.mkdir()
    noted.touch()
    manifest.unlink()
    assert ctx.checkpoint.has(1)


def test_what_cannot_be_kept_is_written_again(
    carrier: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without links costs time and no checkpoint."""

    def link(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", link)
    assert [store(*carrier, step, TABLE)[1] for step in (1, 2)] == [TABLE, TABLE]

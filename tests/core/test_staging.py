"""What a run stages for its agent: nothing is written twice, though it was carried on long ago."""

import os
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.agent_end import AgentEnd, agent_end
from rung import core
from rung.core.protocol import FromTrial, Shipped, Stored
from rung.objects import Draft, FolderStore, load_checkpoint, open_store

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
        self._agent.say(Shipped(message.checkpoint_id))
        self.tables.put(found)


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

    def save(draft: Draft) -> None:
        draft.write("table", lambda file: file.write(table), may_be_unchanged=True)
        draft.write("step", lambda file: file.write(b"%d" % step))

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


def test_what_cannot_be_kept_is_written_again(
    carrier: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without links costs time and no checkpoint."""

    def link(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", link)
    assert [store(*carrier, step, TABLE)[1] for step in (1, 2)] == [TABLE, TABLE]

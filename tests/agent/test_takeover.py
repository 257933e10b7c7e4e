"""An agent takes over what the one before it has left: processes, reports, decisions."""

import asyncio
import os
import shutil
import socket
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from rung.agent.forkserver import client, messages
from rung.agent.forkserver.client import attach, connected, left_behind
from rung.agent.forkserver.messages import FOLDER
from rung.core.ipc.unconfirmed import PREFIX
from rung.events import decode, topic
from rung.events.allocation import AgentJoined, AgentResumed, AllocationGranted
from rung.events.checkpoint import CheckpointStored
from rung.events.metric import LogsPrinted
from rung.events.trial import TrialStarted
from rung.ledger import Draft
from support.agent_rig import Rig
from support.processes import alive, eventually

pytestmark = pytest.mark.processes

TRAINS = """
import os, time
from pathlib import Path
from rung import core
with core.init() as run:
    print("pid", os.getpid(), flush=True)
    step = 0
    while not (Path({stop!r}).exists() or run.preempt.should_preempt()):
        step += 1
        run.train.report_training_metrics(step, {{"loss": 1.0}})
        Path({reached!r}).write_text(str(step))
        time.sleep(0.01)
    with run.checkpoint.store_path({{"steps_completed": step}}) as (path, _):
        (path / "step").write_text(str(step))
"""


class Node:
    """A rig whose agents come and go beside a training."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.folder = folder
        self.stop = folder / "stop"
        self._reached = folder / "reached"

    async def train(self) -> tuple[str, int]:
        """Have a trial trained until `stop`; return its allocation and its process."""
        script = TRAINS.format(stop=str(self.stop), reached=str(self._reached))
        name = await self.rig.grant(code=self.rig.code(train=script))
        return name, await self.process(name)

    async def process(self, allocation_id: str, count: int = 1) -> int:
        """Return the process that a run has printed, the last of so many."""
        trial_id = allocation_id.rpartition(".")[0]
        printed = await self.rig.until(
            LogsPrinted, lambda it: it.trial_id == trial_id, count=count
        )
        return int(printed[count - 1].lines[0].text.split()[1])

    @property
    def reached(self) -> int:
        """The step that was trained last."""
        return int(self._reached.read_text() or 0)

    async def go_on(self) -> None:
        """Wait until some more steps were trained."""
        before = self.reached
        await eventually(lambda: self.reached > before + 5)

    async def end(self) -> list[int]:
        """Stop the training; return the steps on record in their order."""
        self.stop.touch()
        ended = await self.rig.end_of("exp00001.0.1")
        return [step for _, step, _ in ended.rows]

    def lives(self) -> list[psutil.Process]:
        """Return the fork servers that listen."""
        names = (self.folder / "agent" / FOLDER).glob("*.sock")
        found = [int(name.stem) for name in names]
        return [psutil.Process(pid) for pid in found if alive(pid)]


@pytest.fixture
async def node(rig: Rig, tmp_path: Path) -> AsyncIterator[Node]:
    """Give a node whose agent was started; nothing is left of it afterwards."""
    rig.start(unattended_s=60.0)
    yield Node(rig, tmp_path)
    await rig.close()
    await asyncio.to_thread(left_behind, tmp_path / "agent", kill=True)


async def test_a_training_goes_on(node: Node) -> None:
    """The same process trains on under the same incarnation, and each step is on record once."""
    _, pid = await node.train()
    for _ in range(2):
        await node.rig.abandon()
        await node.go_on()
        node.rig.start(unattended_s=60.0)
        await node.go_on()
    assert alive(pid)
    steps = await node.end()
    assert steps == list(range(1, node.reached + 1))
    assert len(await node.rig.until(AgentJoined)) == 1
    assert len(await node.rig.until(AgentResumed)) == 2


async def test_an_agent_dies_while_it_takes_over(node: Node) -> None:
    """What was printed without an agent is with the next one, until that has it on record."""
    flag = node.folder / "print"
    script = (
        f"import time\nfrom pathlib import Path\nwhile not Path({str(flag)!r}).exists():\n"
        "    time.sleep(0.01)\nprint('x' * 200_000, flush=True)\nprint('printed', flush=True)\n"
        f"while Path({str(flag)!r}).exists():\n    time.sleep(0.01)\n"
    )
    name = await node.rig.grant(code=node.rig.code(train=script))
    await node.rig.until(TrialStarted)
    await node.rig.abandon()
    flag.touch()
    (server,) = node.lives()
    path = node.folder / "agent" / FOLDER / f"{server.pid}.sock"
    for _ in range(2):
        adoption = await attach(path, 60.0)
        assert adoption is not None
        adoption.control.close()
        for _, descriptors in adoption.held:
            for descriptor in descriptors:
                os.close(descriptor)
    node.rig.start(unattended_s=60.0)
    await node.rig.until_printed("printed")
    flag.unlink()
    ended = await node.rig.end_of(name)
    assert ended.exit.outcome == "finished"
    assert ended.printed()[-1] == "printed"
    assert "".join(ended.printed()[:-1]).count("x") == 200_000


async def test_what_was_reported_without_an_agent(node: Node) -> None:
    """Where nothing took a run over in time, its last checkpoint and reports count all the same.

    They are on record before the agent joins, which is when the scheduler takes the run for lost.
    """
    await node.rig.until(AgentJoined)
    await node.rig.abandon()
    node.rig.start(unattended_s=0.5)
    await node.rig.until(AgentJoined, count=2)
    _, pid = await node.train()
    await node.rig.abandon()
    await eventually(lambda: not alive(pid) and not node.lives())
    node.rig.start(unattended_s=60.0)
    await node.rig.until(AgentJoined, count=3)
    events = [event.data for event in await node.rig.events()]
    last = max(number for number, data in enumerate(events) if isinstance(data, AgentJoined))
    (stored,) = [data for data in events[:last] if isinstance(data, CheckpointStored)]
    assert stored.steps_completed == node.reached
    found = await node.rig.ended_run("exp00001.0.1")
    assert [step for _, step, _ in found.rows] == list(range(1, node.reached + 1))
    assert not list((node.folder / "agent/work").glob(f"*/{PREFIX}*"))


async def test_a_shorter_time_holds_for_those_that_train(node: Node) -> None:
    """How long trials train on is what the last agent says, also for those of an earlier one."""
    _, pid = await node.train()
    await node.rig.abandon()
    node.rig.start(unattended_s=0.5)
    await node.rig.until(AgentResumed)
    await node.go_on()
    await eventually(lambda: _confirmed(node))  # it has connected to that agent
    await node.rig.abandon()
    await eventually(lambda: not alive(pid) and not node.lives())


def _confirmed(node: Node) -> bool:
    return not list((node.folder / "agent/work").glob(f"*/{PREFIX}*"))


async def test_a_decision_that_is_written_twice(node: Node) -> None:
    """A grant that an earlier session of the agent has carried out is not carried out again."""
    await node.train()
    await node.rig.abandon()
    (grant,) = await node.rig.ledger.read(topic.PLACEMENTS, 0, 0, 10)
    assert isinstance(decode(grant.value).data, AllocationGranted)
    await node.rig.ledger.append([Draft(topic.PLACEMENTS, grant.key, grant.value)])
    node.rig.start(unattended_s=60.0)
    await node.rig.until(AgentResumed)
    await node.go_on()
    await node.end()
    fresh = await node.rig.run_script("print('again')")
    assert fresh.printed() == ["again"]
    assert len(await node.rig.until(TrialStarted)) == 2


async def test_fork_servers_of_before_an_upgrade(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end with their last process, and at once where they have none."""
    _, pid = await node.train()
    await node.rig.abandon()
    (first,) = node.lives()
    monkeypatch.setenv("RELEASE", "2")
    node.rig.start(unattended_s=60.0)
    await node.rig.until(AgentResumed)
    await eventually(lambda: len(node.lives()) == 2)
    (second,) = [each for each in node.lives() if each.pid != first.pid]
    await node.rig.abandon()
    monkeypatch.setenv("RELEASE", "3")
    node.rig.start(unattended_s=60.0)
    await node.rig.until(AgentResumed, count=2)
    await eventually(lambda: not alive(second.pid))
    assert alive(first.pid)
    assert alive(pid)
    await node.end()
    await eventually(lambda: not alive(first.pid))


async def test_the_folder_of_the_socket_is_gone(node: Node) -> None:
    """Processes that cannot find the agent any more are ended; it joins, and takes runs."""
    _, pid = await node.train()
    await node.rig.abandon()
    shutil.rmtree(node.folder / "agent/socket")
    node.rig.start(unattended_s=60.0)
    await node.rig.until(AgentJoined, count=2)
    assert not alive(pid)
    assert (await node.rig.run_script("print(1)")).exit.outcome == "finished"


@pytest.mark.parametrize("what", ["messages", "runs"])
async def test_an_agent_of_another_version(
    node: Node, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """What it cannot take over it ends: the run starts from its checkpoint, nothing is left."""
    name, pid = await node.train()
    await node.rig.abandon()
    (server,) = node.lives()
    if what == "messages":
        monkeypatch.setattr(client, "VERSION", messages.VERSION + 1)
        monkeypatch.setattr(client, "_ATTACH_S", 0.1)
    else:
        _change_saved(node.folder / "agent/spool.db", name, conduct="of another release")
    node.rig.start(unattended_s=60.0)
    await node.rig.until(AgentJoined, count=2)
    assert not alive(pid)
    assert not alive(server.pid)
    assert (await node.rig.run_script("print(1)")).exit.outcome == "finished"


async def test_an_agent_dies_between_two_processes_of_a_run(node: Node) -> None:
    """A run of which only a part was made is begun once more; others do not notice."""
    _, pid = await node.train()
    half = await node.rig.grant(code=node.rig.code(train=_SLEEPS))
    made = await node.process(half)
    await node.rig.abandon()
    _change_saved(node.folder / "agent/spool.db", half, started=False, processes=[half, "other"])
    node.rig.start(unattended_s=60.0)
    again = await node.process(half, count=2)
    assert again != made
    assert not alive(made)
    assert alive(pid)
    assert len(await node.rig.until(AgentJoined)) == 1


_SLEEPS = "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)\n"


def _change_saved(path: Path, allocation_id: str, **fields: Any) -> None:
    database = sqlite3.connect(path)
    with database:
        (state,) = database.execute(
            "SELECT state FROM run WHERE allocation_id = ?", (allocation_id,)
        ).fetchone()
        changed = msgspec.json.encode(msgspec.json.decode(state) | fields)
        database.execute(
            "UPDATE run SET state = ? WHERE allocation_id = ?", (changed, allocation_id)
        )
    database.close()


def test_only_the_socket_of_a_dead_fork_server_is_removed(tmp_path: Path) -> None:
    """One that lives, but cannot be reached now, would end its processes without it."""
    path = tmp_path / "1.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:  # of another kind
        listener.bind(str(path))
        listener.listen()
        assert connected(path) is None
        assert path.exists()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path.with_name("2.sock")))
    assert connected(path.with_name("2.sock")) is None
    assert not path.with_name("2.sock").exists()

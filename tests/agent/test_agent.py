"""The life of an agent: joining, being hurt, leaving."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from rung.agent.agent_folder import AgentRefused
from rung.events import decode
from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentLost,
    AllocationLost,
    AllocationReleased,
)
from rung.events.metric import AgentBeat, LogsDropped, LogsPrinted
from rung.events.trial import TrialExited, TrialStarted
from rung.ledger import Draft, MemoryLedger, SqliteLedger
from rung.ledger.sqlite.remote_append import serve_appends
from servers.process import wait_until_stopped
from support.agent_rig import POOL, SPEAK, FickleLedger, Rig
from support.processes import alive, eventually, exists, parent_of

pytestmark = pytest.mark.processes

FOREVER = "import os, time\nprint('pid', os.getpid(), flush=True)\nwhile True: time.sleep(60)\n"
LEAVES = SPEAK + (
    "hello(); print('pid', os.getpid(), flush=True)\n"
    "channel.makefile().readline()\n"
    "say(type='stored', checkpoint_id=os.environ['RUNG_ALLOCATION'] + '.2',"
    " steps_completed=2, size_bytes=3, files=1, digest='d')\n"
    "say(type='acknowledged')\n"
)


async def _pid_of(rig: Rig, allocation_id: str) -> int:
    """Return the process number that a run prints at its start."""
    trial_id = allocation_id.rpartition(".")[0]
    (printed, *_) = await rig.until(LogsPrinted, lambda it: it.trial_id == trial_id)
    return int(printed.lines[0].text.split()[1])


def _of_incarnation(number: int) -> Callable[[AgentBeat], bool]:
    return lambda beat: beat.incarnation == number


async def test_joins_and_leaves(rig: Rig) -> None:
    """An agent joins with its slots and the next incarnation, beats, and says when it leaves."""
    for life in (1, 2):
        rig.start()
        joined = await rig.until(AgentJoined, count=life)
        await rig.until(AgentBeat, _of_incarnation(joined[-1].incarnation))
        await rig.stop()
    first, second = await rig.until(AgentJoined, count=2)
    assert second.incarnation == first.incarnation + 1
    assert {(it.agent_id, it.pool) for it in (first, second)} == {("a1", POOL)}
    assert [slot.id for slot in first.slots] == [0, 1, 2, 3]
    left = await rig.until(AgentLeft, count=2)
    assert [it.incarnation for it in left] == [first.incarnation, second.incarnation]


async def test_beats_name_the_runs(rig: Rig) -> None:
    """A beat says what the agent believes to run."""
    rig.start(heartbeat_s=0.02)
    allocation = await rig.grant(code=rig.code(train=FOREVER))
    await rig.until(AgentBeat, lambda it: it.allocations == [allocation])


async def test_other_incarnations(rig: Rig) -> None:
    """A grant to an earlier incarnation starts nothing."""
    rig.start()
    code = rig.code(train="print('ran')")
    await rig.until(AgentJoined)
    await rig.stop()
    stale = await rig.grant(code=code)
    rig.start()
    await rig.until(AgentJoined, count=2)
    fresh = await rig.grant(code=code)
    assert (await rig.end_of(fresh)).printed() == ["ran"]
    assert (await rig.ended_run(stale)).payloads == []


async def test_second_agent(running: Rig) -> None:
    """One folder serves one agent at a time; the second is told so."""
    await running.until(AgentJoined)
    other = Rig(running.folder)
    other.start()
    with pytest.raises(AgentRefused, match="another agent uses the folder"):
        await other.ended()


async def test_deep_folder(tmp_path: Path) -> None:
    """A folder too deep for a socket's address works all the same."""
    rig = Rig(tmp_path / ("x" * 100))
    rig.start()
    ended = await rig.run_script(SPEAK + "hello(); print(os.environ['RUNG_SOCKET'])")
    assert ended.exit.outcome == "finished"
    (path,) = ended.printed()
    assert len(path) < 108
    await rig.stop()
    assert not exists(path)


async def test_private_socket(running: Rig) -> None:
    """Nobody but the owner can reach the agent's socket."""
    await running.until(AgentJoined)
    folder = running.folder / "agent/socket"
    assert await asyncio.to_thread(folder.stat) is not None
    assert (await asyncio.to_thread(folder.stat)).st_mode & 0o777 == 0o700


async def test_lost_allocation(running: Rig) -> None:
    """A run whose allocation was declared lost is killed."""
    allocation = await running.grant(code=running.code(train=FOREVER))
    pid = await _pid_of(running, allocation)
    await running.decide(
        AllocationLost(
            pool=POOL,
            allocation_id=allocation,
            experiment_id="exp00001",
            trial_id=allocation.rpartition(".")[0],
            run=1,
            reason="another agent of the gang vanished",
        )
    )
    await running.end_of(allocation)
    assert not alive(pid)


async def test_warm_parent_dies(running: Rig) -> None:
    """With the fork server all runs are gone: a new incarnation says so, and runs start again."""
    code = running.code(train=SPEAK + "hello()\nreport('validation', 1, loss=1.0)\n" + FOREVER)
    allocation = await running.grant(code=code)
    pid = await _pid_of(running, allocation)
    parent = running.agent._fork_servers.pid
    assert parent is not None
    os.kill(parent, signal.SIGKILL)
    await running.until(AgentJoined, count=2)
    assert not alive(pid)
    lost = await running.ended_run(allocation)
    assert lost.rows == [("validation", 1, {"loss": 1.0})]
    assert lost.of(TrialExited) == []
    assert lost.of(AllocationReleased) == []
    assert (await running.run_script("print(1)")).exit.outcome == "finished"


async def test_taken_for_lost(running: Rig) -> None:
    """An agent that is declared lost while it lives ends its runs and offers its slots again."""
    allocation = await running.grant(code=running.code(train=FOREVER))
    pid = await _pid_of(running, allocation)
    joined = (await running.until(AgentJoined))[-1]
    for incarnation in (joined.incarnation - 1, joined.incarnation):
        await running.decide(
            AgentLost(pool=POOL, agent_id="a1", incarnation=incarnation, silent_ms=30_000)
        )
    again = (await running.until(AgentJoined, count=2))[-1]
    assert again.incarnation == joined.incarnation + 1
    assert not alive(pid)
    assert (await running.run_script("print(1)")).exit.outcome == "finished"


async def test_leaving_lets_trials_checkpoint(running: Rig) -> None:
    """An agent that goes down asks its trials to leave; what it then ends counts as lost."""
    allocations = [
        await running.grant(code=running.code(train=script))
        for script in (LEAVES, FOREVER, "print('pid', 1)")
    ]
    pids = [await _pid_of(running, allocation) for allocation in allocations]
    await running.end_of(allocations[2])
    await running.stop()
    leaves, forever, finished = [await running.ended_run(it) for it in allocations]
    assert not [pid for pid in pids[:2] if alive(pid)]
    assert "CheckpointStored" in [type(payload).__name__ for payload in leaves.payloads]
    assert leaves.of(TrialExited) == forever.of(TrialExited) == []
    assert leaves.of(AllocationReleased) == forever.of(AllocationReleased) == []
    assert finished.exit.outcome == "finished"
    assert isinstance((await running.events("pools"))[-1].data, AgentLeft)


async def test_leaving_kills_after_a_while(rig: Rig) -> None:
    """A trial that does not leave when the agent goes down is killed."""
    rig.start(leave_s=0.1)
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN)\n" + FOREVER
    allocation = await rig.grant(code=rig.code(train=stubborn))
    pid = await _pid_of(rig, allocation)
    await rig.stop()
    assert not alive(pid)
    assert (await rig.ended_run(allocation)).of(TrialExited) == []


async def test_parent_gone(running: Rig) -> None:
    """When its parent is gone the agent kills its trials and stops without a word."""
    allocation = await running.grant(code=running.code(train=FOREVER))
    pid = await _pid_of(running, allocation)
    await running.abandon()
    assert not alive(pid)
    assert (await running.ended_run(allocation)).of(TrialExited) == []
    assert "AgentLeft" not in [type(event.data).__name__ for event in await running.events()]


async def test_ledger_away(tmp_path: Path) -> None:
    """Runs go on while the ledger is away; what they said comes when it is back, in order."""
    ledger = FickleLedger()
    rig = Rig(tmp_path, ledger)
    rig.start(heartbeat_s=0.05)
    done = tmp_path / "done"
    script = SPEAK + (
        "hello()\nfor step in range(100): report('validation', step, loss=1.0)\n"
        f"open({str(done)!r}, 'w').close()\n"
    )
    await rig.until(AgentJoined)
    ledger.away = True
    allocation = await rig.grant(code=rig.code(train=script))
    await eventually(done.exists)
    assert await rig.events("experiments") == []
    ledger.away = False
    ended = await rig.end_of(allocation)
    assert [step for _, step, _ in ended.rows] == list(range(100))
    sequences = [event.sequence for event in await rig.events("experiments")]
    assert sequences == sorted(sequences, key=lambda number: number or 0)
    await rig.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    """Give a rig without an agent of its own, on a ledger that other processes can open."""
    ledger = await SqliteLedger.open(tmp_path / "ledger", partitions=1)
    yield Rig(tmp_path, ledger)
    await ledger.close()


@contextlib.contextmanager
def _process(rig: Rig, *options: str, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run an agent as a process of its own."""
    command = [sys.executable, "-m", "rung.agent", "--isolation", "off", "--cold", "--slots", "2"]
    command += ["--unattended", "0"]  # test_takeover.py has what outlives an agent
    places = ["--ledger", str(rig.folder / "ledger"), "--folder", str(rig.folder / "agent")]
    process = subprocess.Popen(
        [*command, *places, "--objects", rig.store.url, "--agent-id", "a1", *options],
        **more,  # type: ignore[call-overload]  # passed on as they are
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.e2e
async def test_killed_agent(node: Rig) -> None:
    """SIGKILL to the agent ends its trials; the next life joins anew and loses no report."""
    code = node.code(train=SPEAK + "hello()\nreport('validation', 1, loss=1.0)\n" + FOREVER)
    with _process(node) as process:
        allocation = await node.grant(code=code)
        pid = await _pid_of(node, allocation)
        process.kill()
        process.wait()
        died_s = time.time()
        await eventually(lambda: not alive(pid))
    with _process(node) as process:
        joined = await node.until(AgentJoined, count=2)
        assert joined[1].incarnation == joined[0].incarnation + 1
        fresh = await node.grant(code=node.code(train="print('again')"))
        assert (await node.end_of(fresh)).printed() == ["again"]
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait) == 0
    assert (await node.ended_run(allocation)).rows == [("validation", 1, {"loss": 1.0})]
    assert len(await node.until(AgentLeft)) == 1
    marks = [event.data for event in await node.events() if isinstance(event.data, LogsDropped)]
    trial_id, run = allocation.rpartition(".")[::2]
    assert [(mark.trial_id, mark.run, mark.reason) for mark in marks] == [
        (trial_id, int(run), "killed")
    ], "of the run that was killed, and of that one alone"
    assert abs(marks[0].time_ms / 1000 - died_s) < 60


@pytest.mark.e2e
async def test_leftovers_of_a_killed_tree(node: Rig) -> None:
    """Daemons that survived agent and fork server are killed by the next agent."""
    script = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    print('pid', os.getpid(), os.getppid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with _process(node) as process:
        allocation = await node.grant(code=node.code(train=script))
        daemon = await _pid_of(node, allocation)
        warm = parent_of(parent_of(daemon))
        process.send_signal(signal.SIGSTOP)
        wait_until_stopped(process.pid)
        os.kill(warm, signal.SIGKILL)
        process.kill()
        process.wait()
    assert alive(daemon)
    with _process(node):
        await node.until(AgentJoined, count=2)
        assert not alive(daemon)


async def test_parent(node: Rig) -> None:
    """The agent appends through its parent, alone, and stops when that is gone."""
    ours, theirs = socket.socketpair()
    handed: list[Draft] = []

    class Noting(MemoryLedger):
        """Takes note of what is appended, and appends it to the ledger of the node."""

        async def append(self, drafts: Sequence[Draft]) -> list[int]:
            handed.extend(drafts)
            return await node.ledger.append(drafts)

    appending = asyncio.create_task(serve_appends(Noting(), ours))
    end = os.fstat(theirs.fileno()).st_ino
    with _process(node, "--parent", str(theirs.fileno()), pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        allocation = await node.grant(code=node.code(train=FOREVER))
        pid = await _pid_of(node, allocation)
        family = {
            process.pid,
            *(it.pid for it in psutil.Process(process.pid).children(recursive=True)),
        }
        assert pid in family
        assert [it for it in family if _holds(it, end)] == [process.pid]
        appending.cancel()
        assert await asyncio.to_thread(process.wait) == 0
        assert not alive(pid)
    started = [event for event in await node.events() if isinstance(event.data, TrialStarted)]
    assert len(started) == 1
    written = [event for event in await node.events() if event.source == "/rung/agent/a1"]
    assert {event.id for event in written} < {decode(draft.value).id for draft in handed}


def _holds(pid: int, inode: int) -> bool:
    """Return whether a process has a socket open."""
    links = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir()]
    return Path(f"socket:[{inode}]") in links


def test_refused_settings(tmp_path: Path) -> None:
    """A bad option is refused with what would be right."""
    rig = Rig(tmp_path)
    with _process(rig, "--slots", "0", stderr=subprocess.PIPE) as process:
        _, stderr = process.communicate()
        assert process.returncode == 2
    assert b"slots is 0: an agent offers at least one" in stderr

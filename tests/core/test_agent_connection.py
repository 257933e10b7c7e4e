"""The socket to the agent: nothing lost, nothing reordered, nothing left behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from core.conftest import Managed
from rung import core
from rung.core._agent_connection import EXIT_AGENT_GONE, AgentConnection, connect
from rung.core.ipc import protocol
from rung.core.ipc.protocol import (
    Acknowledged,
    BestFound,
    BestRequested,
    Hello,
    Preempt,
    Reported,
    Taken,
    Welcome,
)
from rung.core.ipc.unconfirmed import PREFIX, Unconfirmed, frames_in
from support.agent_end import AgentEnd, agent_end, run_spec

HELLO = Hello("a", "t", 0, 1)

_REPORTING = """
import os, signal, sys
from rung import core
ctx = core.init()
for step in range(1, 51):
    ctx.train.report_training_metrics(step, {"loss": 1.0})
os.kill(os.getpid(), signal.SIGKILL)
"""

_WAITING = """
import time
from rung import core
ctx = core.init()
ctx.train.report_training_metrics(1, {"loss": 1.0})
while True:
    time.sleep(60)
"""


def test_what_was_sent_survives_sigkill(tmp_path: Path) -> None:
    """All fifty reports made before the process killed itself are with the agent."""
    with agent_end(tmp_path) as agent:
        agent.reading.clear()
        environment = os.environ | agent.environment
        process = subprocess.Popen(
            [sys.executable, "-c", _REPORTING], env=environment, cwd=tmp_path
        )
        agent.reading.set()
        assert process.wait() == -signal.SIGKILL
        agent.wait_for_end()
        assert [step for step, _ in agent.reports("training")] == list(range(1, 51))


def test_a_process_without_its_agent_ends(tmp_path: Path) -> None:
    """When the agent goes away, so does the trial, saying why, even while it computes."""
    with agent_end(tmp_path) as agent:
        process = subprocess.Popen(
            [sys.executable, "-c", _WAITING],
            env=os.environ | agent.environment,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        agent.wait_for(lambda end: len(end.messages) == 1)
        agent.vanish()
        _, stderr = process.communicate(timeout=20)
    assert process.returncode == EXIT_AGENT_GONE
    assert "the agent is gone" in stderr


def test_a_full_socket_neither_blocks_nor_reorders(managed: Managed) -> None:
    """While the agent does not read, reports queue up at once; then all arrive in order."""
    agent, ctx = managed()
    agent.reading.clear()
    started = time.monotonic()
    for step in range(20_000):
        ctx.train.report_training_metrics(step, {"loss": 0.25, "accuracy": 0.5})
    assert time.monotonic() - started < 10
    timer = threading.Timer(0.05, agent.reading.set)
    timer.start()
    for step in range(20_000, 40_000):
        ctx.train.report_training_metrics(step, {"loss": 0.25})
    ctx.close()
    timer.join()
    agent.wait_for_end()
    assert [step for step, _ in agent.reports("training")] == list(range(40_000))


def test_a_forked_child_must_not_speak(managed: Managed) -> None:
    """A DataLoader's worker that reports is told so, and the parent's link stays whole."""
    agent, ctx = managed()
    child = os.fork()
    if child == 0:
        try:
            ctx.train.report_training_metrics(1, {"loss": 1.0})
        except RuntimeError:
            ctx.close()
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    ctx.train.report_training_metrics(2, {"loss": 1.0})
    ctx.close()
    agent.wait_for_end()
    assert [step for step, _ in agent.reports("training")] == [2]


def test_a_missing_agent_is_named(tmp_path: Path) -> None:
    """Nobody listening is an error with the socket's path."""
    with pytest.raises(core.AgentGone, match=r"none\.sock"):
        connect(str(tmp_path / "none.sock"), HELLO)


def test_an_agent_that_starts_again_is_waited_for(tmp_path: Path) -> None:
    """A process that begins meanwhile connects once the agent listens and has its run."""
    path = str(tmp_path / "s")
    welcome = protocol.frame(Welcome(run_spec(), "agent-1", "file:///x", [0]))
    tried = threading.Event()

    def listen_later() -> None:
        tried.wait()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            early, _ = listener.accept()  # the run is not taken over yet
            early.close()
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                lines.readline()
                connection.sendall(welcome)
                lines.read()

    thread = threading.Thread(target=listen_later)
    thread.start()
    threading.Timer(0.1, tried.set).start()
    link, greeted = connect(path, HELLO, patience_s=60.0)
    assert greeted.agent_id == "agent-1"
    link.close()
    thread.join()


@pytest.mark.parametrize("answer", [b"", b"rubbish\n", protocol.frame(Preempt(1))])
def test_an_agent_that_does_not_welcome_is_an_error(tmp_path: Path, answer: bytes) -> None:
    """A closed connection, an unknown answer and a wrong one are refused alike."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(core.AgentGone):
            connect(path, HELLO)
        thread.join()


def test_what_comes_with_the_welcome_is_read_too(tmp_path: Path) -> None:
    """A preemption right behind the welcome, or cut in two, is not lost; unknown words are."""
    path = str(tmp_path / "s")
    welcome = protocol.frame(Welcome(run_spec(), "agent-1", "file:///x", [0]))
    late = protocol.frame(Preempt(1))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        received: list[bytes] = []

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                lines.readline()
                connection.sendall(welcome + b'{"type":"newer"}\n' + late[:9])
                connection.sendall(late[9:])
                received.extend(lines)

        thread = threading.Thread(target=serve)
        thread.start()
        link, _ = connect(path, HELLO)
        while not link.preempted:
            pass
        link.send(Reported("training", 1, 2, {"loss": 0.5}))
        link.close()
        thread.join()
    assert [protocol.trial_decoder.decode(line) for line in received] == [
        Reported("training", 1, 2, {"loss": 0.5})
    ]


def _report(link: AgentConnection, steps: range) -> None:
    for step in steps:
        link.send(Reported("training", step, 1, {"loss": 1.0}))


def _newest(agent: AgentEnd) -> int:
    """Return the step of the report that came last: a look at all, at each report, takes long."""
    last = agent.messages[-1] if agent.messages else None
    return last.step if isinstance(last, Reported) else 0


def _steps(*agents: AgentEnd) -> list[int]:
    return [step for agent in agents for step, _ in agent.reports("training")]


@pytest.mark.parametrize("reading", [True, False])
def test_reports_outlive_the_agent(tmp_path: Path, *, reading: bool) -> None:
    """What is reported before, during and after an absence of the agent takes effect once each.

    So too where the first agent left messages unread.
    """
    first = AgentEnd(tmp_path, run_spec())
    first.unattended_s = 60.0
    link, _ = connect(str(first.path), HELLO)
    _report(link, range(1, 21))
    first.wait_for(lambda agent: len(agent.messages) == 20)
    if not reading:
        first.reading.clear()
    _report(link, range(21, 20_001))
    second = first.successor()
    _report(link, range(20_001, 20_021))
    second.wait_for(lambda agent: _newest(agent) == 20_020)
    _report(link, range(20_021, 20_041))
    second.wait_for(lambda agent: _newest(agent) == 20_040)
    assert _steps(first, second) == list(range(1, 20_041))
    link.close()
    second.close()


@pytest.mark.parametrize("asked", ["before", "meanwhile"])
def test_a_question_outlives_the_agent(tmp_path: Path, asked: str) -> None:
    """The next agent answers what the one before did not, or what nobody was there for."""
    first = AgentEnd(tmp_path, run_spec())
    first.unattended_s = 60.0
    link, _ = connect(str(first.path), HELLO)
    if asked == "meanwhile":
        first.vanish()
        first.close()
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(link.best_validation, 60.0)
        if asked == "before":
            first.wait_for(lambda agent: len(agent.of(BestRequested)) == 1)
        second = first.successor()
        second.wait_for(lambda agent: len(agent.of(BestRequested)) >= 1)
        second.say(BestFound(1, 0.5))
        assert asking.result() == 0.5
    link.close()
    second.close()


def test_what_the_agent_confirms_is_forgotten(tmp_path: Path) -> None:
    """No file is left where the agent has confirmed all; else it has what is missing."""
    agent = AgentEnd(tmp_path, run_spec())
    agent.unattended_s = 60.0
    for confirmed in (5, 3):
        link, _ = connect(str(agent.path), HELLO)
        _report(link, range(1, 6))
        agent.say(Taken(confirmed))
        agent.say(Preempt(1))  # read after that
        while not link.preempted:
            pass
        link.close()
        agent.wait_for(lambda end: not end.connected)
        files = list(tmp_path.glob(f"{PREFIX}*"))
        assert len(files) == (confirmed < 5)
    found = frames_in(files[0].read_bytes())
    assert found is not None
    head, frames = found
    assert head.first == 4
    assert [msgspec.json.decode(frame)["step"] for frame in frames] == [4, 5]
    agent.close()


def test_a_process_ends_without_an_agent(tmp_path: Path) -> None:
    """What a process reports that ends while no agent is there is in a file, to the last word."""
    agent = AgentEnd(tmp_path, run_spec())
    agent.unattended_s = 60.0
    link, _ = connect(str(agent.path), HELLO)
    agent.vanish()
    agent.close()
    _report(link, range(1, 6))
    link.close()
    (file,) = tmp_path.glob(f"{PREFIX}*")
    found = frames_in(file.read_bytes())
    assert found is not None
    assert [msgspec.json.decode(frame)["step"] for frame in found[1]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("end", ["disk", "agent"])
def test_a_process_ends_without_an_agent_and_a_disk(tmp_path: Path, end: str) -> None:
    """Where the disk takes nothing, it waits for room or for an agent, and loses nothing."""
    folder = tmp_path / "run"
    first = AgentEnd(tmp_path, run_spec())
    first.unattended_s, first.buffer = 60.0, folder  # which is not there: nothing is taken
    link, _ = connect(str(first.path), HELLO)
    first.vanish()
    first.close()
    _report(link, range(1, 6))
    closing = threading.Thread(target=link.close)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive()
    if end == "disk":
        folder.mkdir()
        closing.join()
        (file,) = folder.glob(f"{PREFIX}*")
        found = frames_in(file.read_bytes())
        assert found is not None
        assert [msgspec.json.decode(frame)["step"] for frame in found[1]] == [1, 2, 3, 4, 5]
    else:
        second = first.successor()
        closing.join()
        second.wait_for(lambda agent: len(_steps(agent)) == 5)
        second.close()


def test_a_run_without_an_agent_leaves_after_a_while(tmp_path: Path) -> None:
    """A run that was unattended for too long is preempted, and says that no agent asked for it."""
    first = AgentEnd(tmp_path, run_spec())
    first.unattended_s = 0.2
    link, _ = connect(str(first.path), HELLO)
    assert not link.preempted
    first.vanish()
    first.close()
    while not link.preempted:
        time.sleep(0.01)
    link.send(Acknowledged())
    second = first.successor()
    second.wait_for(lambda agent: agent.of(Acknowledged) == [Acknowledged(unattended=True)])
    link.close()
    second.close()


def test_a_process_that_has_reported_too_much_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of its file a process waits for an agent, and nothing is lost."""
    monkeypatch.setattr("rung.core.ipc.unconfirmed.Unconfirmed.full", property(_has_a_kilobyte))
    first = AgentEnd(tmp_path, run_spec())
    first.unattended_s = 60.0
    link, _ = connect(str(first.path), HELLO)
    first.vanish()
    first.close()
    reporting = threading.Thread(target=_report, args=[link, range(1, 201)])
    reporting.start()
    reporting.join(0.3)
    assert reporting.is_alive()
    second = first.successor()
    reporting.join()
    second.wait_for(lambda agent: len(_steps(agent)) == 200)
    assert _steps(second) == list(range(1, 201))
    link.close()
    second.close()


def test_a_process_waits_for_an_agent_that_does_not_read(managed: Managed) -> None:
    """What is queued is bounded; nothing is lost or reordered."""
    agent, ctx = managed()
    agent.reading.clear()
    link = ctx._connection
    assert isinstance(link, AgentConnection)
    link._queue_bytes_max = 1 << 16
    reporting = threading.Thread(target=_report, args=[link, range(20_000)])
    reporting.start()
    reporting.join(0.5)
    assert reporting.is_alive()
    assert link._queued_bytes < 2 << 16
    agent.reading.set()
    reporting.join()
    ctx.close()
    agent.wait_for_end()
    assert [step for step, _ in agent.reports("training")] == list(range(20_000))


def _has_a_kilobyte(unconfirmed: Unconfirmed) -> bool:
    return unconfirmed._size + unconfirmed._memory_bytes >= 1024

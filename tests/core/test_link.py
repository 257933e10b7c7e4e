"""The socket to the agent: nothing lost, nothing reordered, nothing left behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from core.agent_end import agent_end, run_spec
from core.conftest import Managed
from rung import core
from rung.core import protocol
from rung.core.link import EXIT_AGENT_GONE, connect
from rung.core.protocol import Hello, Preempt, Reported, Welcome

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

"""What a fork server says of runs that end."""

import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from rung.agent.forkserver import server
from rung.agent.forkserver.messages import Exited, FromForkServer, Stuck, from_fork_server_decoder
from rung.agent.forkserver.server import ForkServer

FIRST, SECOND = Exited("e.0.1", 0, None), Exited("e.1.1", 1, None)


class Orphans:
    """A fork server whose orphans the test determines, and what it says to its agent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._agent, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._agent.settimeout(0)
        self.server = ForkServer(control)
        self.now = 0.0
        self.living: list[int] = []
        self.killed: list[int] = []
        monkeypatch.setattr(self.server, "_orphans", lambda: list(self.living))
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(os, "kill", lambda pid, _number: self.killed.append(pid))

    def ends(self, exited: Exited) -> None:
        """Let a main process have ended."""
        self.server._ended.append((self.now + server._REAP_TIMEOUT_S, exited))

    def close(self) -> None:
        """Close all sockets."""
        for each in (self._agent, self.server._control):
            each.close()
        self.server._wakeup_read.close()
        self.server._wakeup.close()

    def said(self) -> list[FromForkServer]:
        """Return what the server says at its next look."""
        self.server._clear_up()
        return list(self._messages())

    def _messages(self) -> Iterator[FromForkServer]:
        for _ in itertools.count():
            try:
                yield from_fork_server_decoder.decode(self._agent.recv(4096))
            except BlockingIOError:
                return


@pytest.fixture
def orphans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Orphans]:
    """Give a fork server."""
    made = Orphans(monkeypatch)
    yield made
    made.close()


def test_a_run_with_a_stuck_process_has_not_ended(orphans: Orphans) -> None:
    """What SIGKILL does not end may hold a device: it is reported once, and waited for."""
    orphans.living = [77]
    orphans.ends(FIRST)
    assert orphans.said() == []
    orphans.now = server._REAP_TIMEOUT_S + 1
    assert orphans.said() == [Stuck("e.0.1", 1)]
    assert orphans.killed == [77, 77]
    orphans.now += 3600
    assert orphans.said() == []
    assert orphans.server._wait_ms(None) == server._STUCK_SWEEP_MS
    orphans.living = []
    assert orphans.said() == [FIRST]
    assert orphans.server._wait_ms(None) is None


def test_a_stuck_process_of_one_run_holds_up_no_other(orphans: Orphans) -> None:
    """Runs that end later do not wait for what an earlier one has left."""
    orphans.living = [77]
    orphans.ends(FIRST)
    orphans.said()
    orphans.ends(SECOND)
    assert orphans.said() == [SECOND]
    orphans.ends(Exited("e.2.1", None, signal.SIGKILL))
    orphans.living = [77, 88]
    assert orphans.said() == []
    orphans.living = [88]
    assert orphans.said() == []
    orphans.living = []
    assert [type(it) for it in orphans.said()] == [Exited, Exited]

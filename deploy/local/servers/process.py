"""A server process in a session of its own: started, awaited, signaled, terminated."""

import contextlib
import fcntl
import functools
import itertools
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

_STOP_S: Final = 20.0
_LOOK_S: Final = 0.05
_TAIL: Final = 2_000
_STOPPED: Final = frozenset("TtXZ")
"""A thread's states in which it does not run again by itself."""
_FIRST_PORT: Final = 12_000
_PARTS: Final = 40
_PART: Final = 500
_numbers: Final = itertools.count()


class ServerFailed(RuntimeError):
    """A server did not start or stop; the message ends with the end of its log."""


def free_port() -> int:
    """Return a free TCP port of the loopback interface.

    It is below the kernel's range for outgoing connections, because a server may bind it seconds
    later, and again after a kill; and in a part of that range that this process has locked,
    because other processes look for ports at the same time.
    """
    first = _claimed(os.getpid())
    while True:
        port = first + next(_numbers) % _PART
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@functools.cache
def _claimed(pid: int) -> int:
    """Return the first port of a part that a process locks until it ends.

    If all parts are locked, two processes share one.
    """
    parts = (_FIRST_PORT + (pid + number) % _PARTS * _PART for number in range(_PARTS))
    folder = Path(tempfile.gettempdir())
    return next(
        (first for first in parts if _lock(folder / f"rung-ports-{first}")),
        _FIRST_PORT + pid % _PARTS * _PART,
    )


def _lock(path: Path) -> bool:
    """Lock a file until this process ends; return whether it could be had."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # of another user
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return False
    return True


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


class ServerProcess:
    """A command that runs until it is stopped or killed; may be started again.

    Its output goes to `log`. It leads a process group, so that what it starts ends with it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Prepare it; nothing is started yet.

        Args:
            command: program and arguments.
            log: where its output is appended.
            environment: variables besides this process's.
            cwd: its working directory; the folder of the log if not given.
            prefix: what the command is run by, such as `ip netns exec NAME`.
        """
        self._command: Final = [*prefix, *command]
        self._log: Final = log
        self._environment: Final = dict(environment or {})
        self._cwd: Final = cwd or log.parent
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self, ready: Callable[[], bool] | None = None, *, within_s: float = 60.0) -> None:
        """Start it and wait until `ready` returns True, if it is given.

        Raises:
            ServerFailed: it ended, or was not ready in time.
        """
        assert not self.running, f"{self._command[0]} runs already"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._cwd,
                env=os.environ | self._environment,
                start_new_session=True,
            )
        if ready is not None:
            self.wait_until(ready, within_s=within_s)

    def wait_until(self, ready: Callable[[], bool], *, within_s: float = 60.0) -> None:
        """Wait until `ready` returns True; a process that is not in time is killed.

        Raises:
            ServerFailed: it ended, or was not ready in time.
        """
        deadline = time.monotonic() + within_s
        while not ready():
            if not self.running:
                raise ServerFailed(f"{self._command[0]} ended at its start: {self.said()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(
                    f"{self._command[0]} was not ready within {within_s:.0f} s: {self.said()}"
                )
            time.sleep(_LOOK_S)

    def said(self) -> str:
        """Return the end of its log."""
        with contextlib.suppress(OSError):
            return self._log.read_bytes()[-_TAIL:].decode(errors="replace")
        return ""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def pause(self) -> None:
        """Stop it (SIGSTOP), and wait until it is stopped; its connections stay open."""
        self.signal(signal.SIGSTOP)
        wait_until_stopped(self.pid)

    def resume(self) -> None:
        """Continue it (SIGCONT)."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def stop(self, *, within_s: float = _STOP_S) -> int:
        """Ask it to end (SIGTERM), kill it if it does not; return its exit code."""
        assert self._process is not None, "not started"
        if self.running:
            self.resume()
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        self.kill()
        return self._process.returncode


def wait_until_stopped(pid: int) -> None:
    """Wait until all threads of a process that was sent SIGSTOP are stopped, or have ended.

    A thread stops only when it is scheduled next: on a busy machine others answer until then.
    """
    while not _is_stopped(pid):
        time.sleep(_LOOK_S)


def _is_stopped(pid: int) -> bool:
    states = (
        path.read_text().rpartition(")")[2].split()[0]
        for path in Path("/proc").glob(f"{pid}/task/*/stat")
    )
    with contextlib.suppress(OSError):  # a thread may just have ended
        return all(state in _STOPPED for state in states)
    return False


class Server:
    """A server of one process, whose data stay in its folder between starts."""

    _process: ServerProcess

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process.running

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._process.kill()

    def pause(self) -> None:
        """Stop it from running (SIGSTOP); its connections stay open."""
        self._process.pause()

    def resume(self) -> None:
        """Continue it (SIGCONT)."""
        self._process.resume()

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._process.stop()

"""Client of a fork server: its process, and the agent's end of the socket to it."""

import asyncio
import contextlib
import hashlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog

from rung.agent.forkserver.messages import (
    FOLDER,
    MESSAGE_BYTES_MAX,
    VERSION,
    Attach,
    Attached,
    End,
    FromForkServer,
    Held,
    Look,
    Looked,
    Ready,
    encoder,
    from_fork_server_decoder,
)
from rung.agent.forkserver.orphans import MARKER
from rung.agent.logs.capture import LogCapture
from rung.agent.outbox.outbox import Outbox

_TIMEOUT_S: Final = 15.0
_ATTACH_S: Final = 5.0
_OF_SHELLS: Final = {"OLDPWD", "PWD", "SHLVL", "_"}
"""Variables of the shell that differ between terminals and do not matter here."""
_RETRY_S: Final = 0.05
_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: process, user, group."""

_log = structlog.get_logger()


class Options(NamedTuple):
    """How fork servers are started."""

    folder: Path
    """The agent's."""
    cuda: bool
    """Whether runs will use CUDA devices."""
    hidden: frozenset[str] = frozenset()
    """Variables that runs must not inherit, besides the platform's own."""
    umask: int | None = None
    """The umask of runs; None: that of this process."""
    unattended_s: float = 0.0
    """How long runs go on training without an agent."""

    def environment(self) -> dict[str, str]:
        """Return the environment of a fork server."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RUNG_") and name not in self.hidden
        }
        environment.setdefault("PYTHONHASHSEED", "0")
        environment[MARKER] = str(self.folder)
        if not self.cuda:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return environment

    def key(self, *, cold: bool) -> str:
        """Return a digest of all that fork servers depend on: options, environment, packages.

        It changes with an upgrade of any installed package, too.
        """
        facts = [sys.executable, str(self.cuda), str(cold), str(self.umask)]
        variables = sorted(self.environment().items())
        facts += [f"{name}={value}" for name, value in variables if name not in _OF_SHELLS]
        installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
        own = [file for root in sys.modules["rung"].__path__ for file in Path(root).rglob("*.py")]
        for path in (*installed, *sorted(own)):
            with contextlib.suppress(OSError):
                facts.append(f"{path} {path.stat().st_mtime_ns}")
        return hashlib.sha256("\0".join(facts).encode("utf-8", "surrogateescape")).hexdigest()


class Adoption(NamedTuple):
    """A fork server of an earlier agent, with the processes that it hands over."""

    control: socket.socket
    attached: Attached
    held: list[tuple[Held, list[int]]]
    """With the descriptors of each process's pipes and files."""


class ForkServerClient:
    """One fork server, from its start to its end."""

    def __init__(  # noqa: PLR0913 - the parts of a process
        self,
        options: Options,
        outbox: Outbox,
        *,
        cold: bool,
        key: str,
        take: Callable[[FromForkServer], None],
        adopted: Adoption | None = None,
    ) -> None:
        """Start it, or take one over.

        Args:
            options: how it is started.
            outbox: while it is saturated, the output of the fork server is not read.
            cold: whether it imports no frameworks.
            key: `Options.key` of the processes that it forks.
            take: is called with each of its messages.
            adopted: one that an earlier session of the agent has started.
        """
        self.key = key
        self._prints: LogCapture | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if adopted is None:
            self._control = self._start(options, outbox, cold=cold)
            self.pid = self._process.pid if self._process else 0
        else:
            self._control = adopted.control
            self.pid = _peer_of(self._control)
            self._control.settimeout(0)
        self._pidfd = os.pidfd_open(self.pid)
        loop = asyncio.get_running_loop()
        self.ready = adopted is not None
        """Whether it takes requests."""
        self.closed: Final[asyncio.Future[None]] = loop.create_future()
        """Done when the process has ended."""
        self._take = take
        self._unsent: list[tuple[bytes, tuple[int, ...]]] = []
        loop.add_reader(self._control, self._receive)

    def _start(self, options: Options, outbox: Outbox, *, cold: bool) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)
        flags = [*(["--cuda"] if options.cuda else []), *(["--cold"] if cold else [])]
        flags += ["--unattended", str(options.unattended_s), "--key", self.key]
        self._prints = LogCapture(outbox, _log_prints)
        with theirs:
            control = ["--control", str(theirs.fileno())]
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "rung.agent.forkserver.server", *control, *flags],
                cwd=options.folder,
                env=options.environment(),
                stdin=subprocess.DEVNULL,
                stdout=self._prints.write_end,
                stderr=self._prints.write_end,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                umask=-1 if options.umask is None else options.umask,
            )
        self._prints.started()
        return ours

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send at once if the socket takes it; the descriptors are duplicated until it does."""
        self._unsent.append((data, tuple(os.dup(d) for d in descriptors)))
        if len(self._unsent) == 1:
            self._flush()

    async def end(self) -> None:
        """Have it kill its descendants and exit; kill it if it does not."""
        self._close_connection(encoder.encode(End()))
        if not self.ready:
            self._kill()
        self.ready = False
        await asyncio.to_thread(self._wait)

    def detach(self) -> None:
        """Leave it to an agent that comes later."""
        self._close_connection(b"")
        if self._prints is not None:
            self._prints.close()
        if self._process is not None:
            self._process.returncode = 0  # no longer waited for by this process

    async def read_rest(self) -> None:
        """Log what it printed at the end."""
        if self._prints is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._prints.ended()
        self._prints.close()

    def _close_connection(self, last: bytes) -> None:
        """Close the connection, after a last message if there is one."""
        while self._unsent:
            self._drop_unsent()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._control)
        loop.remove_writer(self._control)
        if last:
            with contextlib.suppress(OSError):  # if it is not read, the close ends it as well
                self._control.send(last)
        self._control.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _wait(self) -> None:
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        if not ended.poll(_TIMEOUT_S * 1000):
            self._kill()
            ended.poll()
        if self._process is not None:
            self._process.wait()
        os.close(self._pidfd)

    def _receive(self) -> None:
        while True:
            try:
                data = self._control.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(self._control)
                if not self.closed.done():
                    self.closed.set_result(None)
                return
            message = from_fork_server_decoder.decode(data)
            if isinstance(message, Ready):
                _log.info("runs can start", warmed=message.warmed, seconds=message.seconds)
                self.ready = True
            self._take(message)

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._control)
        while self._unsent:
            data, descriptors = self._unsent[0]
            try:
                if descriptors:
                    socket.send_fds(self._control, [data], list(descriptors))
                else:
                    self._control.send(data)
            except BlockingIOError:
                loop.add_writer(self._control, self._flush)
                return
            except ConnectionError:  # the reader notices as well, and clears up
                return
            self._drop_unsent()

    def _drop_unsent(self) -> None:
        _, descriptors = self._unsent.pop(0)
        for descriptor in descriptors:
            os.close(descriptor)


async def attach(path: Path, unattended_s: float) -> Adoption | None:
    """Take over the fork server that listens at a path; None if there is none.

    Args:
        path: of its socket.
        unattended_s: how long its processes go on training without an agent from now on.
    """
    return await asyncio.to_thread(_attach, path, unattended_s)


def _attach(path: Path, unattended_s: float) -> Adoption | None:
    until = time.monotonic() + _ATTACH_S
    while True:
        control = connected(path)
        if control is None:
            return None
        try:
            control.sendall(encoder.encode(Attach(unattended_s)))
            return _taken_over(control)
        except (OSError, EOFError, msgspec.DecodeError):
            control.close()
        if time.monotonic() > until:  # it serves another agent, or is of an incompatible release
            return None
        time.sleep(_RETRY_S)


def connected(path: Path) -> socket.socket | None:
    """Return a connection to the fork server that listens at a path; None if there is none."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.settimeout(_TIMEOUT_S)
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        control.connect(f"/proc/self/fd/{folder}/{path.name}")  # short, whatever the path is
    except OSError as error:
        control.close()
        if isinstance(error, ConnectionRefusedError):  # it is gone
            path.unlink(missing_ok=True)
        return None
    finally:
        os.close(folder)
    return control


def left_behind(folder: Path, *, kill: bool = False) -> Looked:
    """Return the runs that an agent which is gone has left running.

    Args:
        folder: the agent's.
        kill: whether to kill them; the result is empty then.
    """
    runs: set[str] = set()
    left_s = 0.0
    for path in sorted((folder / FOLDER).glob("*.sock")):
        control = connected(path)
        if control is None:
            continue
        with control, contextlib.suppress(OSError, msgspec.DecodeError):
            control.sendall(encoder.encode(End() if kill else Look()))
            data = control.recv(MESSAGE_BYTES_MAX)  # nothing, once it has ended
            if data and isinstance(looked := from_fork_server_decoder.decode(data), Looked):
                runs.update(looked.runs)
                left_s = max(left_s, looked.left_s)
    return Looked(sorted(runs), left_s)


def _taken_over(control: socket.socket) -> Adoption:
    """Return what a fork server hands over.

    Raises:
        EOFError: it refuses.
        OSError: it is gone.
    """
    attached = from_fork_server_decoder.decode(_some(control.recv(MESSAGE_BYTES_MAX)))
    if not isinstance(attached, Attached) or attached.version != VERSION:
        raise EOFError
    held = []
    for _ in range(attached.held):
        data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 4)
        message = from_fork_server_decoder.decode(_some(data))
        assert isinstance(message, Held), message
        held.append((message, descriptors))
    return Adoption(control, attached, held)


def _some(data: bytes) -> bytes:
    if not data:
        raise EOFError
    return data


def _peer_of(control: socket.socket) -> int:
    """Return the number of the process that listened at the other end."""
    found = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(found)[0]
    return pid


def _log_prints(lines: list[str]) -> None:
    """Log what the fork server printed: something failed in it, such as an import."""
    for line in lines:
        _log.warning("the fork server printed", text=line)

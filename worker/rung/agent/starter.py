"""The agent's side of the warm parent: starts it, asks it for processes, hears of their ends.

When the warm parent dies, the processes of all runs are dead or dying with it. `lost` is called
then, once what is left of them is killed; afterwards a new warm parent is started. One that dies
before it was ready is started again without the frameworks: better a slow start than none.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from rung.agent.capture import Capture
from rung.agent.leftovers import MARKER, kill_orphans
from rung.agent.spool import Spool
from rung.agent.wire import (
    MESSAGE_BYTES_MAX,
    Exited,
    Forked,
    FromParent,
    Launch,
    Ready,
    Refused,
    Signal,
    encoder,
    from_parent_decoder,
)

_AGAIN_S: Final = 0.2
_AGAIN_S_MAX: Final = 10.0
_PATIENCE_S: Final = 15.0

_log = structlog.get_logger()


class NotStarted(Exception):
    """A run's process could not be made; its message is written for a person."""


class Starter:
    """Keeps a warm parent alive."""

    def __init__(
        self,
        folder: Path,
        spool: Spool,
        *,
        cuda: bool,
        cold: bool,
        lost: Callable[[], Awaitable[None]],
    ) -> None:
        self._folder = folder
        self._spool = spool
        self._prints: Capture | None = None
        self._cuda = cuda
        self._cold = cold
        self._lost = lost
        self._ready = asyncio.Event()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._forks: dict[str, asyncio.Future[int | None]] = {}
        self._exits: dict[str, asyncio.Future[Exited | None]] = {}
        self._mains: dict[str, int] = {}
        self._unsent: list[tuple[bytes, tuple[int, ...]]] = []
        self._closed: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int | None:
        """The warm parent's process number, while there is one."""
        return self._process.pid if self._process else None

    async def run(self) -> None:
        """Keep a warm parent alive until cancelled."""
        wait_s = _AGAIN_S
        cold = self._cold
        try:
            while True:
                self._spawn(cold=cold)
                assert self._closed is not None
                await self._closed
                was_ready = self._ready.is_set()
                await self._clear()
                _log.error("the warm parent died; starting another", was_ready=was_ready)
                await self._lost()
                wait_s = _AGAIN_S if was_ready else min(2 * wait_s, _AGAIN_S_MAX)
                cold = self._cold or not was_ready
                await asyncio.sleep(wait_s)
        finally:
            await self._clear()

    async def ready(self) -> None:
        """Return when runs can start."""
        await self._ready.wait()

    async def launch(self, launch: Launch, stdout: int, stderr: int) -> int | None:
        """Have a process forked for a run; return its number, None if the warm parent died.

        Raises:
            NotStarted: the operating system refused, or the environment is too large.
        """
        assert self._ready.is_set(), "wait until it is ready"
        data = encoder.encode(launch)
        if len(data) > MESSAGE_BYTES_MAX:
            raise NotStarted(
                f"the entrypoint and the environment variables take {len(data)} bytes; "
                f"at most {MESSAGE_BYTES_MAX} can be passed to a process"
            )
        loop = asyncio.get_running_loop()
        fork: asyncio.Future[int | None] = loop.create_future()
        self._forks[launch.allocation_id] = fork
        self._exits[launch.allocation_id] = loop.create_future()
        self._send(data, (stdout, stderr))
        return await fork

    async def exited(self, allocation_id: str) -> Exited | None:
        """Return how a launched run ended, once it and all it started are gone.

        None: it was lost with the warm parent.
        """
        return await self._exits[allocation_id]

    def forget(self, allocation_id: str) -> None:
        """Forget a run that has ended."""
        self._exits.pop(allocation_id, None)

    def signal(self, allocation_id: str, number: signal.Signals) -> None:
        """Send a signal to a run's process group, if it is alive."""
        if self._ready.is_set():
            self._send(encoder.encode(Signal(allocation_id, number)), ())

    def _spawn(self, *, cold: bool) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)
        flags = [*(["--cuda"] if self._cuda else []), *(["--cold"] if cold else [])]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RUNG_")}
        environment.setdefault("PYTHONHASHSEED", "0")
        environment[MARKER] = str(self._folder)
        if not self._cuda:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        self._prints = Capture(self._spool, _log_prints)
        with theirs:
            control = ["--control", str(theirs.fileno())]
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "rung.agent.warm_parent", *control, *flags],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._prints.write_end,
                stderr=self._prints.write_end,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._prints.started()
        loop = asyncio.get_running_loop()
        self._control = ours
        self._closed = loop.create_future()
        loop.add_reader(ours, self._receive)

    def _receive(self) -> None:
        control, closed = self._control, self._closed
        assert control is not None
        assert closed is not None
        while True:
            try:
                data = control.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(control)
                if not closed.done():
                    closed.set_result(None)
                return
            self._take(from_parent_decoder.decode(data))

    def _take(self, message: FromParent) -> None:
        match message:
            case Ready():
                _log.info("runs can start", warmed=message.warmed, seconds=message.seconds)
                self._ready.set()
            case Forked():
                self._mains[message.allocation_id] = message.pid
                fork = self._forks.pop(message.allocation_id)
                if not fork.done():
                    fork.set_result(message.pid)
            case Refused():
                fork = self._forks.pop(message.allocation_id)
                if not fork.done():
                    fork.set_exception(NotStarted(message.reason))
            case Exited():
                del self._mains[message.allocation_id]
                exited = self._exits.get(message.allocation_id)
                if exited is not None and not exited.done():
                    exited.set_result(message)

    def _send(self, data: bytes, descriptors: tuple[int, ...]) -> None:
        """Send at once if the socket takes it; the descriptors are duplicated until it does."""
        self._unsent.append((data, tuple(os.dup(d) for d in descriptors)))
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        control = self._control
        if control is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_writer(control)
        while self._unsent:
            data, descriptors = self._unsent[0]
            try:
                if descriptors:
                    socket.send_fds(control, [data], list(descriptors))
                else:
                    control.send(data)
            except BlockingIOError:
                loop.add_writer(control, self._flush)
                return
            except ConnectionError:  # the reader notices as well, and clears up
                return
            self._drop_unsent()

    def _drop_unsent(self) -> None:
        _, descriptors = self._unsent.pop(0)
        for descriptor in descriptors:
            os.close(descriptor)

    async def _clear(self) -> None:
        """Make sure that the warm parent and everything below it is gone."""
        was_ready = self._ready.is_set()
        self._ready.clear()
        while self._unsent:
            self._drop_unsent()
        if self._control is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._control)
            loop.remove_writer(self._control)
            self._control.close()
            self._control = None
        if self._process is not None:
            process, self._process = self._process, None
            if not was_ready:
                process.kill()
            mains, self._mains = frozenset(self._mains.values()), {}
            await asyncio.to_thread(_end, process, self._folder, mains)
        if self._prints is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._prints.ended(), 1.0)
            self._prints.close()
        for fork in self._forks.values():
            if not fork.done():
                fork.set_result(None)
        for exited in self._exits.values():
            if not exited.done():
                exited.set_result(None)
        self._forks.clear()


def _log_prints(lines: list[str]) -> None:
    """Log what the warm parent printed: nothing, unless an import or it itself fails."""
    for line in lines:
        _log.warning("the warm parent printed", text=line)


def _end(process: "subprocess.Popen[bytes]", folder: Path, mains: frozenset[int]) -> None:
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    kill_orphans(folder, mains)

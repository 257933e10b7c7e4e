"""The agent's end of one warm parent: its process and the socket over which it is asked."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from rung.agent.capture import Capture
from rung.agent.leftovers import MARKER
from rung.agent.spool import Spool
from rung.agent.wire import MESSAGE_BYTES_MAX, FromParent, Ready, from_parent_decoder

_PATIENCE_S: Final = 15.0

_log = structlog.get_logger()


class Parent:
    """One warm parent, from its start to its end."""

    def __init__(  # noqa: PLR0913 - the parts of a process
        self,
        folder: Path,
        spool: Spool,
        *,
        cuda: bool,
        cold: bool,
        hidden: frozenset[str],
        umask: int | None,
        take: Callable[[FromParent], None],
    ) -> None:
        """Start it.

        Args:
            folder: the agent's.
            spool: holds back what prints too much.
            cuda: whether its runs will use CUDA devices.
            cold: whether it imports no frameworks.
            hidden: variables that its runs must not get, besides the platform's own.
            umask: of its runs; None: as this process's.
            take: is called with what it says.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)
        flags = [*(["--cuda"] if cuda else []), *(["--cold"] if cold else [])]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RUNG_") and name not in hidden
        }
        environment.setdefault("PYTHONHASHSEED", "0")
        environment[MARKER] = str(folder)
        if not cuda:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        self._prints = Capture(spool, _log_prints)
        with theirs:
            control = ["--control", str(theirs.fileno())]
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "rung.agent.warm_parent", *control, *flags],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._prints.write_end,
                stderr=self._prints.write_end,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                umask=-1 if umask is None else umask,
            )
        self._prints.started()
        loop = asyncio.get_running_loop()
        self.ready = False
        """Whether it takes requests."""
        self.closed: Final[asyncio.Future[None]] = loop.create_future()
        """Done when it is gone."""
        self._take = take
        self._control = ours
        self._unsent: list[tuple[bytes, tuple[int, ...]]] = []
        loop.add_reader(ours, self._receive)

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send at once if the socket takes it; the descriptors are duplicated until it does."""
        self._unsent.append((data, tuple(os.dup(d) for d in descriptors)))
        if len(self._unsent) == 1:
            self._flush()

    async def end(self) -> None:
        """Have it kill what is below it and leave; kill it if it does not."""
        while self._unsent:
            self._drop_unsent()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._control)
        loop.remove_writer(self._control)
        self._control.close()
        if not self.ready:
            self._process.kill()
        self.ready = False
        await asyncio.to_thread(self._wait)

    async def hear_out(self) -> None:
        """Log what it printed at the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._prints.ended()
        self._prints.close()

    def _wait(self) -> None:
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

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
            message = from_parent_decoder.decode(data)
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


def _log_prints(lines: list[str]) -> None:
    """Log what the warm parent printed: nothing, unless an import or it itself fails."""
    for line in lines:
        _log.warning("the warm parent printed", text=line)

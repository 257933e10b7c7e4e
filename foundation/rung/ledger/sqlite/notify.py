"""Wakes the followers of other processes when something was appended, without polling.

A process that follows hangs up a *doorbell*: a Unix socket in the ledger's `doorbells` folder.
Every process that appends keeps a connection to each doorbell and sends one byte after each
commit. Nothing is missed:

* hanging up a doorbell is followed by a commit, whose mark (`PRAGMA data_version`) makes every
  other appender look at the folder again inside its next transaction; whoever committed before
  that is seen by the read that comes after;
* an appender that is killed between its commit and its ringing closes the connection by dying,
  and a closed connection counts as a ring;
* a full buffer means that the follower has not yet looked at an earlier ring.

A socket on which nobody listens belonged to a killed process; the next appender removes it.
"""

import asyncio
import contextlib
import errno
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rung.events.errors import LedgerError

_BACKLOG: Final = 128
_HANGING_SECONDS_MAX: Final = 60
_LONGEST: Final = 100
"""Bytes that any Unix allows in a socket's path (Linux 108, others 104, each with a NUL)."""


class Doorbell:
    """A follower's side: calls `heard` in the event loop whenever another process committed."""

    def __init__(self, folder: Path, heard: Callable[[], None]) -> None:
        self.name: Final = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._folder = folder
        self._heard = heard
        self._listener: socket.socket | None = None
        self._callers: dict[int, socket.socket] = {}

    def hang(self) -> None:
        """Begin to listen, unless it does; must run in the event loop."""
        if self._listener is not None:
            return
        listener = _socket()
        try:
            with _door(self._folder) as door:
                # Under its name only once it listens, lest an appender take it for a dead one's.
                listener.bind(door("." + self.name))
                listener.listen(_BACKLOG)
            (self._folder / f".{self.name}").rename(self._folder / self.name)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)

    def take_down(self) -> None:
        """Stop listening and remove the socket; must run in the event loop."""
        loop = asyncio.get_running_loop()
        (self._folder / self.name).unlink(missing_ok=True)
        for caller in [*self._callers.values(), *filter(None, [self._listener])]:
            loop.remove_reader(caller.fileno())
            caller.close()
        self._callers.clear()
        self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError, ConnectionError):
            caller, _ = self._listener.accept()
            caller.settimeout(0)
            number = caller.fileno()
            self._callers[number] = caller
            asyncio.get_running_loop().add_reader(number, self._hear, number)

    def _hear(self, number: int) -> None:
        caller = self._callers[number]
        try:
            more = caller.recv(4096)
        except BlockingIOError:
            return
        except ConnectionError:
            more = b""
        if not more:
            asyncio.get_running_loop().remove_reader(number)
            self._callers.pop(number).close()
        self._heard()


class Ringer:
    """An appender's side; used by its writer thread alone."""

    def __init__(self, folder: Path, own: str) -> None:
        self._folder = folder
        self._own = own
        self._doorbells: dict[str, socket.socket] = {}
        self.unheard = False
        """Whether a doorbell did not answer at the last look, so that another one is due."""

    def look(self) -> None:
        """Connect to the doorbells that are there now; call before committing."""
        self.unheard = False
        with os.scandir(self._folder) as entries:
            names = {entry.name for entry in entries if not entry.name.startswith(".")}
        names.discard(self._own)
        for name in [name for name in self._doorbells if name not in names]:
            self._doorbells.pop(name).close()
        for name in sorted(names.difference(self._doorbells)):
            self._connect(name)

    def ring(self) -> None:
        """Say that something was committed."""
        for name, doorbell in list(self._doorbells.items()):
            try:
                doorbell.send(b"!", socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue  # it has rung already and nobody has looked yet
            except OSError:
                self._doorbells.pop(name).close()
                self.unheard = True

    def close(self) -> None:
        """Let go of all doorbells."""
        for doorbell in self._doorbells.values():
            doorbell.close()
        self._doorbells.clear()

    def _connect(self, name: str) -> None:
        doorbell = _socket()
        try:
            with _door(self._folder) as door:
                doorbell.connect(door(name))
        except (ConnectionRefusedError, FileNotFoundError):
            (self._folder / name).unlink(missing_ok=True)
            doorbell.close()
        except BlockingIOError:
            doorbell.close()  # too many wait at the door
            self.unheard = True
        else:
            self._doorbells[name] = doorbell


def sweep(folder: Path) -> None:
    """Remove what processes left that were killed while they hung up their doorbell."""
    for path in folder.glob(".*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime > _HANGING_SECONDS_MAX:
                path.unlink()


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(0)
    return made


@contextlib.contextmanager
def _door(folder: Path) -> Iterator[Callable[[str], str]]:
    """Give names in the folder a path that is short enough for a socket."""
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield lambda name: _short(folder, folder_fd, name)
    finally:
        os.close(folder_fd)


def _short(folder: Path, folder_fd: int, name: str) -> str:
    path = str(folder / name)
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    if Path("/proc/self/fd").is_dir():
        return f"/proc/self/fd/{folder_fd}/{name}"
    raise LedgerError(
        f"the path {path} is too long for a socket on this system ({_LONGEST} bytes); "
        "choose a data folder with a shorter path"
    ) from OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

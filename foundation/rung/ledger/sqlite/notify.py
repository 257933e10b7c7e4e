"""Wakes the followers of other processes when something was appended, without polling.

A process that follows subscribes: it listens on a *wake-up socket*, a Unix socket in the ledger's
`doorbells` folder. Every process that appends keeps a connection to each of these and sends one
byte after each commit. No append is missed:

* a new wake-up socket is followed by a commit, whose mark (`PRAGMA data_version`) makes every
  other appender scan the folder inside its next transaction; earlier commits are found by the read
  that follows;
* an appender that is killed between its commit and its notification thereby closes the
  connection, and a closed connection counts as a notification;
* a full buffer means that an earlier notification was not read yet.

A socket without a listener belonged to a killed process; the next appender removes it.
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

FOLDER: Final = "doorbells"
_BACKLOG: Final = 128
_BINDING_SECONDS_MAX: Final = 60
_PATH_BYTES_MAX: Final = 100
"""Bytes that any Unix allows in a socket's path (Linux 108, others 104, each with a NUL)."""


class WakeUpSocket:
    """A follower's side: calls `woken` in the event loop whenever another process committed."""

    def __init__(self, folder: Path, woken: Callable[[], None]) -> None:
        self.name: Final = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._folder = folder
        self._woken = woken
        self._listener: socket.socket | None = None
        self._connections: dict[int, socket.socket] = {}

    def listen(self) -> None:
        """Begin to listen, unless it does; must run in the event loop."""
        if self._listener is not None:
            return
        listener = _socket()
        try:
            with _addresses(self._folder) as address:
                # Under its name only once it listens: appenders remove sockets without a listener.
                listener.bind(address("." + self.name))
                listener.listen(_BACKLOG)
            (self._folder / f".{self.name}").rename(self._folder / self.name)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening and remove the socket; must run in the event loop."""
        loop = asyncio.get_running_loop()
        (self._folder / self.name).unlink(missing_ok=True)
        for opened in [*self._connections.values(), *filter(None, [self._listener])]:
            loop.remove_reader(opened.fileno())
            opened.close()
        self._connections.clear()
        self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            connection.settimeout(0)
            number = connection.fileno()
            self._connections[number] = connection
            asyncio.get_running_loop().add_reader(number, self._receive, number)

    def _receive(self, number: int) -> None:
        connection = self._connections[number]
        try:
            received = connection.recv(4096)
        except BlockingIOError:
            return
        except ConnectionError:
            received = b""
        if not received:
            asyncio.get_running_loop().remove_reader(number)
            self._connections.pop(number).close()
        self._woken()


class Notifier:
    """An appender's side; used by its writer thread alone."""

    def __init__(self, folder: Path, own: str) -> None:
        self._folder = folder
        self._own = own
        self._connections: dict[str, socket.socket] = {}
        self.incomplete = False
        """Whether a socket did not accept the last time, so that another `connect` is due."""

    def connect(self) -> None:
        """Connect to the wake-up sockets that are there now; call before committing."""
        self.incomplete = False
        with os.scandir(self._folder) as entries:
            names = {entry.name for entry in entries if not entry.name.startswith(".")}
        names.discard(self._own)
        for name in [name for name in self._connections if name not in names]:
            self._connections.pop(name).close()
        for name in sorted(names.difference(self._connections)):
            self._connect(name)

    def notify(self) -> None:
        """Wake the followers of other processes, after a commit."""
        for name, connection in list(self._connections.items()):
            try:
                connection.send(b"!", socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue  # an earlier notification was not read yet
            except OSError:
                self._connections.pop(name).close()
                self.incomplete = True

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connect(self, name: str) -> None:
        connection = _socket()
        try:
            with _addresses(self._folder) as address:
                connection.connect(address(name))
        except (ConnectionRefusedError, FileNotFoundError):
            (self._folder / name).unlink(missing_ok=True)
            connection.close()
        except BlockingIOError:
            connection.close()  # its backlog is full
            self.incomplete = True
        else:
            self._connections[name] = connection


def remove_unfinished(folder: Path) -> None:
    """Remove sockets of processes that were killed before they listened."""
    for path in folder.glob(".*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime > _BINDING_SECONDS_MAX:
                path.unlink()


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(0)
    return made


@contextlib.contextmanager
def _addresses(folder: Path) -> Iterator[Callable[[str], str]]:
    """Yield a function from names in the folder to paths that are short enough for a socket."""
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield lambda name: _short(folder, folder_fd, name)
    finally:
        os.close(folder_fd)


def _short(folder: Path, folder_fd: int, name: str) -> str:
    path = str(folder / name)
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        return path
    if Path("/proc/self/fd").is_dir():
        return f"/proc/self/fd/{folder_fd}/{name}"
    raise LedgerError(
        f"the path {path} is too long for a socket on this system ({_PATH_BYTES_MAX} bytes); "
        "choose a data folder with a shorter path"
    ) from OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

"""The data folder of a one-machine installation: what lies where, and who may use it.

One `rung up` at a time holds the folder's lock. The lock belongs to the process, so it is free the
moment the process is gone, however it went.
"""

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

from rung.events import RungError

LAYOUT_VERSION: Final = 1
_WRITING_S: Final = 0.01
"""Who took the lock writes its number at once."""


class DataFolderError(RungError):
    """The data folder cannot be used; the message says what to do."""


class Server(NamedTuple):
    """How to reach the `rung up` of a data folder."""

    url: str
    token: str
    pid: int


def default_path() -> Path:
    """Return `RUNG_DATA`, or `~/.rung`."""
    return Path(os.environ.get("RUNG_DATA") or "~/.rung").expanduser()


def read_server(data: Path) -> Server:
    """Return how to reach the server of a data folder.

    Raises:
        DataFolderError: no `rung up` runs there.
    """
    try:
        facts = json.loads((data / "server.json").read_text())
        token = (data / "token").read_text().strip()
        return Server(facts["url"], token, facts["pid"])
    except (OSError, ValueError, KeyError) as error:
        raise DataFolderError(
            f"no Rung runs on {data}: start one with `rung up --data {data}`, "
            "or name a running one with --url and --token"
        ) from error


@contextlib.contextmanager
def made(path: Path) -> Iterator[None]:
    """Create a data folder if need be, for a body that writes into it.

    Raises:
        DataFolderError: it cannot be written.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DataFolderError(
            f"the data folder {path} cannot be used ({error.strerror}): make it writable, "
            "or choose another with --data"
        ) from error


def is_running(data: Path) -> bool:
    """Return whether some process holds the folder's lock."""
    return holder_of(data) is not None


def holder_of(data: Path) -> int | None:
    """Return the process that holds the folder's lock, None if none does.

    It holds it from its start on, long before it answers.
    """
    try:
        with (data / "lock").open("r+") as handle:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    handle.seek(0)
                    if (text := handle.read().strip()).isdigit():
                        return int(text)
                else:
                    return None
                time.sleep(_WRITING_S)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the folder's lock without running there: no `rung up` can start meanwhile.

    Raises:
        DataFolderError: the folder cannot be written, or another process holds the lock.
    """
    path = path.expanduser().absolute()
    with made(path):
        lock = _take_lock(path)
    with lock:
        _check_version(path)
        yield


class DataFolder:
    """An opened data folder, held by this process alone."""

    def __init__(self, path: Path, lock: IO[str], token: str) -> None:
        self.path = path
        self.token = token
        self._lock = lock

    @property
    def ledger(self) -> Path:
        """Folder of the SQLite ledger."""
        return self.path / "ledger"

    @property
    def objects(self) -> Path:
        """Folder of the object store."""
        return self.path / "objects"

    @property
    def series(self) -> Path:
        """Folder of chDB."""
        return self.path / "series"

    @property
    def agent(self) -> Path:
        """Folder of the agent."""
        return self.path / "agent"

    @property
    def log(self) -> Path:
        """Folder of the log files."""
        return self.path / "log"

    @classmethod
    def open(cls, path: Path) -> "DataFolder":
        """Create the folder if need be, check it, and take its lock.

        Raises:
            DataFolderError: it cannot be written, another `rung up` holds it, or a newer version
                wrote it.
        """
        path = path.expanduser().absolute()
        with made(path), contextlib.ExitStack() as undo:
            lock = undo.enter_context(_take_lock(path))
            _check_version(path)
            token = _token(path)
            (path / "log").mkdir(exist_ok=True)
            undo.pop_all()
        return cls(path, lock, token)

    def announce(self, url: str) -> None:
        """Write down how this server is reached, for the command line."""
        _write(self.path / "server.json", json.dumps({"url": url, "pid": os.getpid()}))

    def close(self) -> None:
        """Give the folder back."""
        (self.path / "server.json").unlink(missing_ok=True)
        self._lock.close()


def _take_lock(path: Path) -> IO[str]:
    handle = (path / "lock").open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        holder = handle.read().strip()
        handle.close()
        raise DataFolderError(
            f"another `rung up` or `rung ledger import` (process {holder or 'unknown'}) already "
            f"runs on {path}: use it, stop it with `rung down --data {path}`, or choose another "
            "folder with --data"
        ) from None
    handle.truncate(0)
    handle.write(f"{os.getpid()}\n")
    handle.flush()
    return handle


def _check_version(path: Path) -> None:
    file = path / "version"
    text = _read(file)
    if not text:
        _write(file, str(LAYOUT_VERSION))
        return
    if not text.isdigit():
        raise DataFolderError(
            f"{file} says {text!r}, which is no version: is {path} a data folder?"
        )
    if int(text) > LAYOUT_VERSION:
        raise DataFolderError(
            f"{path} was written by a newer Rung (layout {text}; this one knows "
            f"{LAYOUT_VERSION}): upgrade Rung, or choose another folder with --data"
        )


def _token(path: Path) -> str:
    token = _read(path / "token")
    if not token:
        token = secrets.token_urlsafe(32)
        _write(path / "token", token)
    return token


def _read(file: Path) -> str:
    """Return what a file says; nothing if it is not there, or is as a loss of power left it."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""


def _write(file: Path, text: str) -> None:
    """Write a line that is there whole or not at all, whatever happens to process and power."""
    new = file.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(f"{text}\n")
        handle.flush()
        os.fsync(descriptor)
    new.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

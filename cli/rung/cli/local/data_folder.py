"""The data folder of a one-machine installation: what lies where, and who may use it.

One `rung up` at a time holds the folder's lock. The lock belongs to the process, so it is free the
moment the process is gone, however it went. The folder and its contents are for its owner alone.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rung.client._data_folder import (
    SOCKET,
    DataFolderError,
    Server,
    check_owner,
    default_path,
    holder_of,
    is_running,
    is_stopped,
    read_server,
    read_token,
    short_path,
)

__all__ = [
    "DataFolder",
    "DataFolderError",
    "Server",
    "check_owner",
    "default_path",
    "holder_of",
    "is_running",
    "is_stopped",
    "made",
    "private",
    "read_server",
]

LAYOUT_VERSION: Final = 1
OTHERS: Final = 0o077
"""The permissions of group and others, which nothing in the folder grants."""
_LOCK_S_MAX: Final = 0.5
"""Clients that look whether the lock is held hold it for a moment themselves."""
_LOCK_RETRY_S: Final = 0.01
_SECRETS: Final = ("ledger", "log", "agent")
"""Folders whose files are made private one by one; others as whole folders."""


@contextlib.contextmanager
def made(path: Path) -> Iterator[None]:
    """Create a data folder if need be, for a body that writes into it.

    Raises:
        DataFolderError: it cannot be written, or belongs to another user.
    """
    check_owner(path)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DataFolderError(
            f"the data folder {path} cannot be used ({error.strerror}): make it writable, "
            "or choose another with --data"
        ) from error


@contextlib.contextmanager
def private() -> Iterator[int]:
    """Create files and folders for their owner alone in the body; yield the mask before."""
    before = os.umask(OTHERS)
    try:
        yield before
    finally:
        os.umask(before)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the folder's lock without running there: no `rung up` can start meanwhile.

    Raises:
        DataFolderError: the folder cannot be written, or another process holds the lock.
    """
    path = path.expanduser().absolute()
    with made(path), private():
        lock = _take_lock(path)
    with lock, private():
        _check_version(path)
        yield


class DataFolder:
    """An opened data folder, held by this process alone."""

    def __init__(
        self, path: Path, lock: contextlib.ExitStack, token: str, warnings: list[str]
    ) -> None:
        self.path = path
        self.token = token
        self.warnings = warnings
        """What was found and mended, for people; `rung up` and `rung status` show it."""
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
    def projections(self) -> Path:
        """The gateway's projections; rebuilt from the ledger where they are missing."""
        return self.path / "projections"

    @property
    def agent(self) -> Path:
        """Folder of the agent."""
        return self.path / "agent"

    @property
    def log(self) -> Path:
        """Folder of the log files."""
        return self.path / "log"

    @classmethod
    def open(cls, path: Path, *, keep_token: bool = False) -> "DataFolder":
        """Create the folder if need be, check it, make it private, and take its lock.

        Args:
            path: the folder.
            keep_token: whether the token of the last start stays valid; a new one is made if not.

        Raises:
            DataFolderError: it cannot be written, belongs to another user, another `rung up` holds
                it, a newer version wrote it, or the token to keep is damaged.
        """
        path = path.expanduser().absolute()
        with made(path), private(), contextlib.ExitStack() as undo:
            warnings = _make_private(path)
            lock = undo.enter_context(_take_lock(path))
            _check_version(path)
            (path / "server.json").unlink(missing_ok=True)  # of one that was killed
            token = _token(path, keep=keep_token)
            (path / "log").mkdir(exist_ok=True)
            undo.pop_all()
        return cls(path, lock, token, warnings)

    def listen(self) -> socket.socket:
        """Return a Unix socket that listens in the folder, where its owner alone can connect.

        Raises:
            DataFolderError: the folder cannot be written.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with made(self.path), private(), short_path(self.path) as short:
                (self.path / SOCKET).unlink(missing_ok=True)
                listener.bind(f"{short}/{SOCKET}")
                listener.listen()
        except BaseException:
            listener.close()
            raise
        return listener

    def announce(self, url: str, *, ready: bool, warnings: Sequence[str] = ()) -> None:
        """Write down how this server is reached, for the command line.

        Args:
            url: of the page and the API.
            ready: whether everything is up, not the gateway alone.
            warnings: what the start found and mended.

        Raises:
            DataFolderError: the folder cannot be written.
        """
        facts = {"url": url, "pid": os.getpid(), "ready": ready, "warnings": list(warnings)}
        with made(self.path):
            _write(self.path / "server.json", json.dumps(facts))

    def close(self) -> None:
        """Give the folder back."""
        for name in ("server.json", SOCKET):
            (self.path / name).unlink(missing_ok=True)
        self._lock.close()


def _make_private(path: Path) -> list[str]:
    """Take the folder and what lies in it from group and others; return what there is to say.

    What lies deeper is behind folders that are closed then.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    _close_to_others(path)
    for entry in path.iterdir():
        _close_to_others(entry)
        if entry.name in _SECRETS and entry.is_dir():
            for file in entry.iterdir():
                _close_to_others(file)
    if not mode & OTHERS:
        return []
    return [
        (
            f"the data folder {path} was open to other users (mode {mode:04o}) and is now for its"
            " owner alone (0700); think of what they may have read or changed before"
        )
    ]


def _close_to_others(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile, or a link to nowhere
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & OTHERS:
            path.chmod(mode & ~OTHERS)


def _take_lock(path: Path) -> contextlib.ExitStack:
    """Take the lock, which is that of the folder itself: no file of it has to stay for that."""
    with contextlib.ExitStack() as undo:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, folder)
        deadline = time.monotonic() + _LOCK_S_MAX
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_LOCK_RETRY_S)
                    continue
            raise DataFolderError(
                f"another `rung up` or `rung ledger import` (process {_holder(path)}) already "
                f"runs on {path}: use it, stop it with `rung down --data {path}`, or choose "
                "another folder with --data"
            ) from None
        (path / "lock").write_text(f"{os.getpid()}\n")
        return undo.pop_all()


def _holder(path: Path) -> str:
    """Return which process says that it holds the lock."""
    try:
        return (path / "lock").read_text(errors="replace").strip() or "unknown"
    except FileNotFoundError:
        return "unknown"


def _check_version(path: Path) -> None:
    file = path / "version"
    text = _read(file)
    if not text:
        _write(file, str(LAYOUT_VERSION))
        return
    if not (text.isascii() and text.isdigit()):
        raise DataFolderError(
            f'{file} says "{text}", which is no version: is {path} a data folder?'
        )
    if int(text) != LAYOUT_VERSION:
        raise DataFolderError(
            f"{path} was written by another Rung (layout {text}; this one knows "
            f"{LAYOUT_VERSION}): install that one, or choose another folder with --data"
        )


def _token(path: Path, *, keep: bool) -> str:
    token = ""
    if keep:
        with contextlib.suppress(FileNotFoundError):
            token = read_token(path / "token")
    if not token:
        token = secrets.token_urlsafe(32)
        _write(path / "token", token)
    return token


def _read(file: Path) -> str:
    """Return what a file says; nothing if it is not there, or is as a loss of power left it."""
    try:
        return file.read_bytes().strip().decode("ascii", "backslashreplace")[:100]
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

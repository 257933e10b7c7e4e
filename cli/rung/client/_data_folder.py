"""The data folder of a `rung up`, for clients: whether a server runs, and how to reach it.

The server listens on a Unix socket inside the folder, which only its owner can enter, so a client
that connects there reaches the owner's server or none. Files of a killed server are not used:
`server.json` counts only while the process that it names holds the folder's lock, and only in a
folder that belongs to the caller.
"""

import fcntl
import json
import os
import pwd
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from rung.events import RungError

SOCKET: Final = "server.sock"
"""Name of the server's Unix socket in the folder."""

_WRITING_S: Final = 0.01
"""A process that took the lock writes its number at once; this is how long to wait for it."""
_PID_BYTES_MAX: Final = 20
_CREDENTIALS: Final = struct.Struct("iII")
"""`struct ucred` of Linux: process, user, group."""


class DataFolderError(RungError):
    """The data folder cannot be used; the message says what to do."""


class Server(NamedTuple):
    """A running `rung up`."""

    url: str
    token: str
    pid: int
    ready: bool
    """Whether everything is up: the services, the series, and the agent."""
    warnings: list[str]
    """What its start found and repaired."""


def default_path() -> Path:
    """Return `RUNG_DATA`, or `~/.rung`."""
    return Path(os.environ.get("RUNG_DATA") or "~/.rung").expanduser()


def read_server(data: Path) -> Server:
    """Return the server that runs on a data folder.

    Raises:
        DataFolderError: none runs there, it is still starting, the folder belongs to another user,
            or its files are damaged.
    """
    check_owner(data)
    try:
        text = (data / "server.json").read_bytes()
    except OSError as error:
        raise _none_runs(data) from error
    holder = holder_of(data)
    if holder is None:
        raise _none_runs(data)
    try:
        facts = json.loads(text)
        server = Server(
            str(facts["url"]),
            read_token(data / "token"),
            int(facts["pid"]),
            bool(facts.get("ready", True)),
            [str(warning) for warning in facts.get("warnings", [])],
        )
    except FileNotFoundError as error:
        raise _restart(data, f"{data}/token is missing") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _restart(data, f"{data}/server.json is damaged") from error
    if server.pid != holder:
        raise _none_runs(data)
    return server


def read_token(file: Path) -> str:
    """Return the token in a file, empty if the file is.

    Raises:
        DataFolderError: its content is no token.
        FileNotFoundError: there is no such file.
    """
    text = file.read_bytes().strip()
    if not all(0x20 < byte < 0x7F for byte in text):
        raise DataFolderError(
            f"{file} is damaged: a token has visible ASCII characters only. Stop Rung with"
            f" `rung down --data {file.parent}`, remove the file, and start it again:"
            " `rung up` makes a new token"
        )
    return text.decode("ascii")


def check_owner(data: Path) -> None:
    """Check that a data folder, if it exists, belongs to this process's user.

    Raises:
        DataFolderError: it belongs to another.
    """
    try:
        owner = data.stat().st_uid
    except OSError:
        return
    if owner != os.geteuid():
        raise DataFolderError(
            f"the data folder {data} belongs to {_user(owner)}, and you are"
            f" {_user(os.geteuid())}: use it as that user, or choose another with --data"
        )


def check_peer(connection: socket.socket) -> None:
    """Check that the process at the other end of a Unix socket belongs to the caller's user.

    Raises:
        DataFolderError: it belongs to another user.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    if uid != os.geteuid():
        raise DataFolderError(
            f"process {pid}, which listens on the data folder's socket, belongs to {_user(uid)},"
            f" and you are {_user(os.geteuid())}: nothing was sent to it"
        )


@contextmanager
def short_path(data: Path) -> Iterator[str]:
    """Yield a short path of a folder, because a socket's address has 107 bytes at most."""
    descriptor = os.open(data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def is_running(data: Path) -> bool:
    """Return whether a process holds the folder's lock."""
    return holder_of(data) is not None


def holder_of(data: Path) -> int | None:
    """Return the process that holds the folder's lock, None if none does.

    A `rung up` holds it from its start on, long before it answers.
    """
    try:
        folder = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if (pid := _pid_in(data)) is not None:
                    return pid
            else:
                return None
            time.sleep(_WRITING_S)
    finally:
        os.close(folder)


def _pid_in(data: Path) -> int | None:
    """Return the process that a held folder names: in its lock file, or, if that is gone, else."""
    with suppress(FileNotFoundError):
        text = (data / "lock").read_bytes()[:_PID_BYTES_MAX].strip()
        return int(text) if text.isdigit() else None
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((data / "server.json").read_bytes())["pid"])
    return None


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP, Ctrl-Z)."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return line.rpartition(")")[2].split()[0] in {"T", "t"}


def _none_runs(data: Path) -> DataFolderError:
    return DataFolderError(
        f"no Rung runs on {data}: start one with `rung up --data {data}`, "
        "or name a running one with --url and --token (RUNG_URL, RUNG_TOKEN)"
    )


def _restart(data: Path, what: str) -> DataFolderError:
    return DataFolderError(
        f"{what}: stop Rung with `rung down --data {data}` and start it again: it is written then"
    )


def _user(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with the id {uid}"

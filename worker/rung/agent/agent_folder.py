"""The agent's folder: locked by one agent, and with the socket that trials connect to.

The socket lies in a folder that only its owner can enter. The address of a Unix socket has at most
107 bytes. Below a data folder that is too deep for that, the socket goes into a folder of its own
under the system's temporary folder.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from rung.events import RungError

_RETRY_S: Final = 0.05
_ADDRESS_BYTES_MAX: Final = 107
_SOCKET: Final = "agent.sock"


class AgentRefused(RungError):
    """The agent cannot work with its folder; the message says why."""


def lock_folder(folder: Path, within_s: float = 0.0) -> int:
    """Lock the folder for this process, for as long as the returned descriptor is open.

    Args:
        folder: the agent's.
        within_s: how long to wait for the lock of an agent that is about to end.

    Raises:
        AgentRefused: another agent has locked it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AgentRefused(f"the agent's folder {folder} cannot be used: {error}") from error
    until = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until:
                os.close(lock)
                raise AgentRefused(
                    f"another agent uses the folder {folder}; give each its own"
                ) from error
            time.sleep(_RETRY_S)
        else:
            return lock


class SocketFolder:
    """The folder of one socket."""

    def __init__(self, folder: Path) -> None:
        self._wanted = folder / "socket"
        self._folder = self._wanted

    @property
    def kept(self) -> bool:
        """Whether the folder exists that trials of an earlier session have mounted or opened."""
        with contextlib.suppress(FileNotFoundError):
            if self._deep:
                return Path(self._note.read_text(encoding="utf-8")).is_dir()
        return not self._deep and self._folder.is_dir()

    def open(self, *, keep: bool = False) -> Path:
        """Make the folder, empty, and return the path for the socket.

        Args:
            keep: keep the folder itself, because trials that go on have it mounted or opened.
        """
        if keep:
            if self._deep:
                self._folder = Path(self._note.read_text(encoding="utf-8"))
            (self._folder / _SOCKET).unlink(missing_ok=True)
        elif self._deep:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self._note.read_text(encoding="utf-8"), ignore_errors=True)
            self._folder = Path(tempfile.mkdtemp(prefix="rung-"))
            self._note.write_text(str(self._folder), encoding="utf-8")
        else:
            shutil.rmtree(self._wanted, ignore_errors=True)
            self._wanted.mkdir(mode=0o700, parents=True)
        return self._folder / _SOCKET

    @property
    def _deep(self) -> bool:
        """Whether the agent's folder is too deep for a socket in it."""
        return len(str(self._wanted / _SOCKET).encode()) > _ADDRESS_BYTES_MAX

    @property
    def _note(self) -> Path:
        """A file that names the folder, where it is not the agent's own."""
        return self._wanted.with_name("socket-folder")

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

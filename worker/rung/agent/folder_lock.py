"""An agent's folder is one agent's alone."""

import fcntl
import os
from pathlib import Path

from rung.events import RungError


class AgentRefused(RungError):
    """The agent cannot work with its folder; the message says why."""


def lock_folder(folder: Path) -> int:
    """Take the folder for this process, for as long as the returned descriptor is open.

    Raises:
        AgentRefused: another agent has it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AgentRefused(f"the agent's folder {folder} cannot be used: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise AgentRefused(f"another agent uses the folder {folder}; give each its own") from error
    return lock

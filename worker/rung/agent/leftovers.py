"""Finds and kills what runs left behind where the warm parent could not.

Everything below an agent carries the agent's folder in the environment that it was executed
with, so a new agent finds what survived an old one, whatever became of its parents. Within one
life, orphans of a dead warm parent become children of the agent, which is a subreaper.
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

MARKER: Final = "RUNG_AGENT_FOLDER"
_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.01


def kill_marked(folder: Path) -> int:
    """Kill all processes that carry the marker of this folder; return how many there were."""
    marker = f"{MARKER}={folder}\0".encode()
    killed: set[int] = set()
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        alive = [pid for pid in _processes() if _carries(pid, marker)]
        if not alive:
            break
        for pid in alive:
            _kill(pid)
        killed.update(alive)
        time.sleep(_PAUSE_S)
    return len(killed)


def kill_orphans(folder: Path, mains: frozenset[int]) -> None:
    """Kill and reap what fell to this process when its warm parent died.

    Args:
        folder: the agent's folder, as in the marker.
        mains: the main processes of runs; also whoever is in a session of theirs is meant.
    """
    marker = f"{MARKER}={folder}\0".encode()
    killed: set[int] = set()
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        orphans = [
            pid
            for pid in _children()
            if pid in killed or pid in mains or _session(pid) in mains or _carries(pid, marker)
        ]
        if not orphans:
            return
        for pid in orphans:
            killed.add(pid)
            _kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_PAUSE_S)


def _session(pid: int) -> int:
    """Return the session of a process, also of a zombie; 0 if there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[3])


def _children() -> list[int]:
    children: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            children.extend(map(int, (task / "children").read_text(encoding="ascii").split()))
        except OSError:
            continue
    return children


def _processes() -> list[int]:
    own = os.getpid()
    names = [entry.name for entry in Path("/proc").iterdir()]
    return [int(name) for name in names if name.isdecimal() and int(name) != own]


def _carries(pid: int, marker: bytes) -> bool:
    try:
        return marker in Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    except OSError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return

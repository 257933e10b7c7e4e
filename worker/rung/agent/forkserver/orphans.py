"""Orphans: processes of runs whose fork server is gone; they are found and killed.

Every descendant of an agent has the agent's folder in its initial environment, so a new agent
finds the processes that survived an old one, whatever became of their parents. Within one
session, orphans of a dead fork server become children of the agent, which is a subreaper.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from rung.agent.monitoring.process_tree import parent_of

MARKER: Final = "RUNG_AGENT_FOLDER"
_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.01


def kill_marked(folder: Path, spared: Collection[int] = ()) -> int:
    """Kill all processes that carry the marker of this folder; return how many there were.

    Args:
        folder: the agent's, as in the marker.
        spared: fork servers; neither they nor their descendants are killed.
    """
    marker = f"{MARKER}={folder}\0".encode()
    killed: set[int] = set()
    end = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < end:
        alive = [
            pid
            for pid in _processes()
            if _carries(pid, marker) and not (spared and _descends(pid, spared))
        ]
        if not alive:
            break
        for pid in alive:
            _kill(pid)
        killed.update(alive)
        time.sleep(_PAUSE_S)
    return len(killed)


def kill_orphans(folder: Path, mains: frozenset[int]) -> None:
    """Kill and reap the processes that were reparented to this one when its fork server died.

    Args:
        folder: the agent's folder, as in the marker.
        mains: the main processes of runs; processes of their sessions are killed as well.
    """
    marker = f"{MARKER}={folder}\0".encode()
    killed: set[int] = set()
    end = time.monotonic() + _TIMEOUT_S
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


def _descends(pid: int, ancestors: Collection[int]) -> bool:
    while pid > 1 and pid not in ancestors:
        pid = parent_of(pid)
    return pid in ancestors


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

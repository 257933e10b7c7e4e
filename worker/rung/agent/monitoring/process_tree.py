"""The processes of a run: its main processes and all their descendants.

Read from the kernel's lists of children, which costs in proportion to the run and not to the
machine.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_SHELLS: Final = frozenset({"ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"})


def tree(mains: Iterable[int]) -> list[int]:
    """Return the living processes, parents before their children."""
    found: dict[int, None] = {}
    waiting = list(mains)
    while waiting:
        pid = waiting.pop(0)
        if pid not in found and Path(f"/proc/{pid}").exists():
            found[pid] = None
            waiting.extend(_children(pid))
    return list(found)


def parent_of(pid: int) -> int:
    """Return the parent of a process, 0 if it is gone or has none here."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])


def receivers_of(pid: int, number: int) -> list[int]:
    """Return the processes to which a signal for a process is to be sent.

    A shell that does not catch the signal would die of it, and its commands would be killed
    without having received it: they get it in place of the shell. Where any of them catches it,
    these alone do, so that a script can print to a `tee` which would die of it.
    """
    if not _is_shell(pid) or _catches(pid, number):
        return [pid]
    found = [one for child in _children(pid) for one in receivers_of(child, number)]
    return [one for one in found if _catches(one, number)] or found or [pid]


def _is_shell(pid: int) -> bool:
    try:
        program = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    except OSError:
        return False
    return program.decode(errors="replace").rpartition("/")[2].removeprefix("-") in _SHELLS


def _catches(pid: int, number: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    _, _, caught = status.partition("SigCgt:")
    return bool(int(caught.split()[0], 16) >> (number - 1) & 1) if caught else False


def _children(pid: int) -> Iterator[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for task in tasks:
        try:
            text = (task / "children").read_text(encoding="ascii")
        except OSError:
            continue
        yield from map(int, text.split())

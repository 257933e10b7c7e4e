"""The processes of a run: its main processes and all their descendants.

Read from the kernel's lists of children, which costs in proportion to the run and not to the
machine.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path


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

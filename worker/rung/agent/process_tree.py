"""The processes of a run: its main processes and all that descend from them.

Read from the kernel's lists of children, which costs in proportion to the run and not to the
machine.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_NAME_CHARACTERS_MAX: Final = 120


class Process(NamedTuple):
    """One process, as its status says it."""

    pid: int
    name: str
    """Its command line, shortened."""
    state: str
    """What it does, in the kernel's words: `sleeping`, `disk sleep`, `running`, `stopped`."""
    waits_in: str
    """The kernel's function that it waits in, where that may be known."""
    caught: int
    """The signals that it has handlers for, as bits."""

    def catches(self, number: int) -> bool:
        """Return whether it has a handler for a signal."""
        return bool(self.caught >> (number - 1) & 1)


def tree(mains: Iterable[int]) -> list[int]:
    """Return the processes that live, parents before their children."""
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


def look_at(pid: int) -> Process | None:
    """Return what a process is and does, None if it is gone."""
    folder = Path(f"/proc/{pid}")
    try:
        status = (folder / "status").read_text(encoding="utf-8", errors="replace")
        words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    name = b" ".join(words).decode("utf-8", "replace") or fields["Name"].strip()
    state = fields["State"].strip().partition("(")[2].rstrip(")")
    caught = int(fields["SigCgt"].strip(), 16)
    return Process(pid, name[:_NAME_CHARACTERS_MAX], state, _waits_in(folder), caught)


def _waits_in(folder: Path) -> str:
    try:
        found = (folder / "wchan").read_text(encoding="ascii")
    except OSError:
        return ""
    return "" if found == "0" else found


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

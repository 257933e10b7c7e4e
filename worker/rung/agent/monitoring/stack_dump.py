"""Stack dump: every process of a run prints its stacks, one after the other, into the run's log.

A process without a handler for the signal would die of it; for those (shells, programs in other
languages, Python that never called `core.init()`) their state in the kernel is logged instead.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from rung.agent.monitoring.process_tree import tree
from rung.core.ipc.stack_dump_signal import SIGNAL

_WRITES_S: Final = 0.2
"""How long to wait for one process to print before the next: nothing signals that it has."""
_PROCESSES_MAX: Final = 64
_NAME_CHARACTERS_MAX: Final = 120


class Process(NamedTuple):
    """One process, from its `/proc/<pid>/status`."""

    pid: int
    name: str
    """Its command line, shortened."""
    state: str
    """Its state in the kernel: `sleeping`, `disk sleep`, `running`, `stopped`."""
    waits_in: str
    """The kernel function in which it waits, where that is readable."""
    caught: int
    """The signals for which it has handlers, as bits."""

    def catches(self, number: int) -> bool:
        """Return whether it has a handler for a signal."""
        return bool(self.caught >> (number - 1) & 1)


async def dump_stacks(mains: Iterable[int], note: Callable[[str], None]) -> None:
    """Have these processes and their descendants print their stacks.

    Args:
        mains: the run's main processes.
        note: writes a line of the platform into the run's log.
    """
    processes = tree(mains)
    for pid in processes[:_PROCESSES_MAX]:
        found = look_at(pid)
        if found is None:
            continue
        note(_described(found))
        if found.catches(SIGNAL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, SIGNAL)
            await _printed()
    if len(processes) > _PROCESSES_MAX:
        note(f"and {len(processes) - _PROCESSES_MAX} more processes")


async def _printed() -> None:
    """Wait as long as a process may take to print."""
    await asyncio.sleep(_WRITES_S)


def _described(process: Process) -> str:
    where = f" in {process.waits_in}" if process.waits_in else ""
    what = f"process {process.pid} ({process.name}), {process.state}{where}"
    if process.catches(SIGNAL):
        return f"{what}; its stacks:"
    return f"{what}; it has no handler that prints stacks"


def look_at(pid: int) -> Process | None:
    """Return the state of a process, None if it is gone."""
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

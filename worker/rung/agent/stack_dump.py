"""Has every process of a run print its stacks, one after the other, into the run's log.

A process that has no handler for the signal would die of it; of those (shells, programs in other
languages, Python that never called `core.init()`) the log says what they do in the kernel.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Final

from rung.agent.process_tree import Process, look_at, tree
from rung.core.stacks import SIGNAL

_WRITES_S: Final = 0.2
"""How long one process gets to print, before the next: nothing says when it has."""
_PROCESSES_MAX: Final = 64


async def dump_stacks(mains: Iterable[int], note: Callable[[str], None]) -> None:
    """Have the processes below these, and these, print their stacks.

    Args:
        mains: the run's main processes.
        note: writes a line of the platform's own into the run's log.
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
    return f"{what}; it shows no stacks"

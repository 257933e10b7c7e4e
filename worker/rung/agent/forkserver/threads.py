"""Threads: how many an operation uses in a process of a run.

A run gets the machine's cores divided by its slots, at least one, for each slot it holds; so the
number is the same whenever a run starts on this machine, and with it the order of floating-point
sums. `OMP_NUM_THREADS` among the experiment's environment variables has precedence.

The fork server itself computes with one thread: GNU OpenMP does not survive a fork of a process
in which it has started threads.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads",
)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def threads_of(*, held: int, slots: int, variables: Mapping[str, str]) -> int:
    """Return the threads for a run that holds `held` of an agent's `slots`."""
    asked = variables.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return max(1, cores() * max(1, held) // max(1, slots))


def set_threads(number: int) -> None:
    """Set the number of threads of torch, and of NumPy's OpenBLAS, in this process."""
    if number <= 1:
        return
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(number)
    if "numpy" in sys.modules:
        with contextlib.suppress(OSError):
            _set_openblas_threads(number)


def _set_openblas_threads(number: int) -> None:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "openblas" in line}
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        for name in _SETTERS:
            setter = getattr(library, name, None)
            if setter is not None:
                setter(number)
                break

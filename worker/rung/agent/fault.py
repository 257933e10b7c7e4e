"""Recognises why a run failed, and says it in one sentence with what to do about it.

Looked at are the last exception's words; then what was printed after them; and, where there was
no exception, the last lines of stderr. The first kind in the table below that matches is it.

A fault has a *kind*: a word that is the same each time the same thing goes wrong, so that the
searcher can tell a fault that repeats itself from bad luck. What may come from anywhere outside (a
signal that anybody can send) has none.
"""

import re
import signal
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rung.agent.wire import Exited


class Fault(NamedTuple):
    """Why a run failed."""

    kind: str
    """Empty where it cannot be told from bad luck."""
    sentence: str = ""
    """For a person; empty where nothing is known that its own words do not say."""


class _Sign(NamedTuple):
    kind: str
    pattern: re.Pattern[str]
    sentence: str


def _sign(kind: str, pattern: str, sentence: str) -> _Sign:
    return _Sign(kind, re.compile(pattern), sentence)


_HOST_MEMORY: Final = (
    "the machine ran out of memory: lower the batch size, load less data at once, or use fewer "
    "DataLoader workers"
)

SIGNS: Final = (
    _sign(
        "gpu_memory",
        r"(CUDA|HIP)( error:)? out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY"
        r"|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
        r"|OOM when allocating tensor.*/device:GPU|RESOURCE_EXHAUSTED(?!.*/device:CPU)",
        "the GPU ran out of memory: lower the batch size, accumulate gradients over smaller "
        "batches, or train in mixed precision",
    ),
    _sign(
        "shared_memory",
        r"(?i)out of shared memory|insufficient shared memory|unable to \w+ shared memory"
        r"|DataLoader worker .*Bus error|No space left on device.*/dev/shm",
        "shared memory (/dev/shm) is full: use fewer DataLoader workers, or give the agent's "
        "container more of it",
    ),
    _sign(
        "disk_full",
        r"No space left on device|StorageFull|Disk quota exceeded"
        r"|PytorchStreamWriter failed writing file|the disk is full|the disk quota is used up"
        r"|database or disk is full",
        "a disk is full: make room on the agent's disk, or write less to it",
    ),
    _sign(
        "disk_failed",
        r"Input/output error|Read-only file system|Stale file handle|disk I/O error"
        r"|Transport endpoint is not connected|the file system is read-only",
        "a disk fails, is read-only or is no longer mounted: see the log of the agent's kernel",
    ),
    _sign(
        "host_memory",
        r"\bMemoryError\b|Unable to allocate .+ for an array|Cannot allocate memory"
        r"|std::bad_alloc|DefaultCPUAllocator: |DataLoader worker .*killed by signal: Killed"
        r"|OOM when allocating tensor.*/device:CPU",
        _HOST_MEMORY,
    ),
    _sign(
        "nccl",
        r"\bNCCL\b.*\b(error|failure|timeout)\b|\bnccl\w+Error\b|DistBackendError"
        r"|Watchdog caught collective operation timeout",
        "the GPUs lost each other (NCCL): the rank that failed first says why in its log; if none "
        "does, check the network between the agents, and set NCCL_DEBUG=INFO",
    ),
    _sign(
        "gloo",
        r"(?i)\bgloo\b.*(connection|timed out|timeout|reset|refused|closed by peer)",
        "the ranks lost each other (gloo): the rank that failed first says why in its log; if "
        "none does, check the network between the agents",
    ),
    _sign(
        "gpu_assert",
        r"device-side assert triggered",
        "an index was out of range on the GPU, often a label beyond the number of classes: run it "
        "on the CPU, or with CUDA_LAUNCH_BLOCKING=1, to see where",
    ),
    _sign(
        "gpu_build",
        r"no kernel image is available|CUDA driver version is insufficient"
        r"|invalid device function",
        "the installed framework does not suit this GPU or its driver: install a build for it",
    ),
    _sign(
        "gpu_missing",
        r"No CUDA GPUs are available|no CUDA-capable device|busy or unavailable"
        r"|Found no NVIDIA driver|CUDA driver initialization failed",
        "the GPU cannot be used: another process may hold it, or its driver is not running; "
        "`nvidia-smi` on the agent's machine shows which",
    ),
    _sign(
        "gpu_fault",
        r"illegal memory access|uncorrectable ECC|fallen off the bus|misaligned address"
        r"|unspecified launch failure",
        "the GPU reported a fault: with CUDA_LAUNCH_BLOCKING=1 the traceback names the operation; "
        "if it happens on one machine only, its GPU may be broken",
    ),
    _sign(
        "gpu",
        r"CUDA error|CUDNN_STATUS_|CUBLAS_STATUS_|cudaError|CUDA_ERROR_",
        "CUDA refused an operation: with CUDA_LAUNCH_BLOCKING=1 the traceback names it",
    ),
    _sign(
        "missing_module",
        r"No module named '?(?P<name>[\w.]+)'?",
        "the module {name} is not there: put it into the code folder, or install it where the "
        "agent runs",
    ),
    _sign(
        "missing_library",
        r"(?P<name>\S+\.so[\w.]*): cannot open shared object file",
        "the library {name} is not installed where the agent runs",
    ),
    _sign(
        "open_files",
        r"Too many open files",
        "too many files are open: use fewer DataLoader workers, or raise the agent's limit "
        "(ulimit -n)",
    ),
)
"""In the order in which they are looked for."""

_EXCEPTION: Final = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")
_FROM_OUTSIDE: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)


def fault_of(exited: Exited, exception: str, lines: Sequence[str], *, starved: bool) -> Fault:
    """Return why a run failed.

    Args:
        exited: how its main process ended.
        exception: the last line of its last traceback, empty without one.
        lines: what it printed to stderr last.
        starved: whether the kernel has killed somebody for want of memory since it began.
    """
    if starved and exited.signal == signal.SIGKILL:
        return Fault("host_memory", _HOST_MEMORY)
    for text in _texts(exception, lines):
        for sign in SIGNS:
            if match := sign.pattern.search(text):
                return Fault(sign.kind, sign.sentence.format(**match.groupdict()))
    if exited.signal is not None:
        return Fault("" if exited.signal in _FROM_OUTSIDE else f"signal {exited.signal}")
    found = _EXCEPTION.match(exception)
    return Fault(found[1] if found else f"exit code {exited.code}")


def _texts(exception: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield what to look at, the most telling first."""
    if not exception:
        yield from reversed(lines)
        return
    yield exception
    before = len(lines)  # lines up to the exception; none where so many came after it
    while before and lines[before - 1] != exception:
        before -= 1
    yield from lines[before:]

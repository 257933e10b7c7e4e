"""Looking at processes and files from outside."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something outside of the ledger, of which nobody sends word."""

    def watch() -> None:
        while not condition():
            time.sleep(0.01)

    await asyncio.to_thread(watch)


def alive(pid: int) -> bool:
    """Tell whether a process is there and no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def exists(path: str) -> bool:
    """Tell whether a path is there."""
    return Path(path).exists()


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(status.rpartition(")")[2].split()[1])


def children_of(pid: int | None) -> list[int]:
    """Return the children of a process."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text(encoding="ascii").split()]


WHO = "(__import__('os').readlink('/proc/self/ns/pid') + ' ' + str(__import__('os').getpid()))"
"""Python that says, in a trial, which process it is; for `process_of`."""


def process_of(who: str) -> int | None:
    """Return the number out here of a process that said which one it is; None if it is gone."""
    namespace, _, number = who.partition(" ")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str((folder / "ns" / "pid").readlink()) != namespace:
                continue
            lines = (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        (numbers,) = [line.split() for line in lines if line.startswith("NSpid:")]
        if numbers[-1] == number and alive(int(folder.name)):
            return int(folder.name)
    return None

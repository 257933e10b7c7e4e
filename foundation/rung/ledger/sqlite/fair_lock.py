"""A lock between processes that is granted in the order of arrival, without polling.

SQLite's own lock is tried again and again with growing sleeps, so a process that commits without
pause can keep another one waiting for seconds. Here a writer locks the *queue* (`turn.lock`), then
the *file* (`pen.lock`), and then unlocks the queue: a writer that comes straight back waits for
the queue, behind the one that already waits for the file. Both are `flock`s, which the kernel
grants at once, and releases when their process is killed.

Commits and checkpoints all happen under this lock. That also keeps SQLite releases before 3.51.3
clear of their WAL-reset defect, which needs a checkpoint and a commit at the same moment.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self


class FairLock:
    """The right to write to one ledger; a context manager, used by one thread."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._queue = os.open(folder / "turn.lock", flags, 0o600)
        self._file = os.open(folder / "pen.lock", flags, 0o600)

    def __enter__(self) -> Self:
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        fcntl.flock(self._queue, fcntl.LOCK_UN)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock files, which releases the lock."""
        os.close(self._file)
        os.close(self._queue)

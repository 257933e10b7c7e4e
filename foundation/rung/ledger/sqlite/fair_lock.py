"""A lock between processes that is handed on in the order of arrival, without polling.

SQLite's own lock is asked for again and again with growing sleeps, so a process that commits
without pause can keep another one waiting for seconds. Here whoever wants to write first takes
the *turn*, then the *pen*, and then lets go of the turn: a writer that comes straight back
queues for the turn behind the one that already waits for the pen. Both are `flock`s, which the
kernel hands on at once and takes back from a process that is killed.

Commits and checkpoints all happen with the pen in hand. That also keeps SQLite releases before
3.51.3 clear of their WAL-reset defect, which needs a checkpoint and a commit at the same moment.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self


class Turnstile:
    """The right to write to one ledger; a context manager, used by one thread."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._turn = os.open(folder / "turn.lock", flags, 0o600)
        self._pen = os.open(folder / "pen.lock", flags, 0o600)

    def __enter__(self) -> Self:
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        fcntl.flock(self._pen, fcntl.LOCK_EX)
        fcntl.flock(self._turn, fcntl.LOCK_UN)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fcntl.flock(self._pen, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the lock files; what is held is given back."""
        os.close(self._pen)
        os.close(self._turn)

"""Partial download: a file of which some parts are there; the next download resumes with it.

Beside the bytes lies a journal: one line for each part that is there. A part is written down
once it is on disk, so that after a kill, or a power cut, nothing counts that was lost.
The lock on the file tells whether a process is at work on it.
"""

import fcntl
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

PART_BYTES: Final = 16 << 20


class PartialDownload:
    """One file, filled part by part, by threads of one process."""

    def __init__(self, path: Path, size: int, part_bytes: int = PART_BYTES) -> None:
        self.path = path
        self.size = size
        self.part_bytes = part_bytes
        self._journal = path.with_suffix(".parts")
        self._guard = threading.Lock()
        self._file = -1
        self._done: set[int] = set()

    def __enter__(self) -> Self:
        while not self._take():
            pass
        self._done = self._remembered()
        if not self._done:
            os.ftruncate(self._file, 0)
        return self

    def _take(self) -> bool:
        """Open and lock it; return whether it still has its name then."""
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PermissionError:  # a filler was killed while it gave it away
            self.discard()
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(self._file), self.path.stat()):
                return True
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(self._file)
            raise
        os.close(self._file)
        return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._file)
        self._file = -1

    def missing(self) -> list[int]:
        """Return where the parts begin that are not there yet."""
        return [at for at in range(0, self.size, self.part_bytes) if at not in self._done]

    def write(self, offset: int, data: bytes) -> None:
        """Write some bytes."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, offset)
            view, offset = view[written:], offset + written

    def done(self, within: int) -> None:
        """Note that the part that a position is in is there."""
        part = within // self.part_bytes * self.part_bytes
        if self.size > self.part_bytes:  # else there is no half of it to remember
            os.fdatasync(self._file)
            with self._guard, self._journal.open("a", encoding="ascii") as journal:
                journal.write(f"{part}\n")
        with self._guard:
            self._done.add(part)

    def whole(self) -> bool:
        """Whether all bytes are there."""
        return not self.missing() and os.fstat(self._file).st_size == self.size

    def stamp(self, mode: int, time_s: int) -> None:
        """Set its mode and the time of its last change."""
        os.fchmod(self._file, mode)
        os.utime(self._file, (time_s, time_s))

    def restart(self) -> None:
        """Forget what has come."""
        self.forget()
        self._done.clear()
        os.ftruncate(self._file, 0)

    def discard(self) -> None:
        """Forget it."""
        self.path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Forget its journal: the file has another name now."""
        self._journal.unlink(missing_ok=True)

    def _remembered(self) -> set[int]:
        try:
            text = self._journal.read_text(encoding="ascii")
        except FileNotFoundError:
            return set()
        lines = text.split("\n")[:-1]  # a line that broke off does not count
        return {int(line) for line in lines if line.isdecimal()}

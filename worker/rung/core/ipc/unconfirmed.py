"""Unconfirmed messages: numbered frames of a stream that the agent has not confirmed yet.

    connected       frames are kept in memory until the agent confirms them
    disconnected    they are written to a file in the run's folder, as are further ones; so the
                    next agent can read them even if this process has ended
    reconnected     frames that the agent lacks are sent again; the file is deleted once all of
                    them are confirmed

The file begins with a header line; each further line is a frame, numbered from `Head.first` on. If
the disk cannot be written, frames stay in memory.
"""

import contextlib
import itertools
import os
import threading
from collections import deque
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

PREFIX: Final = ".rung-unconfirmed-"
"""Prefix of the names of these files."""
BYTES_MAX: Final = 256 << 20
"""Limit of a file. A process that reports more without an agent waits for one."""
CHUNK: Final = 256 << 10
_FRAMES: Final = 1000
"""How many are written at once."""


class Head(Struct, frozen=True):
    """The first line of a file."""

    stream: str
    rank: int
    first: int
    """The number of the first frame."""


class Unconfirmed:
    """The frames of one stream.

    A training step must not wait for a disk, so only `write`, `tidy` and `read` access it. Calls
    of these and of `confirm` must not overlap; the lock passed to `write` guards the rest.
    """

    def __init__(
        self, folder: Path, stream: str, rank: int, *, bytes_max: int = BYTES_MAX
    ) -> None:
        self._path = folder / f"{PREFIX}{stream}"
        self._stream = stream
        self._rank = rank
        self._bytes_max = bytes_max
        self._memory: deque[bytes] = deque()
        self._memory_first = 1
        self._memory_bytes = 0
        self._file: int | None = None
        self._file_first = 1
        self._size = 0
        self._confirmed = 0
        self._to_file = False
        self._place = (0, 0)
        """The number of the last frame read from the file, and the offset of the next one."""

    @property
    def first(self) -> int:
        """The number of the first unconfirmed frame; of the next one if all are confirmed."""
        return self._confirmed + 1

    @property
    def last(self) -> int:
        """The number of the last frame that was added, 0 before the first."""
        return self._memory_first + len(self._memory) - 1

    @property
    def full(self) -> bool:
        """Whether the file, with the frames still in memory, reaches its limit."""
        return self._size + self._memory_bytes >= self._bytes_max

    def add(self, frame: bytes) -> None:
        """Add the next frame."""
        self._memory.append(frame)
        self._memory_bytes += len(frame)

    def confirm(self, number: int) -> None:
        """Forget the frames up to a number."""
        self._confirmed = max(self._confirmed, min(number, self.last))
        while self._memory and self._memory_first <= self._confirmed:
            self._pop()

    def store(self) -> None:
        """From now on, have all frames written to the file, including those in memory."""
        self._to_file = True

    @property
    def unwritten(self) -> bool:
        """Whether there is something to `write`."""
        return self._to_file and bool(self._memory)

    def write(self, lock: threading.Lock) -> None:
        """Write the frames in memory to the file, as far as the disk can be written.

        Args:
            lock: held for moments, but not during writes.
        """
        while True:
            with lock:
                if not self.unwritten:
                    return
                frames, first = list(itertools.islice(self._memory, _FRAMES)), self._memory_first
            # Frames behind those of the file may be confirmed, and so be missing between it and
            # memory; but a frame's line in the file is its number.
            self.tidy()
            try:
                if self._file is None:
                    self._open(first)
                assert self._file is not None
                # Either all of these lines are written, or none.
                self._size += _write_all(self._file, b"".join(frames), self._size)
            except OSError:
                return  # they stay in memory
            with lock:
                for _ in frames:
                    self._pop()

    def tidy(self) -> None:
        """Remove the file if all frames in it are confirmed."""
        if self._file is not None and self._confirmed >= self._memory_first - 1:
            self._remove()

    def keep_in_memory(self) -> None:
        """From now on, keep frames in memory: there is an agent."""
        self._to_file = False

    def read(self, after: int) -> tuple[bytes, int]:
        """Return frames after a number, and the number of the last of them.

        There are no more if that is the given number.
        """
        if after + 1 >= self._memory_first:
            return self._read_memory(after)
        chunk: list[bytes] = []
        size = 0
        assert self._file is not None
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            number, offset = self._place
            if after != number or offset == 0:
                number, offset = self._file_first - 1, len(file.readline())
            file.seek(offset)
            while size < CHUNK and number < self._memory_first - 1:
                frame = file.readline()
                number += 1
                offset += len(frame)
                if number > after:
                    chunk.append(frame)
                    size += len(frame)
        self._place = (number, offset)
        return b"".join(chunk), number

    def forget(self) -> None:
        """Close the file in a forked process; it belongs to the parent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read_memory(self, after: int) -> tuple[bytes, int]:
        chunk: list[bytes] = []
        size = 0
        for number, frame in enumerate(self._memory, self._memory_first):
            if number > after:
                chunk.append(frame)
                size += len(frame)
                after = number
            if size >= CHUNK:
                break
        return b"".join(chunk), after

    def _pop(self) -> None:
        self._memory_bytes -= len(self._memory.popleft())
        self._memory_first += 1

    def _open(self, first: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._path, flags, 0o600)
        self._file_first = first
        try:
            head = msgspec.json.encode(Head(self._stream, self._rank, first))
            self._size = _write_all(self._file, head + b"\n", 0)
        except OSError:
            self._remove()
            raise

    def _remove(self) -> None:
        assert self._file is not None
        os.close(self._file)
        self._file, self._size, self._place = None, 0, (0, 0)
        with contextlib.suppress(OSError):
            self._path.unlink()


def _write_all(file: int, data: bytes, offset: int) -> int:
    """Write at an offset; return the number of bytes.

    Raises:
        OSError: not all could be written; the file is truncated to the offset.
    """
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(file, data[written:], offset + written)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, offset)
        raise
    return written


def frames_in(data: bytes) -> tuple[Head, list[bytes]] | None:
    """Parse a file of unconfirmed messages; None if it is not valid.

    An incomplete last line, of a process that was killed, is ignored.
    """
    head, *frames = data.split(b"\n")
    try:
        found = msgspec.json.decode(head, type=Head)
    except msgspec.DecodeError:
        return None
    return found, frames[:-1]

"""Durable file: a new file that is digested while it is written, and synced at the end.

Large files bypass the page cache (`O_DIRECT`), with several writes at a time. So memory is not
filled with pages that are not read again, the disk never waits for the processor, and the final
`fsync` has nothing left to do.

Large pieces, such as the tensors of a snapshot, are written from where they lie if they are
aligned in memory and in the file. Others are copied into aligned buffers first. Small files, the
end of a file, and file systems that refuse `O_DIRECT` use the page cache.
"""

import contextlib
import mmap
import os
from collections import deque
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Final

from rung.storage.checkpoint.digest import CHUNK, chunks_of, hasher

ALIGNMENT: Final = 4096
"""Alignment in a file with which large pieces need not be copied."""
IN_PLACE_MIN: Final = 4 << 20
"""Fewer bytes at once are copied: waiting until they are written would take longer."""
_PIECE: Final = 1 << 20
"""Bytes that are copied and digested at a time: they stay in the processor's cache, and Python's
lock, held while they are copied, does not block other threads for long."""
_PENDING_MAX: Final = 3
"""How many writes are pending at a time: the disk always has the next one."""


class DurableFile:
    """A file being written; `durable_file` makes one."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o666)
        self._path = path
        self._direct: int | None = None
        self._in_place = True
        self._hasher = hasher()
        self._free: list[mmap.mmap] = []
        self._buffer: mmap.mmap | None = None
        self._filled = 0
        self._sent = 0
        self._writers: futures.ThreadPoolExecutor | None = None
        self._pending: deque[tuple[futures.Future[None], mmap.mmap | None]] = deque()
        self.size_bytes = 0
        """The number of bytes written to it."""

    @property
    def digest(self) -> str:
        """BLAKE3 of the bytes written to it."""
        return self._hasher.hexdigest()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write bytes, which may be changed once this returns; return their number."""
        view = memoryview(data).cast("B")
        self.size_bytes += len(view)
        left = view
        if self._in_place and len(view) >= IN_PLACE_MIN and self._filled % ALIGNMENT == 0:
            left = self._take_in_place(view)
        while left:
            buffer = self._current_buffer()
            count = min(len(left), CHUNK - self._filled, _PIECE)
            buffer[self._filled : self._filled + count] = left[:count]
            self._hasher.update(left[:count])
            self._filled += count
            left = left[count:]
            if self._filled == CHUNK:
                self._send_buffer()
        return len(view)

    def copy(self, source: Path) -> None:
        """Write the bytes of a file."""
        for chunk in chunks_of(source):
            self.write(chunk)

    def flush(self) -> None:
        """Do nothing: `finish` syncs the file."""

    def finish(self) -> None:
        """Return when all bytes are on the disk."""
        self._wait()
        if self._buffer is not None and self._filled:
            rest = self._filled % ALIGNMENT if self._sent else self._filled
            view = memoryview(self._buffer)[: self._filled]
            aligned = self._filled - rest
            self._write(view[:aligned], self._sent, in_place=False)
            self._write_cached(view[aligned:], self._sent + aligned)
        os.fsync(self._file)

    def close(self) -> None:
        """Close it, finished or not."""
        if self._writers is not None:
            self._writers.shutdown()
        if self._direct is not None:
            os.close(self._direct)
        os.close(self._file)

    def _take_in_place(self, view: memoryview) -> memoryview:
        """Write the aligned part of a view from where it lies; return the rest."""
        self._send_buffer()
        aligned = len(view) - len(view) % ALIGNMENT
        try:
            for start in range(0, aligned, CHUNK):
                piece = view[start : min(start + CHUNK, aligned)]
                self._send(piece, None)
                self._hasher.update(piece)
            self._wait()
        finally:  # the caller may change the view again
            futures.wait([writing for writing, _ in self._pending])
        return view[aligned:]

    def _current_buffer(self) -> mmap.mmap:
        if self._buffer is None:
            self._buffer = self._free.pop() if self._free else mmap.mmap(-1, CHUNK)
        return self._buffer

    def _send_buffer(self) -> None:
        """Submit the buffer, and go on with another one."""
        if self._buffer is not None and self._filled:
            buffer, self._buffer = self._buffer, None
            view, self._filled = memoryview(buffer)[: self._filled], 0
            self._send(view, buffer)

    def _send(self, view: memoryview, buffer: mmap.mmap | None) -> None:
        """Submit a view; wait before that if enough writes are pending."""
        if self._writers is None:
            self._open_direct()
            self._writers = futures.ThreadPoolExecutor(_PENDING_MAX, "writing")
        if len(self._pending) == _PENDING_MAX:
            self._wait_for_one()
        in_place = buffer is None
        writing = self._writers.submit(self._write, view, self._sent, in_place=in_place)
        self._pending.append((writing, buffer))
        self._sent += len(view)

    def _wait_for_one(self) -> None:
        writing, buffer = self._pending.popleft()
        writing.result()
        if buffer is not None:
            self._free.append(buffer)

    def _wait(self) -> None:
        while self._pending:
            self._wait_for_one()

    def _open_direct(self) -> None:
        with contextlib.suppress(OSError):  # not on this file system
            flags = os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0)
            self._direct = os.open(self._path, flags)

    def _write(self, view: memoryview, offset: int, *, in_place: bool) -> None:
        """Write an aligned part of the file, without the page cache where possible."""
        aligned = True
        while view and aligned and self._direct is not None:
            try:
                count = os.pwrite(self._direct, view, offset)
            except OSError:  # not aligned in memory, or a real fault, which is raised below
                self._in_place = self._in_place and not in_place
                break
            aligned = count % ALIGNMENT == 0
            offset, view = offset + count, view[count:]
        self._write_cached(view, offset)

    def _write_cached(self, view: memoryview, offset: int) -> None:
        while view:
            count = os.pwrite(self._file, view, offset)
            offset, view = offset + count, view[count:]


@contextlib.contextmanager
def durable_file(path: Path) -> Iterator[DurableFile]:
    """Yield a new file to write to; it is on the disk when the block ends.

    Raises:
        FileExistsError: there is such a file.
        OSError: it cannot be written.
    """
    file = DurableFile(path)
    try:
        yield file
        file.finish()
    finally:
        file.close()

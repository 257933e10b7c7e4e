"""A new file whose bytes are on the disk when it is finished, with their digest.

Large files go past the page cache (`O_DIRECT`): from two aligned buffers in turn, one being filled
and digested while a thread writes the other. So memory is not flooded with pages that nobody
reads again, and the final `fsync` finds nothing left to do. Where the file system refuses, and
for what is small or left over at the end, the page cache is used as ever.
"""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rung.objects.digest import CHUNK, chunks_of, hasher

_ALIGNMENT: Final = 4096
_PIECE: Final = 1 << 20
"""Bytes that are copied and digested at a time: they stay in the processor's cache meanwhile, and
copying them, for which Python's lock is held, keeps no other thread waiting for long."""
_DIRECT: Final = getattr(os, "O_DIRECT", 0)


class DurableFile:
    """A file being written; `durable_file` makes one."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._hasher = hasher()
        self._buffers: list[mmap.mmap] = []
        self._turn = 0
        self._filled = 0
        self._written = 0
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self.size_bytes = 0
        """How many bytes it was given."""

    @property
    def digest(self) -> str:
        """BLAKE3 of the bytes that it was given."""
        return self._hasher.hexdigest()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Take bytes, which may be changed once this returns; return how many."""
        view = memoryview(data).cast("B")
        left = view
        while left:
            buffer = self._buffer()
            count = min(len(left), CHUNK - self._filled, _PIECE)
            buffer[self._filled : self._filled + count] = left[:count]
            self._hasher.update(left[:count])
            self._filled += count
            left = left[count:]
            if self._filled == CHUNK:
                self._send()
        self.size_bytes += len(view)
        return len(view)

    def copy(self, source: Path) -> None:
        """Take the bytes of a file."""
        for chunk in chunks_of(source):
            self.write(chunk)

    def flush(self) -> None:
        """Do nothing: the bytes are on the disk when the file is finished."""

    def finish(self) -> None:
        """Return when all bytes are on the disk."""
        self._wait()
        if self._filled:
            rest = self._filled % _ALIGNMENT if self._written else self._filled
            view = memoryview(self._buffer())[: self._filled]
            self._write(view[: self._filled - rest], direct=True)
            self._write(view[self._filled - rest :], direct=False)
        os.fsync(self._file)

    def close(self) -> None:
        """Let go of it, finished or not."""
        if self._writer is not None:
            self._writer.shutdown()
        os.close(self._file)

    def _buffer(self) -> mmap.mmap:
        if self._turn == len(self._buffers):
            self._buffers.append(mmap.mmap(-1, CHUNK))
        return self._buffers[self._turn]

    def _send(self) -> None:
        """Have the full buffer written, and go on with the other one."""
        self._wait()
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "writing")
        self._writing = self._writer.submit(self._write, memoryview(self._buffer()), direct=True)
        self._turn, self._filled = 1 - self._turn, 0

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, view: memoryview, *, direct: bool) -> None:
        self._set_direct(on=direct)
        while view:
            try:
                count = os.pwrite(self._file, view, self._written)
            except OSError:
                if not self._is_direct():
                    raise
                self._set_direct(on=False)  # it takes the flag and not the bytes
                continue
            if count % _ALIGNMENT:
                self._set_direct(on=False)
            self._written += count
            view = view[count:]

    def _is_direct(self) -> bool:
        return bool(_DIRECT and fcntl.fcntl(self._file, fcntl.F_GETFL) & _DIRECT)

    def _set_direct(self, *, on: bool) -> None:
        if self._is_direct() != on:
            flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
            flags = flags | _DIRECT if on else flags & ~_DIRECT
            with contextlib.suppress(OSError):  # not on this file system
                fcntl.fcntl(self._file, fcntl.F_SETFL, flags)


@contextlib.contextmanager
def durable_file(path: Path) -> Iterator[DurableFile]:
    """Yield a new file to write to; it is on the disk when the block ends.

    Raises:
        FileExistsError: there is such a file.
        OSError: it cannot be written.
    """
    file = DurableFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        yield file
        file.finish()
    finally:
        file.close()

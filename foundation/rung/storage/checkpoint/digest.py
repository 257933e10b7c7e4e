"""Digests of the files of checkpoints: BLAKE3, an order of magnitude faster than SHA-256.

A thread reads a file ahead while the bytes before are digested, so that the time is that of the
disk. Files that no other process can truncate may be mapped instead (a truncated mapping kills its
readers): what is in the page cache is digested in place by several threads, and a thread reads the
rest.
"""

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from blake3 import blake3

CHUNK: Final = 8 << 20
"""Bytes of a chunk."""
_READ: Final = 2 << 20
"""Bytes read at once: few enough to be in the processor's cache when they are digested."""
_THREADS: Final = min(4, os.cpu_count() or 1)
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)


class Hasher(Protocol):
    """A hash function, as in `hashlib`."""

    def update(self, data: memoryview, /) -> object:
        """Take more bytes."""
        ...

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""
        ...


def hasher(*, threads: int = 1) -> Hasher:
    """Return a new BLAKE3 hasher, which may use several threads."""
    made: Hasher = blake3(max_threads=threads)
    return made


def digest_file(path: Path, *, mapped: bool = False) -> tuple[int, str]:
    """Return the size of a file and the digest of its bytes.

    Args:
        path: of the file.
        mapped: whether no other process can truncate the file.

    Raises:
        OSError: it cannot be read.
    """
    found, size = hasher(threads=_THREADS if mapped else 1), 0
    for chunk in _mapped(path) if mapped else chunks_of(path):
        found.update(chunk)
        size += len(chunk)
    return size, found.hexdigest()


def chunks_of(path: Path) -> Iterator[memoryview]:
    """Yield a file's bytes, reading ahead; each chunk is valid until the next.

    Raises:
        OSError: it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would block
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        if os.fstat(file).st_size <= _READ:
            yield from _in_turn(file)
        else:
            yield from _ahead(file)
    finally:
        os.close(file)


def _in_turn(file: int) -> Iterator[memoryview]:
    while data := os.read(file, CHUNK):
        yield memoryview(data)


def _ahead(file: int) -> Iterator[memoryview]:
    buffers = [mmap.mmap(-1, _READ), mmap.mmap(-1, _READ)]
    with ThreadPoolExecutor(1, "reading-ahead") as reader:
        offset, turn = 0, 0
        coming = reader.submit(os.preadv, file, [buffers[0]], 0)
        while count := coming.result():
            offset += count
            ready, turn = buffers[turn], 1 - turn
            coming = reader.submit(os.preadv, file, [buffers[turn]], offset)
            yield memoryview(ready)[:count]


def _mapped(path: Path) -> Iterator[memoryview]:
    """Yield a file's bytes in the page cache, filled by a thread.

    It fills it by plain reads, as the kernel reads far ahead of those.
    """
    with path.open("rb") as opened, contextlib.ExitStack() as stack:
        file, size = opened.fileno(), os.fstat(opened.fileno()).st_size
        if not size:
            return
        starts = range(0, size, CHUNK)
        whole = stack.enter_context(mmap.mmap(file, size, prot=mmap.PROT_READ))
        view = stack.enter_context(memoryview(whole))
        reader = ThreadPoolExecutor(1, "reading-ahead")
        stack.callback(reader.shutdown, cancel_futures=True)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        passing = mmap.mmap(-1, min(_READ, CHUNK))
        coming = [reader.submit(_load, file, start, passing) for start in starts]
        for start, ready in zip(starts, coming, strict=True):
            ready.result()
            with view[start : start + CHUNK] as chunk:
                yield chunk


def _load(file: int, start: int, passing: mmap.mmap) -> None:
    """Load a chunk of a file into the page cache."""
    if _is_cached(file, start) and _is_cached(file, start + CHUNK - 1):
        return
    for offset in range(start, start + CHUNK, _READ):
        os.preadv(file, [passing], offset)


def _is_cached(file: int, offset: int) -> bool:
    """Return whether a byte is in the page cache, or past the end."""
    try:
        os.preadv(file, [bytearray(1)], offset, _NOWAIT)
    except OSError:  # it is not, or the file system cannot tell
        return False
    return bool(_NOWAIT)

"""Digests of what checkpoints hold: BLAKE3, an order of magnitude faster than SHA-256.

A file is read ahead by a thread of its own while what was read before is digested, so that the
slower of the two, which is the disk, sets the pace. Checkpoints that were stored before Rung knew
BLAKE3 have SHA-256; both are checked.
"""

import hashlib
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from blake3 import blake3

from rung.events.errors import ObjectError

CHUNK: Final = 8 << 20
"""How many bytes travel at once."""


class Hasher(Protocol):
    """Takes bytes, gives their digest."""

    def update(self, data: memoryview, /) -> object:
        """Take more bytes."""
        ...

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""
        ...


def hasher(algorithm: str = "blake3") -> Hasher:
    """Return a new hasher.

    Raises:
        ObjectError: no such algorithm is known here.
    """
    if algorithm == "blake3":
        made: Hasher = blake3()
        return made
    if algorithm == "sha256":
        return hashlib.sha256()
    raise ObjectError(f"digests by {algorithm!r} are not known; a newer Rung wrote them")


def digest_file(path: Path, algorithm: str = "blake3") -> tuple[int, str]:
    """Return the size of a file and the digest of its bytes.

    Raises:
        OSError: it cannot be read.
    """
    found, size = hasher(algorithm), 0
    for chunk in chunks_of(path):
        found.update(chunk)
        size += len(chunk)
    return size, found.hexdigest()


def chunks_of(path: Path) -> Iterator[memoryview]:
    """Yield a file's bytes, the next ones being read meanwhile; each chunk until the next.

    Raises:
        OSError: it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        if os.fstat(file).st_size <= CHUNK:
            yield from _in_turn(file)
        else:
            yield from _ahead(file)
    finally:
        os.close(file)


def _in_turn(file: int) -> Iterator[memoryview]:
    while data := os.read(file, CHUNK):
        yield memoryview(data)


def _ahead(file: int) -> Iterator[memoryview]:
    buffers = [mmap.mmap(-1, CHUNK), mmap.mmap(-1, CHUNK)]
    with ThreadPoolExecutor(1, "reading-ahead") as reader:
        offset, turn = 0, 0
        coming = reader.submit(os.preadv, file, [buffers[0]], 0)
        while count := coming.result():
            offset += count
            ready, turn = buffers[turn], 1 - turn
            coming = reader.submit(os.preadv, file, [buffers[turn]], offset)
            yield memoryview(ready)[:count]

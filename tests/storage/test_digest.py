"""Digests: the same whatever the way, for files of any size."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from rung.storage.checkpoint import digest
from rung.storage.checkpoint.digest import CHUNK, digest_file

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17]


@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_read_to_its_end(tmp_path: Path, size: int) -> None:
    """Size and digest are those of all bytes, whichever way it is read."""
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert digest_file(tmp_path / "file") == (size, blake3(data).hexdigest())
    assert digest_file(tmp_path / "file", mapped=True) == (size, blake3(data).hexdigest())


@pytest.mark.parametrize("forgotten", [1, CHUNK, 2 * CHUNK + 5])
def test_a_mapped_file_is_brought_where_it_is_not_in_memory(
    tmp_path: Path, forgotten: int
) -> None:
    """Whatever part of it is not in the page cache: the digest is that of all bytes."""
    data = os.urandom(2 * CHUNK + 5)
    path = tmp_path / "file"
    path.write_bytes(data)
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, forgotten, os.POSIX_FADV_DONTNEED)
    os.close(file)
    assert digest_file(path, mapped=True) == (len(data), blake3(data).hexdigest())


def test_a_system_that_cannot_tell_what_is_in_memory_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the question is refused, the file is read ahead as if nothing of it were there."""
    real, asked = os.preadv, []

    def read(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            asked.append(offset)
            raise OSError(errno.EOPNOTSUPP, "cannot tell")
        return real(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", read)
    data = os.urandom(CHUNK + 5)
    (tmp_path / "file").write_bytes(data)
    found = digest_file(tmp_path / "file", mapped=True)
    assert asked
    assert found == (len(data), blake3(data).hexdigest())


def test_a_digest_that_is_given_up_reads_no_further(tmp_path: Path) -> None:
    """Whoever stops in the middle of a mapped file leaves no thread behind."""
    (tmp_path / "file").write_bytes(bytes(5 * CHUNK))
    before = threading.active_count()
    chunks = digest._mapped(tmp_path / "file")
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]  # a generator
    assert threading.active_count() == before

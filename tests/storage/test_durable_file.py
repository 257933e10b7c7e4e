"""Files that are on the disk when they are finished: any size, any pieces, any file system."""

import errno
import fcntl
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from rung.storage.checkpoint.digest import CHUNK
from rung.storage.durable_file import ALIGNMENT, IN_PLACE_MIN, DurableFile, durable_file

SIZES = [0, 1, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 4097, 5 * CHUNK]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece", [1_000_003, 2 * CHUNK])
def test_what_is_written_is_there(tmp_path: Path, size: int, piece: int) -> None:
    """Bytes, size and digest are those of what was given, in whatever pieces it came."""
    data = os.urandom(size)
    with durable_file(tmp_path / "file") as file:
        for start in range(0, size, piece):
            assert file.write(data[start : start + piece]) == len(data[start : start + piece])
    assert (tmp_path / "file").read_bytes() == data
    assert (file.size_bytes, file.digest) == (size, blake3(data).hexdigest())


def test_views_of_any_kind_are_bytes(tmp_path: Path) -> None:
    """A view of numbers is written as the bytes that it is."""
    numbers = memoryview(bytearray(range(64))).cast("I")
    with durable_file(tmp_path / "file") as file:
        assert file.write(numbers) == 64
    assert (tmp_path / "file").read_bytes() == bytes(range(64))


def test_what_was_written_may_be_changed_at_once(tmp_path: Path) -> None:
    """A buffer of the writer's is its own again when `write` returns."""
    buffer = bytearray(CHUNK)
    with durable_file(tmp_path / "file") as file:
        for number in range(4):
            buffer[:] = bytes([number]) * CHUNK
            file.write(buffer)
    expected = b"".join(bytes([number]) * CHUNK for number in range(4))
    assert (tmp_path / "file").read_bytes() == expected


@pytest.mark.parametrize("size", [IN_PLACE_MIN, CHUNK, 2 * CHUNK + 4097])
def test_large_pieces_are_written_from_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """What begins at a page in memory and at a boundary in the file is not copied."""
    real, direct = os.pwrite, []

    def write(file: int, data: Any, offset: int) -> int:
        if _is_direct(file):
            direct.append(len(data))
        return real(file, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(DurableFile, "_current_buffer", _only_for_odd_ends)
    pieces = [mmap.mmap(-1, size) for _ in range(3)]
    for piece in pieces:
        piece[:] = os.urandom(size)
    whole = [piece[: size - size % ALIGNMENT] for piece in pieces[:2]] + [pieces[2][:]]
    with durable_file(tmp_path / "file") as file:
        for piece in pieces[:2]:
            file.write(memoryview(piece)[: size - size % ALIGNMENT])
        file.write(memoryview(pieces[2]))
    data = b"".join(whole)
    assert (tmp_path / "file").read_bytes() == data
    assert (file.size_bytes, file.digest) == (len(data), blake3(data).hexdigest())
    assert sum(direct) == len(data) - size % ALIGNMENT


def _is_direct(file: int) -> bool:
    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT)


def _only_for_odd_ends(file: DurableFile) -> mmap.mmap:
    """Stand in for the buffer that most bytes must not see."""
    if file._buffer is None:
        file._buffer = mmap.mmap(-1, ALIGNMENT)
    return file._buffer


@pytest.mark.parametrize("odd", [1, 64, 512])
def test_pieces_that_lie_as_they_like_are_written_as_well(tmp_path: Path, odd: int) -> None:
    """Beside any boundary in memory, and after any piece before, every byte arrives."""
    memory = mmap.mmap(-1, 3 * CHUNK)
    memory[:] = os.urandom(3 * CHUNK)
    views = [memoryview(memory)[odd:], memoryview(memory)[: 2 * CHUNK], memoryview(memory)[:odd]]
    views += [memoryview(memory)]
    with durable_file(tmp_path / "file") as file:
        for view in views:
            file.write(view)
    data = b"".join(views)
    assert (tmp_path / "file").read_bytes() == data
    assert file.digest == blake3(data).hexdigest()


def test_a_file_system_without_direct_writes_does_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the flag is refused, bytes take the ordinary way."""
    real, refused = os.open, []

    def no_flag(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            refused.append(path)
            raise OSError(errno.EINVAL, "no such flag here")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", no_flag)
    data = os.urandom(2 * CHUNK + 5)
    with durable_file(tmp_path / "file") as file:
        file.write(data)
    assert refused
    assert (tmp_path / "file").read_bytes() == data


def test_a_file_system_that_takes_the_flag_and_not_the_bytes_does_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A direct write that is refused is made again in the ordinary way, and nothing is lost."""
    real, refused = os.pwrite, []

    def write(file: int, data: Any, offset: int) -> int:
        if _is_direct(file):
            refused.append(offset)
            raise OSError(errno.EINVAL, "not aligned as wanted")
        return real(file, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    data = os.urandom(2 * CHUNK + 5)
    with durable_file(tmp_path / "file") as file:
        file.write(data)
        file.write(data)
    assert refused
    assert (tmp_path / "file").read_bytes() == data + data


def test_short_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little the kernel takes at a time, all of it arrives."""
    real = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda file, data, offset: real(file, data[:700_001], offset)
    )
    data = os.urandom(2 * CHUNK + 5)
    with durable_file(tmp_path / "file") as file:
        file.write(data)
    assert (tmp_path / "file").read_bytes() == data


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the thread that writes reaches the one that gives the bytes."""

    def write(_file: int, _data: Any, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(OSError, match="full"), durable_file(tmp_path / "file") as file:
        file.write(bytes(3 * CHUNK))


def test_a_view_is_its_owners_again_when_a_write_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised when no thread looks at the bytes any more."""
    real, first, looking = os.pwrite, threading.Event(), []

    def write(file: int, data: Any, offset: int) -> int:
        if offset == 0:
            first.set()
            raise OSError(errno.ENOSPC, "full")
        looking.append(offset)
        first.wait()
        count = real(file, data, offset)
        looking.remove(offset)
        return count

    monkeypatch.setattr(os, "pwrite", write)
    memory = mmap.mmap(-1, 3 * CHUNK)
    with durable_file(tmp_path / "file") as file:
        with pytest.raises(OSError, match="full"):
            file.write(memoryview(memory))
        assert looking == []

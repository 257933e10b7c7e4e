"""Files that are on the disk when they are finished: any size, any pieces, any file system."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from rung.objects.digest import CHUNK
from rung.objects.durable import durable_file

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


def _no_flag(real: Callable[..., Any]) -> Callable[..., Any]:
    def control(file: int, command: int, argument: int = 0) -> Any:
        if command == fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no such flag here")
        return real(file, command, argument)

    return control


def test_a_file_system_without_direct_writes_does_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the flag is refused, bytes take the ordinary way."""
    monkeypatch.setattr(fcntl, "fcntl", _no_flag(fcntl.fcntl))
    data = os.urandom(2 * CHUNK + 5)
    with durable_file(tmp_path / "file") as file:
        file.write(data)
    assert (tmp_path / "file").read_bytes() == data


def test_a_file_system_that_takes_the_flag_and_not_the_bytes_does_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A direct write that is refused is made again in the ordinary way, and nothing is lost."""
    real, refused = os.pwrite, []

    def write(file: int, data: Any, offset: int) -> int:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(offset)
            raise OSError(errno.EINVAL, "not aligned as wanted")
        return real(file, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    data = os.urandom(2 * CHUNK + 5)
    with durable_file(tmp_path / "file") as file:
        file.write(data)
    assert refused
    assert (tmp_path / "file").read_bytes() == data


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

"""Health of file systems: what is trouble, and which words tell of it."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.events.errors import ObjectError
from rung.runtime.health.disk import Disk, reserve_of
from rung.storage import FolderStore
from rung.storage.disk_fault import FAULTS, tells_of_fault, words_of
from support.small_disk import fill, small_disk


@given(st.integers(0, 2**50), st.integers(0, 2**50))
def test_the_reserve_grows_with_the_disk_and_is_a_small_part_of_it(one: int, other: int) -> None:
    """No file system, however small or large, is full when it is empty."""
    small, large = sorted((one, other))

    assert 0 <= reserve_of(small) <= reserve_of(large) <= 256 * 1024**2
    assert reserve_of(large) <= large // 100


@pytest.mark.parametrize("number", sorted(FAULTS))
def test_every_error_of_a_disk_is_told_by_its_words(number: int) -> None:
    """As Python, the C library and other programs say it."""
    assert tells_of_fault(str(OSError(number, os.strerror(number), "/data/x")))
    assert tells_of_fault(f"cp: error writing 'x': {os.strerror(number)}")


@pytest.mark.parametrize(
    "number", [errno.ENOENT, errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.EFBIG, errno.EPIPE]
)
def test_errors_of_the_caller_are_not_the_disks(number: int) -> None:
    """A missing file, a right, or a limit is somebody's doing."""
    assert not tells_of_fault(str(OSError(number, os.strerror(number), "/data/x")))


@given(st.text(max_size=40))
def test_words_keep_what_an_error_says(text: str) -> None:
    """What an error says comes first; what it follows from is added where that tells of a disk."""
    error = ValueError(text)
    error.__cause__ = KeyError("x")
    error.__cause__.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert words_of(error).startswith(text)
    assert tells_of_fault(words_of(error))
    assert words_of(ValueError(text)) == text


async def test_a_disk_is_full_until_there_is_room() -> None:
    """It is found by its free space, before writing fails; what was probed leaves nothing."""
    with small_disk() as folder:
        disk = Disk([folder / "not made yet", folder])
        assert await disk.look() is None
        ballast = fill(folder)
        trouble = await disk.look() or ""
        assert "is full" in trouble
        assert str(folder) in trouble
        ballast.unlink()
        assert await disk.look() is None
        assert list(folder.iterdir()) == []
        disk.close()


def test_the_store_says_that_its_disk_is_full() -> None:
    """What a checkpoint fails with on a full disk is recognised."""
    with small_disk() as folder:
        store = FolderStore(folder)
        fill(folder)
        with pytest.raises(ObjectError) as caught:
            store.put_bytes("checkpoints/x", bytes(100_000))
        assert tells_of_fault(str(caught.value))


async def test_a_folder_that_vanished_is_trouble(tmp_path: Path) -> None:
    """One that was there and is not any more is not one that is not made yet."""
    folder = tmp_path / "agent"
    folder.mkdir()
    disk = Disk([folder])
    assert await disk.look() is None
    folder.rmdir()
    assert "cannot be used" in (await disk.look() or "")
    disk.close()

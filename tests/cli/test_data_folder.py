"""A data folder is usable again, whatever ended the process that made it."""

import contextlib
import errno
import os
from pathlib import Path

import pytest

from rung.cli.data_folder import LAYOUT_VERSION, DataFolder, DataFolderError


@pytest.mark.parametrize("name", ["version", "token"])
def test_a_file_that_a_loss_of_power_left_empty_is_written_anew(name: str, tmp_path: Path) -> None:
    """An empty file says nothing that could be lost; the token is never empty."""
    (tmp_path / name).touch()
    with contextlib.closing(DataFolder.open(tmp_path)) as folder:
        token = folder.token
    assert token
    assert (tmp_path / "token").read_text() == f"{token}\n"
    assert (tmp_path / "version").read_text() == f"{LAYOUT_VERSION}\n"
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    with contextlib.closing(DataFolder.open(tmp_path, keep_token=True)) as folder:
        assert folder.token == token


@pytest.mark.parametrize("name", ["version", "token"])
def test_what_is_not_durable_is_not_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file has its name before the disk has taken it."""
    if name == "token":
        (tmp_path / "version").write_text(f"{LAYOUT_VERSION}\n")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataFolderError, match=r"cannot be used \(No space left on device\)"):
        DataFolder.open(tmp_path)
    assert not (tmp_path / name).exists()

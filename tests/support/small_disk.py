"""A file system that is small enough to be filled by a test."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(megabytes: int = 2) -> Iterator[Path]:
    """Mount a file system of so many megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder]
        if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
            pytest.skip("this user may not mount a small disk: run it as `unshare -rm make …`")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> Path:
    """Fill a disk to its last byte; return the file to delete to make room again."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("ab") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    return ballast

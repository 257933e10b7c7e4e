"""Health of file systems: whether a process can write to its folders.

A folder fails when it or its mount is gone (the folder is on another device than before), when its
file system has hardly any space or inodes left, when a small file cannot be written to it, or when
it does not answer. A process waits until the file system has space again or is mounted again; a
failure is not the fault of a script that ran then.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ANSWERS_WITHIN_S: Final = 20.0
RESERVE_BYTES_MAX: Final = 256 * 1024**2
"""With less free space than this, a large file system is full."""
RESERVE_SHARE: Final = 0.01
"""With less free space than this share of it, a small file system is full."""
_INODES_MIN: Final = 64
_PROBE: Final = b"\0" * 4096


class Disk:
    """The file systems below some folders."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Take the folders that must be writable; they need not exist yet."""
        self._folders = [folder.absolute() for folder in folders]
        self._devices: dict[Path, int] = {}
        """The device of each folder when it was first checked."""
        self._threads = ThreadPoolExecutor(1, "disk")
        self._looking: asyncio.Future[str | None] | None = None

    async def look(self) -> str | None:
        """Return what is wrong with the first folder that fails; None if none does."""
        if self._looking is None or self._looking.done():
            loop = asyncio.get_running_loop()
            self._looking = loop.run_in_executor(self._threads, self.look_now)
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                return await asyncio.shield(self._looking)
        except TimeoutError:
            names = ", ".join(map(str, self._folders))
            return f"a file system does not answer within {ANSWERS_WITHIN_S:g} s: {names}"

    def look_now(self) -> str | None:
        """Do as `look`, but blocking."""
        for folder in self._folders:
            try:
                if trouble := self.trouble_of(folder):
                    return trouble
            except OSError as error:
                return f"{folder} cannot be used: {error.strerror or error}"
        return None

    def close(self) -> None:
        """End the thread, without waiting for one that hangs in the kernel."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def trouble_of(self, folder: Path) -> str | None:
        """Return what is wrong with one folder; blocks.

        Raises:
            OSError: it cannot be used.
        """
        known = self._devices.get(folder)
        if known is None and not folder.is_dir():
            return None  # not made yet
        device = folder.stat().st_dev
        if self._devices.setdefault(folder, device) != device:
            return f"the mount of {folder} is gone: the folder is on another device than before"
        usage = os.statvfs(folder)
        size, free = usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize
        if free < reserve_of(size):
            return f"the disk of {folder} is full: {_bytes(free)} of {_bytes(size)} are free"
        if usage.f_files and usage.f_favail < _INODES_MIN:
            return f"the disk of {folder} is full: it has {usage.f_favail} inodes left"
        _write_to(folder)
        return None


def reserve_of(size: int) -> int:
    """Return how many bytes of a file system of a size must be free."""
    return min(RESERVE_BYTES_MAX, int(size * RESERVE_SHARE))


def _write_to(folder: Path) -> None:
    path = folder / f".rung-probe-{secrets.token_hex(8)}"
    try:
        path.write_bytes(_PROBE)
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _bytes(count: int) -> str:
    size, units = float(count), ["KiB", "MiB", "GiB", "TiB"]
    while size >= 1024**2 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size / 1024:.1f} {units[0]}"

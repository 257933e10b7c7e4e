"""What the parts of a data folder take on the disk."""

import asyncio
import os
import shutil
import time
from pathlib import Path
from typing import Final

from rung.api import DiskUse
from rung.cli.local.data_folder import DataFolder
from rung.storage.area import AREAS

_FRESH_S: Final = 10.0
"""How long a measurement is taken for the present one: it looks at every file."""


class DiskMeter:
    """Measures the data folder, in a thread and not more often than every few seconds."""

    def __init__(self, folder: DataFolder) -> None:
        objects = folder.objects
        self._folder = folder.path
        self._parts: Final[dict[str, tuple[Path, ...]]] = {
            "checkpoints": (objects / "checkpoints", objects / AREAS),
            "code": (objects / "code", objects / "configs"),
            "metrics and logs": (folder.series,),
            "ledger": (folder.ledger,),
            "data cache": (folder.agent / "data",),
        }
        self._measuring = asyncio.Lock()
        self._at = -_FRESH_S
        self._found: DiskUse | None = None

    async def measure(self) -> DiskUse:
        """Return what is used, as of the last few seconds."""
        async with self._measuring:
            if self._found is None or time.monotonic() >= self._at + _FRESH_S:
                self._found = await asyncio.to_thread(self._measure)
                self._at = time.monotonic()
            return self._found

    def _measure(self) -> DiskUse:
        used = {name: sum(map(taken, paths)) for name, paths in self._parts.items()}
        used["other"] = max(taken(self._folder) - sum(used.values()), 0)
        disk = shutil.disk_usage(self._folder)
        return DiskUse(
            folder=str(self._folder),
            free_bytes=disk.free,
            total_bytes=disk.total,
            used_bytes=used,
        )


def taken(path: Path) -> int:
    """Return the bytes on the disk of a file, or of all in a folder, each file once."""
    total = 0
    seen: set[tuple[int, int]] = set()
    stack = [str(path)]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except OSError:  # removed meanwhile, or not for this user
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                    continue
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
            total += status.st_blocks * 512
    return total

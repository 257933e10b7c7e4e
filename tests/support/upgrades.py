"""Upgrades: releases of Rung that replace each other in place, as an installer does it."""

import shutil
import sys
from pathlib import Path
from typing import Final


class Upgrades:
    """Copies of Rung, of which processes that start get the newest."""

    def __init__(self, folder: Path) -> None:
        """Install the first release in a folder, which is made."""
        self._folder: Final = folder
        self._current: Final = folder / "current"
        self._number = 0
        folder.mkdir()
        self.upgrade()

    @property
    def environment(self) -> dict[str, str]:
        """What processes find it by."""
        return {"PYTHONPATH": str(self._current)}

    def upgrade(self) -> None:
        """Install another release in the place of the one before."""
        self._number += 1
        release, link = self._folder / f"release-{self._number}", self._folder / "link"
        for root in sys.modules["rung"].__path__:
            shutil.copytree(root, release / "rung", dirs_exist_ok=True)
        with (release / "rung/agent/__init__.py").open("a") as module:
            module.write(f"# release {self._number}\n")
        link.symlink_to(release)
        link.replace(self._current)
        shutil.rmtree(self._folder / f"release-{self._number - 1}", ignore_errors=True)

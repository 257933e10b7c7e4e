"""A trial's files for TensorBoard, stored in every checkpoint below `tensorboard/`.

`rung tensorboard` reads them from a trial's newest checkpoint and shows them beside the curves.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

PREFIX: Final = "tensorboard/"
"""The prefix of these files' names in a checkpoint."""
Selector = Callable[[Path], bool]
Mangler = Callable[[Path, int], Path]


class TensorboardFiles:
    """The folder in which a script writes them, and the selection that is stored."""

    def __init__(self, trial_id: str, *, managed: bool) -> None:
        """Use a hidden folder under Rung; in an unmanaged run one for `tensorboard --logdir`."""
        below = ".rung-tensorboard" if managed else f"rung-tensorboard/{trial_id}"
        self._folder: Final = Path.cwd() / below
        self._selected: Final = Path.cwd() / ".rung-tensorboard-selected"
        self._manual = False

    def path(self) -> Path:
        """Return the folder; it is created if need be."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def select(self, selector: Selector, mangler: Mangler, rank: int) -> None:
        """Select files to store; from the first call on, only selected files are stored."""
        self._manual = True
        for path in _files_of(self._folder):
            if selector(path):
                name = mangler(path.relative_to(self._folder), rank)
                target = self._selected / name
                if not target.resolve().is_relative_to(self._selected.resolve()):
                    raise ValueError(f"{name}: a file for TensorBoard must stay in its folder")
                _copy(path, target)

    def add_to(self, checkpoint: Path) -> None:
        """Copy the files into a checkpoint's folder, unless it has them already."""
        folder = self._selected if self._manual else self._folder
        for path in _files_of(folder):
            target = checkpoint / PREFIX / path.relative_to(folder)
            if not target.exists():
                _copy(path, target)

    def restore(self, files: Mapping[str, Path]) -> None:
        """Copy the files of a checkpoint into the folder, unless it has them already."""
        for name, path in files.items():
            target = self._folder / name.removeprefix(PREFIX)
            if name.startswith(PREFIX) and not target.exists():
                _copy(path, target)


def _files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)

"""A trial's TensorBoard folder, whose files are part of every checkpoint.

`rung tensorboard` reads them from a trial's newest checkpoint and shows them beside the curves. A
file that did not change since the previous checkpoint is not stored again.
"""

import contextlib
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from rung import core
from rung.storage.checkpoint.writer import Sink

PREFIX: Final = "tensorboard/"
"""The prefix of the files' names in a checkpoint."""
_CHUNK: Final = 1 << 20


class Board:
    """The folder, created at its first use."""

    def __init__(self, info: core.Info) -> None:
        """Use a hidden folder under Rung; in an unmanaged run one for `tensorboard --logdir`."""
        hidden = Path.cwd() / ".rung-tensorboard"
        by_hand = Path.cwd() / "rung-tensorboard" / info.trial.trial_id
        self._folder = hidden if info.managed else by_hand
        self._writer: Any = None

    def path(self) -> Path:
        """Return the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def writer(self) -> Any:
        """Return torch's SummaryWriter for the folder, always the same."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - seldom needed

            self._writer = SummaryWriter(str(self.path()))
        return self._writer

    def saves(self) -> dict[str, Callable[[Sink], object]]:
        """Return how to write the current files, at their current length."""
        if self._writer is not None:
            self._writer.flush()
        return {
            PREFIX + path.relative_to(self._folder).as_posix(): partial(_copy, path, size)
            for path, size in _files_of(self._folder)
        }

    def restore(self, files: Mapping[str, Path]) -> None:
        """Copy the files of a checkpoint into the folder, unless it has them already."""
        for name, path in files.items():
            target = self._folder / name.removeprefix(PREFIX)
            if name.startswith(PREFIX) and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)

    def close(self) -> None:
        """Close the writer, if there is one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _files_of(folder: Path) -> list[tuple[Path, int]]:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [(path, path.stat().st_size) for path in found]


def _copy(path: Path, size: int, sink: Sink) -> None:
    with (
        contextlib.suppress(FileNotFoundError),
        path.open("rb") as opened,
    ):  # its owner's to remove
        while size > 0 and (chunk := opened.read(min(size, _CHUNK))):
            sink.write(chunk)
            size -= len(chunk)

"""A trial's TensorBoard folder: what lies in it is in every checkpoint, and so outlives the run.

`rung tensorboard` brings it from a trial's newest checkpoint and shows it beside the curves. A
file that did not change since the checkpoint before is not stored again.
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
"""What the names of its files in a checkpoint begin with."""
_CHUNK: Final = 1 << 20


class Board:
    """The folder, made when somebody asks for it."""

    def __init__(self, info: core.Info) -> None:
        """Know where it is: hidden under Rung; by hand for `tensorboard --logdir`."""
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
        """Return how to write the files that are there by now, as long as they are now."""
        if self._writer is not None:
            self._writer.flush()
        return {
            PREFIX + path.relative_to(self._folder).as_posix(): partial(_copy, path, size)
            for path, size in _files_of(self._folder)
        }

    def bring_back(self, files: Mapping[str, Path]) -> None:
        """Put into the folder what a checkpoint has of it."""
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

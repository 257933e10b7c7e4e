"""The best files of Lightning's `ModelCheckpoint` callbacks, which survive in Rung's checkpoints.

Such a callback remembers the path of its best file. A run that resumes may have another folder,
or be on another machine, so that file is part of each checkpoint: one more of its size. It is put
where the callback of that run saves, and the callback finds it there.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lightning.pytorch.callbacks import ModelCheckpoint

FOLDER: Final = "best"
_PATHS: Final = ("best_model_path", "kth_best_model_path", "last_model_path")


def keep(trainer: Any, folder: Path) -> None:
    """Copy the best files into a checkpoint's folder."""
    for number, callback in _monitoring(trainer):
        best = Path(callback.best_model_path)
        if best.is_file():
            kept = folder / FOLDER / str(number)
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(best, kept / best.name)


def give_back(trainer: Any, states: dict[str, Any], folder: Path, *, writes: bool) -> None:
    """Put best files where callbacks save, and change the paths in their states.

    Args:
        trainer: that is about to load the states.
        states: of its callbacks, by their keys.
        folder: of the checkpoint.
        writes: whether this process puts the files there, of all on the machine.
    """
    for number, callback in _monitoring(trainer):
        state = states.get(callback.state_key)
        if not state or not isinstance(state.get("dirpath"), str | Path):
            continue
        before, now = str(state["dirpath"]), str(callback.dirpath)
        moved = {name: _moved(state[name], before, now) for name in _PATHS if state.get(name)}
        best = {
            _moved(path, before, now): score
            for path, score in (state.get("best_k_models") or {}).items()
        }
        kept = folder / FOLDER / str(number) / Path(state.get("best_model_path") or "").name
        if state.get("best_model_path") and kept.is_file():
            own = _relative(state["best_model_path"], before)
            there = str(Path(now, own)) if own is not None else str(Path(now, kept.name))
            if moved.get("kth_best_model_path") == moved["best_model_path"]:
                moved["kth_best_model_path"] = there
            best = {there if p == moved["best_model_path"] else p: s for p, s in best.items()}
            moved["best_model_path"] = there
            if writes:
                _put(kept, Path(there))
        states[callback.state_key] = state | moved | {"dirpath": callback.dirpath}
        if "best_k_models" in state:
            states[callback.state_key]["best_k_models"] = best


def _monitoring(trainer: Any) -> Iterator[tuple[int, Any]]:
    """Yield the callbacks that have a best file on this machine's disks, and their numbers."""
    for number, callback in enumerate(trainer.checkpoint_callbacks):
        local = "://" not in str(callback.dirpath)
        if isinstance(callback, ModelCheckpoint) and callback.monitor is not None and local:
            yield number, callback


def _moved(path: str, before: str, now: str) -> str:
    """Return a path below another folder, unless there is still a file where it was."""
    own = _relative(path, before)
    if own is None or Path(path).exists():
        return path
    return str(Path(now, own))


def _relative(path: str, folder: str) -> Path | None:
    """Return the path as it is below a folder; None: it is elsewhere."""
    full, above = Path(os.path.abspath(path)), Path(os.path.abspath(folder))  # noqa: PTH100 - links stay
    return full.relative_to(above) if full.is_relative_to(above) else None


def _put(kept: Path, there: Path) -> None:
    """Put a file where one of a moment later than the checkpoint may be."""
    there.parent.mkdir(parents=True, exist_ok=True)
    part = there.with_name(f".{there.name}.part")
    shutil.copyfile(kept, part)
    part.replace(there)

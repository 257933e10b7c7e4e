"""What `save_hyperparameters` puts into Lightning's checkpoint, as far as it can be stored.

A script's arguments often are a Namespace, paths or members of an enumeration, which no file of
tensors and plain values holds. Training does not read them from a checkpoint, so they are left
out, and the log names them.
"""

from collections.abc import Mapping
from typing import Any, Final

import structlog

from rung.torch.checkpoint.tensor_file import NotPlain, plain

_KEYS: Final = ("hyper_parameters", "datamodule_hyper_parameters")
_CLASSES: Final = ("hparams_type", "datamodule_hparams_type")
"""Classes of containers, which only a container of OmegaConf has."""

_log = structlog.get_logger("rung")
_told: Final[set[str]] = set()


def leave_out_objects(checkpoint: dict[str, Any]) -> None:
    """Take out of Lightning's checkpoint the hyperparameters that are no plain values."""
    for key in _KEYS:
        values = checkpoint.get(key)
        if isinstance(values, Mapping):
            kept = {name: value for name, value in values.items() if _is_plain(value)}
            _tell([name for name in values if name not in kept])
            checkpoint[key] = kept
    for key in _CLASSES:
        checkpoint.pop(key, None)


def _tell(names: list[str]) -> None:
    """Log once what is left out."""
    new = [name for name in names if name not in _told]
    if new:
        _told.update(new)
        given = ", ".join(f"{name}=…" for name in new)
        _log.warning(
            f"save_hyperparameters: {', '.join(new)} cannot be read again without running code, so"
            " checkpoints hold the other hyperparameters; training needs none of them, and"
            f" load_from_checkpoint(path, {given}) takes them"
        )


def _is_plain(value: Any) -> bool:
    try:
        plain(value, "")
    except NotPlain:
        return False
    return True

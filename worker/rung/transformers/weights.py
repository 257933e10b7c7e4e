"""The weights of a checkpoint, and its optimizer, loaded without the rest of it."""

from pathlib import Path
from typing import Any, Final

import structlog
import torch
from safetensors.torch import load_model
from transformers.trainer_utils import load_sharded_checkpoint
from transformers.utils import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from rung.training.errors import NotResumable

_SHARDED: Final = (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME)

_log = structlog.get_logger("rung")


def load_weights(model: Any, folder: Path) -> None:
    """Load what a trainer has saved of a model.

    Args:
        model: of the trainer.
        folder: of the checkpoint.

    Raises:
        NotResumable: it holds no weights.
    """
    adapters = sorted(each.parent for each in folder.rglob(ADAPTER_SAFE_WEIGHTS_NAME))
    if (folder / SAFE_WEIGHTS_NAME).exists():
        missing, unexpected = load_model(model, folder / SAFE_WEIGHTS_NAME, strict=False)
    elif (folder / WEIGHTS_NAME).exists():
        state = torch.load(folder / WEIGHTS_NAME, map_location="cpu", weights_only=True)
        missing, unexpected = model.load_state_dict(state, strict=False)
    elif any((folder / name).exists() for name in _SHARDED):
        missing, unexpected = load_sharded_checkpoint(model, str(folder), strict=False)
    elif adapters:
        for path in adapters:
            name = model.active_adapters[0] if path == folder else path.name
            trained = name == model.active_adapters[0]
            model.load_adapter(str(path), name, is_trainable=trained)
        return
    else:
        raise NotResumable(
            f"the checkpoint holds no weights of a {type(model).__name__}: none of "
            f"{SAFE_WEIGHTS_NAME}, {WEIGHTS_NAME}, {ADAPTER_SAFE_WEIGHTS_NAME} is there"
        )
    if missing or unexpected:
        _log.warning(
            "the checkpoint's weights are not those of the model; what is missing stays as it is",
            missing=sorted(missing),
            unexpected=sorted(unexpected),
        )


def load_optimizer(trainer: Any, folder: Path) -> None:
    """Load what a trainer has saved of its optimizer and its schedule, where it has them.

    Args:
        trainer: whose optimizer is made.
        folder: of the checkpoint.
    """
    for name, part in (("optimizer", trainer.optimizer), ("scheduler", trainer.lr_scheduler)):
        file = folder / f"{name}.pt"
        if part is not None and file.exists():
            part.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))

"""The weights of a checkpoint, and its optimizer, loaded without the rest of it.

Nothing is unpickled but tensors and plain values, so what else a state has is refused where it is
stored, not where it is read.
"""

import io
import pickle
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


def demand_storable(trainer: Any) -> None:
    """Check that checkpoints can contain the states of a trainer's model and optimizer.

    Args:
        trainer: before its first batch; its optimizer may have no state yet.

    Raises:
        NotResumable: a state has other values; the message says where.
    """
    adapted = hasattr(trainer.model, "peft_config")  # of such a model adapters alone are saved
    for name, value in () if adapted else trainer.model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise NotResumable(
                f"{name} of the model's state_dict() is a {type(value).__name__}: a trainer saves"
                " tensors alone; return a tensor from get_extra_state()"
            )
    optimizer, schedule = trainer.optimizer, trainer.lr_scheduler
    for name, part in (("optimizer", optimizer), ("scheduler", schedule)):
        if part is None or (part is optimizer and optimizer.state):
            continue  # which was read, and is looked at again where it is stored
        with io.BytesIO() as written:
            try:
                torch.save(part.state_dict(), written)
            except Exception as error:
                raise NotResumable(f"the state of the trainer's {name}: {error}") from error
            written.seek(0)
            _demand_read(written, name)


def demand_readable(folder: Path) -> None:
    """Check that what a trainer has saved of its optimizer and its schedule can be loaded.

    Raises:
        NotResumable: it cannot, without running code.
    """
    for file in (folder / "optimizer.pt", folder / "scheduler.pt"):
        if file.exists():
            _demand_read(file, file.stem, mmap=True)


def _demand_read(file: Any, name: str, **options: Any) -> None:
    try:
        torch.load(file, map_location="cpu", weights_only=True, **options)
    except pickle.UnpicklingError as error:
        raise NotResumable(
            f"the state_dict() of the trainer's {name} has more than tensors and plain values, so"
            " that no run could load it: keep numbers, text, lists and dicts there"
        ) from error


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

"""Sharded tensors: loads states of models and optimizers, whole or in parts."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch.optim import Optimizer

from rung.torch.determinism import Kept


class Piece:
    """A tensor of a sharded checkpoint that is not read yet.

    Attributes:
        name: of the tensor.
        shape: of the whole tensor.
        dtype: of the tensor.
    """

    def __init__(
        self, name: str, like: torch.Tensor, read: Callable[[str, torch.Tensor], None]
    ) -> None:
        self.name = name
        self.shape = like.shape
        self.dtype = like.dtype
        self._read = read

    def whole(self) -> torch.Tensor:
        """Return all of it, in main memory."""
        return self._filled(torch.empty(self.shape, dtype=self.dtype))

    def part(self, model: torch.Tensor) -> torch.Tensor:
        """Return the part of it that this rank holds of another sharded tensor of its shape."""
        return self._filled(torch.empty_like(model, dtype=self.dtype, requires_grad=False))

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        """Return itself: each read creates a new tensor."""
        return self

    def _filled(self, target: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self._read(self.name, target)
        return target


def placed(value: Any, model: Any) -> Any:
    """Return a state for modules of the same shape.

    Args:
        value: the state; tensors in it are whole, or pieces.
        model: the current state of the module. Tensors are sharded where this has sharded ones of
            the same shape, and whole otherwise.
    """
    if isinstance(value, Piece):
        return value.part(model) if _is_shard_of(model, value.shape) else value.whole()
    if isinstance(value, torch.Tensor):
        return _distributed(value, model) if _is_shard_of(model, value.shape) else value
    if isinstance(value, dict):
        of = model if isinstance(model, Mapping) else {}
        together = type(value)((key, placed(item, of.get(key))) for key, item in value.items())
        if isinstance(value, OrderedDict):
            vars(together).update(vars(value))  # a model's has its modules' versions there
        return together
    if isinstance(value, list | tuple):
        models: list[Any] = [*model] if isinstance(model, list | tuple) else []
        models += [None] * len(value)
        return type(value)(placed(*both) for both in zip(value, models, strict=False))
    return value


def load(owner: Kept, state: Any) -> None:
    """Set the state of a model, or of something else that is kept."""
    owner.load_state_dict(placed(state, owner.state_dict()))


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Set an optimizer's state, which is sharded as its parameters are."""
    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    models = {
        number: dict.fromkeys(found, parameters.get(number))
        for number, found in state["state"].items()
    }
    optimizer.load_state_dict(placed(dict(state), {"state": models}))


def is_shard(value: torch.Tensor) -> bool:
    """Return whether a tensor is a part of one that several ranks hold."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _is_shard_of(model: Any, shape: torch.Size) -> bool:
    return isinstance(model, torch.Tensor) and is_shard(model) and model.shape == shape


def _distributed(value: torch.Tensor, model: Any) -> torch.Tensor:
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - seldom needed

    return distribute_tensor(value.to(model.device), model.device_mesh, model.placements)

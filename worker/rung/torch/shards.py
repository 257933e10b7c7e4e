"""Parts of tensors as whole ones, and back: what lies in a checkpoint knows nothing of ranks."""

import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from rung.torch.exactness import Kept


def whole(value: Any, *, kept: bool = True) -> Any:
    """Return a state with every sharded tensor brought together; all ranks must call this.

    One after the other, each in main memory at once, so that no device has to hold more than one
    of them whole.

    Args:
        value: the state.
        kept: whether this rank wants them; others have None in their places.
    """
    if isinstance(value, torch.Tensor):
        if not _is_shard(value):
            return value
        together: Any = value
        brought = together.full_tensor()
        return brought.cpu() if kept else None
    if isinstance(value, dict):
        together = type(value)((key, whole(item, kept=kept)) for key, item in value.items())
        if isinstance(value, OrderedDict):
            vars(together).update(vars(value))  # a model's has its modules' versions there
        return together
    if isinstance(value, list | tuple):
        return type(value)(whole(item, kept=kept) for item in value)
    return value


def like(value: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor sharded as another of its shape is; as it is where that is not."""
    if not _is_shard(model) or value.shape != model.shape:
        return value
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - seldom needed

    placed: Any = model
    on_device = value.to(model.device)
    return distribute_tensor(on_device, placed.device_mesh, placed.placements)


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Set a model's state from a whole one."""
    if not any(_is_shard(parameter) for parameter in model.parameters()):
        model.load_state_dict(state)
        return
    own = model.state_dict()
    model.load_state_dict(
        {
            name: like(value, own[name])
            if name in own and isinstance(value, torch.Tensor)
            else value
            for name, value in state.items()
        }
    )


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Set an optimizer's state from a whole one."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(_is_shard(parameter) for parameter in parameters):
        optimizer.load_state_dict(dict(state))
        return
    kept = {
        number: {
            name: like(item, parameters[number]) if isinstance(item, torch.Tensor) else item
            for name, item in found.items()
        }
        for number, found in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": kept})


def load_kept(kept: Kept, state: Any) -> None:
    """Set the state of something that the context keeps from a whole one."""
    if isinstance(kept, nn.Module):
        load_model(kept, state)
    else:
        kept.load_state_dict(state)


def _is_shard(value: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)

"""Gradients that add up under manual optimization, where only the module knows when it steps."""

from collections.abc import Mapping
from typing import Any, Final

import torch

KEY: Final = "rung_gradients"
"""Where they lie in Lightning's checkpoint."""


def added_up(module: Any) -> dict[str, torch.Tensor]:
    """Return what the next step of a module may take up, by the names of its parameters.

    Nothing, where Lightning steps: there a checkpoint waits for the step.
    """
    if module.automatic_optimization:
        return {}
    parameters = module.named_parameters()
    return {name: each.grad for name, each in parameters if each.grad is not None}


def give_back(module: Any, kept: Mapping[str, torch.Tensor]) -> None:
    """Set what `added_up` returned."""
    for name, parameter in module.named_parameters():
        if name in kept:
            parameter.grad = kept[name].to(parameter.device)

"""Gradients that are added up in one order in every run of a trial.

torch's DistributedDataParallel puts gradients together into buckets, and lays these out anew after
its first step, in the order in which the gradients came. Where a gradient lies in its bucket says
which rank's part is added first. So a run that goes on from a checkpoint would take its first step
in another layout than the run before it took the same step: of three ranks and more the sums
differ in their last bits. Here buckets have their last layout before the first step.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def settle(replica: DistributedDataParallel) -> None:
    """Have the buckets of a model laid out as they stay: in the reverse order of its parameters.

    All ranks must call this, before the first step. Gradients that are there are left alone.
    Nothing is done with `find_unused_parameters`, where torch never lays out anew, and with
    `static_graph`, where no step may be unlike the others.
    """
    if replica.find_unused_parameters or replica.static_graph:
        return
    model = replica.module
    ignored = set(replica.parameters_to_ignore)
    sparse = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }
    parameters = [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]
    nothing = [
        torch.zeros_like(parameter, layout=torch.sparse_coo if id(parameter) in sparse else None)
        for parameter in parameters
    ]
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    replica.module = _Parameters(model, parameters)
    try:
        with torch.enable_grad():
            torch.autograd.backward(replica(), nothing)
    finally:
        replica.module = model
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


class _Parameters(nn.Module):
    """Computes nothing but a model's parameters, the last of which has its gradient first."""

    def __init__(self, model: nn.Module, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self._each = parameters
        self.named_buffers = model.named_buffers  # type: ignore[method-assign]  # are broadcast

    def forward(self) -> list[torch.Tensor]:
        """Return the parameters."""
        return [_Same.apply(parameter) for parameter in self._each]


class _Same(torch.autograd.Function):
    """A tensor as it is, whose gradient may be sparse."""

    @staticmethod
    def forward(_context: Any, parameter: torch.Tensor) -> torch.Tensor:
        """Return the same values."""
        return parameter.view_as(parameter)

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the same gradient."""
        return gradient

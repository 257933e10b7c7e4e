"""DDP buckets: gradients are summed in the same order in every run of a trial.

torch's DistributedDataParallel collects gradients into buckets, and rebuilds these after its first
step, in the order in which gradients became ready. The position of a gradient in its bucket
determines the order of the sum over ranks. So the first step of a resumed run would use another
layout than the same step of the run before: with three or more ranks the sums differ in their last
bits. Here the buckets get their final layout before the first step.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def settle(replica: DistributedDataParallel) -> None:
    """Have the buckets of a model rebuilt in their final layout: the reverse parameter order.

    All ranks must call this, before the first step. Existing gradients are not changed. Does
    nothing with `find_unused_parameters`, where torch never rebuilds buckets, and with
    `static_graph`, where all steps must be alike.
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
    """Returns a model's parameters, so that the last one has its gradient first."""

    def __init__(self, model: nn.Module, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self._each = parameters
        self.named_buffers = model.named_buffers  # type: ignore[method-assign]  # are broadcast

    def forward(self) -> list[torch.Tensor]:
        """Return the parameters."""
        return [_Same.apply(parameter) for parameter in self._each]


class _Same(torch.autograd.Function):
    """The identity function, for gradients that may be sparse."""

    @staticmethod
    def forward(_context: Any, parameter: torch.Tensor) -> torch.Tensor:
        """Return the same values."""
        return parameter.view_as(parameter)

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the same gradient."""
        return gradient

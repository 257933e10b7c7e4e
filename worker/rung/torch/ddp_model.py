"""DDP model: a replica of the model on each rank, transparent for the script.

It is torch's DistributedDataParallel with four differences: attributes and states are the model's
own, so that scripts that access their model run unchanged; it communicates only where gradients
are computed for training, so that ranks can evaluate different numbers of batches; parameters may
be frozen and unfrozen during training, on all ranks at the same step; and a deep copy of it is a
copy of the model, as needed for an average of the weights.

The modes of modules (`train`, `eval`) do not matter: a model that is fine-tuned in evaluation mode
computes gradients, too. In a validation, gradients may be enabled (`torch.enable_grad`) for what
is a derivative by itself, such as a force; these are of one rank.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rung.torch.ddp_buckets import settle


class Replica(DistributedDataParallel):
    """A model whose gradients are averaged over the ranks."""

    rung_validates = False
    """Whether a validation is under way, whose gradients are not averaged."""
    rung_calls = 0
    """How many calls of it have averaged gradients, or will when these are computed."""

    def __init__(self, module: nn.Module, *, find_unused_parameters: bool = False) -> None:
        """Wrap a model; all ranks must do so.

        Args:
            module: the model, at least one of whose parameters is trained.
            find_unused_parameters: whether a step may leave parameters out.
        """
        super().__init__(module, find_unused_parameters=find_unused_parameters)
        self._trained: set[int] | None = None
        settle(self)
        self._trained = _trained(module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.module, memo)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Compute; communicates with the other ranks where gradients are computed."""
        if self.rung_validates or not torch.is_grad_enabled():
            return self.module(*inputs, **named)
        if not self._follow():
            return self.module(*inputs, **named)
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]  # torch's own

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no types for it
    def _follow(self) -> bool:
        """Average the gradients of what is trained now; return whether that is anything."""
        if self._trained is None:  # buckets are being laid out
            return True
        trained = _trained(self.module)
        if trained and trained != self._trained:
            mode = self.training
            self.__init__(  # type: ignore[misc]  # torch has no other way
                self.module, find_unused_parameters=self.find_unused_parameters
            )
            self.training = mode
        self.rung_calls += bool(trained)
        return bool(trained)

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Return the model's own state, without a prefix."""
        return self.module.state_dict(*arguments, **named)

    def load_state_dict(self, state_dict: Mapping[str, Any], *arguments: Any, **named: Any) -> Any:
        """Set the model's own state."""
        return self.module.load_state_dict(state_dict, *arguments, **named)


def _trained(model: nn.Module) -> set[int]:
    """Return the ids of the parameters of a model that are trained."""
    return {id(parameter) for parameter in model.parameters() if parameter.requires_grad}

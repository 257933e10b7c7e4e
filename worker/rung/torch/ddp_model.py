"""DDP model: a replica of the model on each rank, transparent for the script.

It is torch's DistributedDataParallel with three differences: attributes and states are the model's
own, so that scripts that access their model run unchanged; in evaluation mode it does not
communicate, so that ranks can evaluate different numbers of batches; and a deep copy of it is a
copy of the model, as needed for an average of the weights.
"""

import copy
from collections.abc import Mapping
from typing import Any

from torch.nn.parallel import DistributedDataParallel


class Replica(DistributedDataParallel):
    """A model whose gradients are averaged over the ranks."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.module, memo)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Compute; communicates with the other ranks only in training mode."""
        if not self.module.training:
            return self.module(*inputs, **named)
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]  # torch's own

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Return the model's own state, without a prefix."""
        return self.module.state_dict(*arguments, **named)

    def load_state_dict(self, state_dict: Mapping[str, Any], *arguments: Any, **named: Any) -> Any:
        """Set the model's own state."""
        return self.module.load_state_dict(state_dict, *arguments, **named)

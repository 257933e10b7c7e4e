"""Stands for a GPU on machines that have none."""

from typing import Any

import torch


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU, until it is brought to the CPU."""

    is_cuda = True

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        """Return what is no longer on a GPU."""
        return self.as_subclass(torch.Tensor)


def on_gpu(value: float) -> torch.Tensor:
    """Return a tensor of one number."""
    return torch.tensor([value]).as_subclass(OnGpu)


class Gpus:
    """The generators of a machine's GPUs, as `torch.cuda` has them."""

    def __init__(self, *states: int) -> None:
        self.states = [torch.tensor([state], dtype=torch.uint8) for state in states]
        self.current = 0

    @property
    def numbers(self) -> list[int]:
        """What each of them is at."""
        return [int(state) for state in self.states]

    def is_initialized(self) -> bool:
        """Return whether one was used."""
        return True

    def is_available(self) -> bool:
        """Return whether there are any."""
        return bool(self.states)

    def device_count(self) -> int:
        """Return how many there are."""
        return len(self.states)

    def get_rng_state(self) -> torch.Tensor:
        """Return that of the current one."""
        return self.states[self.current]

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Return those of all."""
        return list(self.states)

    def set_rng_state(self, state: torch.Tensor, device: int | None = None) -> None:
        """Set that of one, or of the current one."""
        self.states[self.current if device is None else device] = state

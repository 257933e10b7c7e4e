"""What callbacks of several frameworks do in each hook, by draws and states of their own."""

import collections
import itertools
import random
from typing import Any

import numpy as np
import torch


class Factor:
    """An object of a callback's: a number that grows."""

    def __init__(self) -> None:
        self.value = 1.0


class Wildness:
    """Changes weights and learning rates, and keeps states of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = Factor()
        self.losses: collections.deque[float] = collections.deque(maxlen=4)
        self.seen: dict[str, int] = {}
        self.drawing = np.random.default_rng(3)
        self.average: list[torch.Tensor] | None = None
        self.head = torch.nn.Linear(1, 1)
        self.flag = False

    def training_begins(self, optimizer: Any) -> None:
        """Begin anew, at a rate of its own."""
        self.seen = {"begin": 1}
        optimizer.param_groups[0]["lr"] = 0.03

    def epoch_begins(self, model: Any) -> None:
        """Shake the weights, also by the generators that all use, and grow."""
        self.flag = True
        self.count("epoch")
        self.factor.value *= 1.1
        with torch.no_grad():
            weights = next(iter(model.parameters()))
            noise = float(self.drawing.random()) + random.random()  # noqa: S311 - noise
            weights += 0.01 * noise * torch.rand(weights.shape)

    def step_begins(self, optimizer: Any) -> None:
        """Change the rate."""
        self.count("step")
        optimizer.param_groups[0]["lr"] *= 0.97 * self.factor.value

    def step_ends(self, model: Any) -> None:
        """Follow the weights, and move a layer of its own."""
        self.flag = False
        now = [each.detach().clone() for each in model.parameters()]
        before = self.average or now
        self.average = [0.9 * old + 0.1 * new for old, new in zip(before, now, strict=True)]
        self.losses.append(float(now[0].sum()))
        with torch.no_grad():
            self.head.weight.add_(now[0].mean())

    def epoch_ends(self, model: Any) -> None:
        """Set the weights to what they were on average."""
        self.count("epoch end")
        assert self.average is not None
        with torch.no_grad():
            for each, value in zip(model.parameters(), self.average, strict=True):
                each.copy_(value)

    def count(self, hook: str) -> None:
        """Count a hook."""
        self.seen[hook] = self.seen.get(hook, 0) + 1

    def told(self) -> list[Any]:
        """Return what it has become."""
        own = float(self.head.weight.detach()), float(self.drawing.random()), self.factor.value
        return [list(self.losses), self.seen, self.flag, *own]


class Position:
    """Has a position in something that tells none."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = itertools.cycle([0.1, 0.2])

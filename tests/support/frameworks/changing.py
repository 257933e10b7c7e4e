"""What changes of a world in training have in common, in tests of several frameworks.

A change is a function of the parts of a training, which is called before a step: once, or in each
step from then on. An order names it.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

CHANGED_AT = 5
"""The step before which a change is made first."""
LENGTH = 9
"""How many steps are trained."""


@dataclasses.dataclass
class Outcome:
    """A record."""

    step: int
    values: list[float]


class Jitter:
    """A transform."""

    def __init__(self) -> None:
        self.strength = 0.0


class Level(torch.utils.data.Dataset[Any]):
    """Data that get harder, which count what is read."""

    def __init__(self) -> None:
        self.hardness = 0.0
        self.transform = Jitter()

    def __len__(self) -> int:
        return 12

    def inputs(self, index: int) -> torch.Tensor:
        """Return the inputs of a record."""
        both = torch.tensor([index / 12, 1 - index / 12])
        return both * (1 + self.hardness) + self.transform.strength * torch.rand(2)


class Net(nn.Module):
    """A small network, which attributes scale."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
        self.head = nn.Linear(4, 1)
        self.scale = 1.0
        self.mask = torch.ones(4)
        self.register_buffer("shift", torch.zeros(1), persistent=False)
        self.averages = [nn.Linear(4, 1).requires_grad_(requires_grad=False)]
        self.body[0].requires_grad_(requires_grad=False)
        self.curve: Callable[[torch.Tensor], torch.Tensor] = square
        self.last: Outcome | None = None
        self.warmth = warming()
        self.warm = 0.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute."""
        hidden = self.body(inputs) * self.mask
        found = self.head(hidden) * self.scale + self.shift + 0.1 * self.averages[0](hidden)
        return self.curve(found - 1) + self.warm


def square(value: torch.Tensor) -> torch.Tensor:
    """Return a loss."""
    return value.square()


def steep(value: torch.Tensor) -> torch.Tensor:
    """Return another."""
    return value.abs()


def warming() -> Callable[[], float]:
    """Return a function that counts how often it is called."""
    calls = 0

    def factor() -> float:
        nonlocal calls
        calls += 1
        return calls / (calls + 2)

    return factor


@dataclasses.dataclass
class Training:
    """The parts of a training."""

    step: int
    net: Net
    optimizer: Any
    data: Level
    sampler: Any
    callback: Any
    trainer: Any


def modes(it: Training) -> None:
    """Freeze statistics and switch dropout off."""
    it.net.body.eval()


def frozen(it: Training) -> None:
    """Freeze a layer."""
    it.net.body[1].requires_grad_(requires_grad=False)


def thawed(it: Training) -> None:
    """Train a layer of a group that the optimizer has."""
    it.net.body[0].requires_grad_(requires_grad=True)


def dropout(it: Training) -> None:
    """Drop out more, and follow statistics more slowly."""
    it.net.body[2].p = 0.6  # type: ignore[assignment]  # of a Dropout
    it.net.body[1].momentum = 0.01  # type: ignore[assignment]  # of a BatchNorm


def attribute(it: Training) -> None:
    """Change a plain attribute."""
    it.net.scale *= 1.1


def tensor(it: Training) -> None:
    """Change a tensor in an attribute."""
    it.net.mask[1:3] = 0


def buffer(it: Training) -> None:
    """Change a buffer that no state has."""
    it.net.shift += 0.1


def average(it: Training) -> None:
    """Follow the weights of a layer."""
    with torch.no_grad():
        for own, new in zip(
            it.net.averages[0].parameters(), it.net.head.parameters(), strict=True
        ):
            own.data.lerp_(new.data, 0.3)


def function(it: Training) -> None:
    """Train by another function."""
    it.net.curve = steep


def enclosed(it: Training) -> None:
    """Count in a variable that a function encloses."""
    it.net.warm = it.net.warmth()


def record(it: Training) -> None:
    """Make a record."""
    it.net.last = Outcome(it.step, [float(it.net.head.bias.detach())])


def rate(it: Training) -> None:
    """Slow one group down."""
    it.optimizer.param_groups[1]["weight_decay"] = 0.5


def group(it: Training) -> None:
    """Add a group."""
    extra = [*it.net.body[0].requires_grad_(requires_grad=True).parameters()]
    for each in it.optimizer.param_groups:
        each["params"] = [own for own in each["params"] if not any(own is it for it in extra)]
    it.optimizer.add_param_group({"params": extra, "lr": 0.02})


def harder(it: Training) -> None:
    """Make the data harder."""
    it.data.hardness += 0.3


def transform(it: Training) -> None:
    """Strengthen a transform."""
    it.data.transform.strength = 0.5


def weights(it: Training) -> None:
    """Draw some records more often."""
    it.sampler.weights[it.step % 12] += 5


def of_callback(it: Training) -> None:
    """Change what a callback has."""
    it.callback.factor *= 0.9


def of_trainer(it: Training) -> None:
    """Change a setting of the trainer."""
    it.trainer.change()


def layer(it: Training) -> None:
    """Put a layer of another kind in place of one."""
    it.net.body[2] = nn.Identity()


def hook(it: Training) -> None:
    """Register a hook with a layer."""
    it.net.head.register_forward_hook(lambda *given: 2 * given[-1])


def gradients(it: Training) -> None:
    """Register one with a parameter."""
    weight: Any = it.net.head.weight
    weight.register_hook(lambda gradient: 2 * gradient)


def nameless(it: Training) -> None:
    """Train by a function without a name."""
    it.net.curve = lambda value: value.square()


def added(it: Training) -> None:
    """Add a callback."""
    it.trainer.add(type(it.callback)())


def swapped(it: Training) -> None:
    """Go over to another optimizer."""
    it.trainer.swap(torch.optim.SGD(it.net.head.parameters(), 0.01))


def optimizer(it: Training) -> None:
    """Train something by an optimizer that the loop does not have."""
    own = torch.optim.SGD(it.net.averages[0].parameters(), 0.1, momentum=0.9)
    it.net.averages[0].requires_grad_(requires_grad=True)
    it.net.averages[0](torch.ones(4)).sum().backward()
    own.step()
    it.net.averages[0].requires_grad_(requires_grad=False)
    it.net.own = own  # type: ignore[assignment]  # no module


EACH_STEP = {attribute, buffer, average, enclosed, record, harder, weights, of_callback}
KEPT = [
    modes, frozen, thawed, dropout, attribute, tensor, buffer, average, function, enclosed,
    record, rate, group, harder, transform, weights, of_callback, of_trainer,
]  # fmt: skip
REFUSED = [layer, hook, gradients, nameless, added, swapped, optimizer]
BY_NAME = {each.__name__: each for each in (*KEPT, *REFUSED)}


def names(changes: Iterable[Callable[[Training], None]]) -> list[str]:
    """Return what orders call the changes."""
    return [each.__name__ for each in changes]


def make(it: Training, name: str, at: int = CHANGED_AT) -> None:
    """Make the change of a name, if it is its time."""
    change = BY_NAME[name]
    if it.step == at or (it.step > at and change in EACH_STEP):
        change(it)


def told(net: Net, data: Level) -> list[Any]:
    """Return all that may have changed, to compare it."""
    held = [net, net.averages[0]]
    tensors = [*(it for each in held for it in each.state_dict().values()), net.mask, net.shift]
    return [
        [each.tolist() for each in tensors],
        [each.requires_grad for each in net.parameters()],
        [each.training for each in net.modules()],
        net.scale, net.curve.__name__, net.warm, net.last and dataclasses.astuple(net.last),
        data.hardness, data.transform.strength, vars(net.body[2]).get("p"),
        vars(net.body[1]).get("momentum"),
    ]  # fmt: skip

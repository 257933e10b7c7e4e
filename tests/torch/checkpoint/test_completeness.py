"""Completeness of checkpoints: a trial that trains what they would lack fails before a batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LinearLR, SequentialLR, StepLR

from rung import torch as rt
from rung.torch.checkpoint.completeness import IncompleteCheckpoint, demand_complete
from support.trials.plain import PlainTrial
from support.trials.story import CONFIG, finish

from ..conftest import Start  # noqa: TID252 - of the folder above

Change = Callable[[PlainTrial], Any]


def second(trial: PlainTrial) -> None:
    """Give the trial a model that nothing wraps."""
    trial.critic = nn.Linear(2, 1)  # type: ignore[attr-defined]


def listed(trial: PlainTrial) -> None:
    """Give it some in a list in a dictionary."""
    trial.parts = {"heads": [nn.Linear(2, 1)]}  # type: ignore[attr-defined]


def optimizer(trial: PlainTrial) -> None:
    """Give it an optimizer that nothing wraps."""
    trial.other = torch.optim.SGD(trial.model.parameters(), 0.1)  # type: ignore[attr-defined]


def scheduler(trial: PlainTrial) -> None:
    """Give it a scheduler that nothing wraps."""
    trial.decay = StepLR(trial.optimizer, 1)  # type: ignore[attr-defined]


def loose(trial: PlainTrial) -> None:
    """Have a wrapped optimizer train a parameter of no model."""
    weight = nn.Parameter(torch.ones(1))
    trial.context.wrap_optimizer(torch.optim.SGD([weight], 0.1))


def nothing(trial: PlainTrial) -> None:
    """Wrap nothing."""
    trial.context.models.clear()
    trial.context.optimizers.clear()
    trial.model, trial.optimizer = nn.Sequential(), None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            second,
            r"PlainTrial\.critic .*`self\.critic = context\.wrap_model\(…\)`, or `context\.keep",
        ),
        (listed, r"`self\.parts\['heads'\]\[0\] = context\.wrap_model"),
        (optimizer, r"`self\.other = context\.wrap_optimizer"),
        (scheduler, r"`self\.decay = context\.wrap_lr_scheduler"),
        (loose, r"SGD trains parameters of no wrapped model"),
        (nothing, r"nothing is wrapped"),
    ],
)
def test_what_checkpoints_would_lack_is_refused(start: Start, change: Change, text: str) -> None:
    """No batch is trained; the error names the thing and the line to write."""
    agent, context = start(config=CONFIG, length=2)
    trial = PlainTrial(context)
    change(trial)
    with pytest.raises(IncompleteCheckpoint, match=text):
        rt.Trainer(trial, context).fit()
    assert finish(agent, context) == []


def frozen(trial: PlainTrial) -> None:
    """Give the trial a teacher that is not trained."""
    trial.teacher = nn.Linear(2, 1).requires_grad_(requires_grad=False)  # type: ignore[attr-defined]


def kept(trial: PlainTrial) -> None:
    """Keep a second model and a scheduler that the trial steps."""
    trial.critic = trial.context.keep("critic", nn.Linear(2, 1))  # type: ignore[attr-defined]
    decay = StepLR(trial.optimizer, 1)
    trial.decay = trial.context.keep("decay", decay)  # type: ignore[attr-defined]


def part(trial: PlainTrial) -> None:
    """Name a part of the wrapped model, and the loss."""
    trial.head = trial.model[0]  # type: ignore[attr-defined]
    trial.loss = nn.CrossEntropyLoss()  # type: ignore[attr-defined]


class Own(PlainTrial):
    """Has a second model in a state of its own."""

    def __init__(self, context: rt.TrialContext) -> None:
        super().__init__(context)
        self.critic = nn.Linear(2, 1)
        self.other = torch.optim.SGD(self.critic.parameters(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        """Return both."""
        return {"critic": self.critic.state_dict(), "other": self.other.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take both."""


def chained(trial: PlainTrial) -> None:
    """Name the schedulers that a wrapped one is made of."""
    trial.warm_up = LinearLR(trial.optimizer)  # type: ignore[attr-defined]
    trial.decay = StepLR(trial.optimizer, 1)  # type: ignore[attr-defined]
    parts = [trial.warm_up, trial.decay]  # type: ignore[attr-defined]
    trial.context.wrap_lr_scheduler(SequentialLR(trial.optimizer, parts, milestones=[2]))


@pytest.mark.parametrize("change", [frozen, kept, part, chained])
def test_what_checkpoints_hold_is_accepted(start: Start, change: Change) -> None:
    """Wrapped, kept, or never trained."""
    _, context = start(config=CONFIG, length=2)
    trial = PlainTrial(context)
    change(trial)
    demand_complete(trial, context)


def test_a_state_of_its_own_is_looked_into(start: Start) -> None:
    """What the trial's own state_dict returns is held; what it leaves out is not."""
    _, context = start(config=CONFIG, length=2)
    trial = Own(context)
    demand_complete(trial, context)
    trial.forgotten = nn.Linear(2, 1)  # type: ignore[attr-defined]
    with pytest.raises(IncompleteCheckpoint, match=r"Own\.forgotten"):
        demand_complete(trial, context)


class Late(PlainTrial):
    """Has a state that only training makes."""

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        return {"seen": self.seen}  # type: ignore[attr-defined]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""


def test_a_state_that_training_makes_is_not_asked_for_too_early(start: Start) -> None:
    """A state_dict that raises before the first batch fails no run that has not checkpointed."""
    _, context = start(config=CONFIG, length=2)
    demand_complete(Late(context), context)

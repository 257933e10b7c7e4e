"""Schedulers are stepped when it is their turn, and only then."""

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from rung import torch as rt
from support.trials.plain import PlainTrial
from support.trials.story import CONFIG, finish

from .conftest import Start

Mode = rt.LRScheduler.StepMode


@pytest.mark.parametrize(
    ("mode", "frequency", "rates"),
    [
        (Mode.STEP_EVERY_BATCH, 1, [5, 4, 3, 2, 1, 0, -1]),
        (Mode.STEP_EVERY_BATCH, 3, [5, 5, 5, 4, 4, 4, 3]),
        (Mode.STEP_EVERY_OPTIMIZER_STEP, 1, [5, 5, 4, 4, 3, 3, 2]),
        (Mode.STEP_EVERY_OPTIMIZER_STEP, 2, [5, 5, 5, 5, 4, 4, 4]),
        (Mode.STEP_EVERY_EPOCH, 1, [5, 5, 5, 5, 5, 5, 4]),
        (Mode.STEP_EVERY_EPOCH, 2, [5, 5, 5, 5, 5, 5, 5]),
        (Mode.MANUAL_STEP, 1, [5, 5, 5, 5, 5, 5, 5]),
    ],
)
def test_each_mode_has_its_own_time(
    start: Start, mode: rt.StepMode, frequency: int, rates: list[int]
) -> None:
    """With two batches for a step and six for an epoch; a digit less each time."""
    seen: list[int] = []

    class Scheduled(PlainTrial):
        def __init__(self, context: rt.TrialContext) -> None:
            super().__init__(context)
            context.wrap_lr_scheduler(StepLR(self.optimizer, 1, 0.1), mode, frequency)
            self.optimizer.step()  # so that a scheduler may be stepped before two batches

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            seen.append(round(torch.tensor(self.optimizer.param_groups[0]["lr"]).log10().item()))
            return super().train_batch(batch, epoch_idx, batch_idx)

    config = CONFIG | {"optimizations": {"aggregation_frequency": 2}}
    agent, context = start(config=config, length=7)
    rt.Trainer(Scheduled(context), context).fit()
    finish(agent, context)
    assert [rate + 6 for rate in seen] == rates


def test_a_scheduler_goes_with_its_own_optimizer(start: Start) -> None:
    """The one that steps every third batch has its schedule stepped every third batch."""

    class Two(PlainTrial):
        def __init__(self, context: rt.TrialContext) -> None:
            super().__init__(context)
            self.other = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.1))
            for optimizer in (self.optimizer, self.other):
                schedule = StepLR(optimizer, 1, 0.5)
                context.wrap_lr_scheduler(schedule, Mode.STEP_EVERY_OPTIMIZER_STEP)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx % 3 == 2:
                self.context.step_optimizer(self.other, auto_zero_grads=False)
            return super().train_batch(batch, epoch_idx, batch_idx)

    agent, context = start(config=CONFIG, length=6)
    trial = Two(context)
    rt.Trainer(trial, context).fit()
    finish(agent, context)
    assert trial.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**6
    assert trial.other.param_groups[0]["lr"] == 0.1 * 0.5**2
    assert context.schedulers.steps() == [6, 2]


def test_what_cannot_be_stepped_is_refused(start: Start) -> None:
    """A plateau needs a metric; a frequency is a number of times."""
    _, context = start(config=CONFIG, length=1)
    optimizer = PlainTrial(context).optimizer
    with pytest.raises(rt.InvalidPlan, match=r"MANUAL_STEP .* on_validation_end"):
        context.wrap_lr_scheduler(ReduceLROnPlateau(optimizer))
    with pytest.raises(rt.InvalidPlan, match="frequency"):
        context.wrap_lr_scheduler(StepLR(optimizer, 1), Mode.STEP_EVERY_BATCH, 0)

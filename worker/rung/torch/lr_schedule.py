"""Learning-rate schedulers, and when each is stepped.

STEP_EVERY_EPOCH            after every `frequency` epochs
STEP_EVERY_BATCH            after every `frequency` batches
STEP_EVERY_OPTIMIZER_STEP   after every `frequency` steps of its own optimizer; a step that a
                            gradient scaler skips is none
MANUAL_STEP                 by the trial itself
"""

import enum
from collections.abc import Iterator
from typing import Any, Final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from rung.training.units import InvalidPlan


class LRScheduler:
    """A scheduler and when it is stepped."""

    class StepMode(enum.Enum):
        """When the trainer steps a learning-rate scheduler."""

        STEP_EVERY_EPOCH = "epoch"
        STEP_EVERY_BATCH = "batch"
        STEP_EVERY_OPTIMIZER_STEP = "optimizer step"
        MANUAL_STEP = "manual"
        """The trial calls `step` itself."""

    def __init__(
        self, scheduler: Any, step_mode: StepMode = StepMode.STEP_EVERY_EPOCH, frequency: int = 1
    ) -> None:
        """Configure when a scheduler is stepped.

        Raises:
            InvalidPlan: it cannot be stepped that way.
        """
        if frequency < 1:
            raise InvalidPlan(f"wrap_lr_scheduler: frequency must be at least 1, not {frequency}")
        if isinstance(scheduler, ReduceLROnPlateau) and step_mode is not self.StepMode.MANUAL_STEP:
            raise InvalidPlan(
                "ReduceLROnPlateau is stepped with a metric, which the trainer cannot choose: wrap"
                " it with LRScheduler.StepMode.MANUAL_STEP and call its step(metrics[…]) in a"
                " callback's on_validation_end"
            )
        self.scheduler: Final = scheduler
        self.mode: Final = step_mode
        self.frequency: Final = frequency
        self.steps: int | None = 0
        """Steps of its optimizer so far; None: not in an older checkpoint."""

    def turn(self, count: int) -> None:
        """Step it if the count is a multiple of its frequency."""
        if count % self.frequency == 0:
            self.scheduler.step()

    def follows(self, optimizer: Optimizer, first: Optimizer) -> bool:
        """Return whether it belongs to an optimizer; without one of its own, to the first."""
        return getattr(self.scheduler, "optimizer", first) is optimizer


StepMode = LRScheduler.StepMode


class Schedules:
    """The schedulers of a trial."""

    def __init__(self) -> None:
        self.all: list[LRScheduler] = []

    def __iter__(self) -> Iterator[LRScheduler]:
        return iter(self.all)

    def after_batch(self, batches: int) -> None:
        """Step the schedulers that are stepped by batches."""
        for scheduled in self._of(StepMode.STEP_EVERY_BATCH):
            scheduled.turn(batches)

    def after_epoch(self, epochs: int) -> None:
        """Step the schedulers that are stepped by epochs."""
        for scheduled in self._of(StepMode.STEP_EVERY_EPOCH):
            scheduled.turn(epochs)

    def after_step(self, optimizer: Optimizer, first: Optimizer, windows: int) -> None:
        """Step the schedulers of an optimizer that has just made a step.

        Args:
            optimizer: which.
            first: the trial's first optimizer.
            windows: the number of steps if none had been skipped.
        """
        for scheduled in self._of(StepMode.STEP_EVERY_OPTIMIZER_STEP):
            if scheduled.follows(optimizer, first):
                known = windows - 1 if scheduled.steps is None else scheduled.steps
                scheduled.steps = known + 1
                scheduled.turn(scheduled.steps)

    def steps(self) -> list[int | None]:
        """Return the number of its optimizer's steps for each scheduler."""
        return [scheduled.steps for scheduled in self.all]

    def go_on(self, steps: list[int | None] | None) -> None:
        """Restore the result of `steps`; None for older checkpoints."""
        for index, scheduled in enumerate(self.all):
            scheduled.steps = steps[index] if steps is not None else None

    def _of(self, mode: StepMode) -> list[LRScheduler]:
        return [scheduled for scheduled in self.all if scheduled.mode is mode]

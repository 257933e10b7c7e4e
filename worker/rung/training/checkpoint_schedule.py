"""Checkpoint schedule: the checkpoint period that a run chooses by itself.

Where the experiment file has no `min_checkpoint_period`, the period is chosen by the cost of the
last checkpoint. It is the longest of

* one minute;
* 100 times the time for which it blocked training, so that blocking takes at most 1% of the time;
* ten times the time until it was stored, but not more than ten minutes: storing overlaps with
  training, and slows it down.

So checkpoints are at most ten minutes apart, unless one blocks training for more than six seconds.
Then the limit of 1% has precedence; the period is logged. A checkpoint that is still being stored
delays the next one. The first one is taken early, to measure its cost. Any checkpoint starts the
period again, whatever its reason.

The schedule depends on the clock, so all ranks must follow that of one rank. It affects neither
batches nor random state: a checkpoint does not change training, whenever it is taken.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

import structlog
from msgspec import Struct

from rung.core import TrainContext
from rung.training.data_wait import GROUP

FIRST_S: Final = 30.0
"""When the first checkpoint of a run is taken, by which the cost is measured."""
SHORTEST_S: Final = 60.0
STORING_S: Final = 600.0
"""Limit of a period that follows from the time of storing."""
_HELD: Final = 100
_STORED: Final = 10
_CHANGED: Final = 1.5
_ROUNDED_FROM_S: Final = 10
_MINUTES_FROM_S: Final = 120

_log = structlog.get_logger("rung")


class Cost(Struct, frozen=True):
    """The cost of a checkpoint, in seconds."""

    held_s: float
    """For how long it blocked training."""
    stored_s: float
    """From its beginning until it was stored."""

    @property
    def period_s(self) -> float:
        """The time from its beginning until the next one is due."""
        storing_s = min(_STORED * self.stored_s, STORING_S)
        return max(SHORTEST_S, _HELD * self.held_s, storing_s)

    def metrics(self) -> dict[str, float]:
        """Return the period and the cost, as metrics of the group `system`."""
        return {
            "checkpoint_period_s": self.period_s,
            "checkpoint_held_s": self.held_s,
            "checkpoint_stored_s": self.stored_s,
        }

    def __str__(self) -> str:
        """Return it as a line of the trial's log."""
        return (
            f"a checkpoint every {_duration(self.period_s)}: one holds training for"
            f" {_duration(self.held_s)} and is stored within {_duration(self.stored_s)};"
            " min_checkpoint_period in the experiment file sets another period, or 0 for none"
        )


class CheckpointSchedule:
    """Measures checkpoints, and decides when the next one is due."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, automatic: bool = True
    ) -> None:
        """Begin the first period at the first call of `due`.

        Args:
            clock: returns seconds.
            automatic: False: none is ever due.
        """
        self._clock = clock
        self._automatic = automatic
        self._due_at: float | None = None
        self._began = 0.0
        self._held_s: float | None = None
        self._cost: Cost | None = None
        self._told_s = 0.0

    def due(self, *, storing: bool) -> bool:
        """Return whether a checkpoint is to be taken now.

        Args:
            storing: whether a checkpoint is being stored.
        """
        if not self._automatic:
            return False
        now = self._clock()
        if self._due_at is None:
            self._due_at = now + FIRST_S
        if storing:
            return False
        if self._held_s is not None:
            self._cost = Cost(self._held_s, now - self._began)
            self._due_at, self._held_s = self._began + self._cost.period_s, None
        return now >= self._due_at

    @contextlib.contextmanager
    def holding(self, began: float | None = None) -> Iterator[None]:
        """Measure for how long a checkpoint, taken in the block, blocks training.

        Args:
            began: when the checkpoint began; None: with the block.
        """
        self._began = self._clock() if began is None else began
        yield
        self._held_s = self._clock() - self._began

    def tell(self, train: TrainContext, batches: int) -> None:
        """Log and report the period if it is new, or has changed much, since the last call."""
        cost = self._cost
        if cost is None or self._told_s / _CHANGED < cost.period_s < self._told_s * _CHANGED:
            return
        self._told_s = cost.period_s
        _log.info(str(cost), batches=batches)
        train.report_metrics(GROUP, batches, cost.metrics())


def _duration(seconds: float) -> str:
    if seconds < _ROUNDED_FROM_S:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < _MINUTES_FROM_S else f"{seconds / 60:.0f} min"

"""Who keeps the others waiting: the time that each rank spends before it meets them in a step.

A step's ranks meet when gradients are averaged, so all of them take as long as the slowest. What
each does alone, fetching its data and computing up to the loss, tells which one that is. With a
GPU, whose work runs on behind, it tells of the data and the processor alone.
"""

import time
from statistics import median
from typing import Final

import structlog

from rung.core import DistributedContext
from rung.torch.context import TrialContext

_FACTOR: Final = 1.5
_NOTED_S: Final = 0.005

_log = structlog.get_logger("rung")


class Pace:
    """Measures this rank; the chief compares all of them with every report."""

    def __init__(self, ranks: DistributedContext) -> None:
        self._ranks = ranks
        self._several = ranks.size > 1
        self._began = 0.0
        self._spent_s = 0.0
        self._steps = 0

    def begin(self, context: TrialContext) -> None:
        """A step begins: its data are about to be fetched."""
        if self._several:
            context.computed_at = None
            self._began = time.perf_counter()

    def end(self, context: TrialContext) -> None:
        """A step is done."""
        if self._several and context.computed_at is not None:
            self._spent_s += context.computed_at - self._began
            self._steps += 1

    def tell(self, batches: int) -> None:
        """Compare the ranks, and name one that is much slower in the log."""
        if not self._several:
            return
        own, self._spent_s, steps, self._steps = self._spent_s, 0.0, self._steps, 0
        means = self._ranks.gather(own / steps if steps else 0.0)
        if means and (words := straggler(means)):
            _log.warning(words, batches=batches)


def straggler(means: list[float]) -> str | None:
    """Return which rank keeps the others waiting, in words; None if none does by much.

    Args:
        means: seconds that each rank spends on a step before it meets the others.
    """
    slowest = max(range(len(means)), key=means.__getitem__)
    others = median(means[:slowest] + means[slowest + 1 :])
    if means[slowest] < others * _FACTOR or means[slowest] - others < _NOTED_S:
        return None
    return (
        f"rank {slowest} is slow: {means[slowest]:.3f} s per step for its data and its loss, the "
        f"others {others:.3f} s; every step waits for it"
    )

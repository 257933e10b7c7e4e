"""Straggler detection: finds the rank that the others wait for in every step.

Ranks synchronise when gradients are averaged, so a step takes as long as on the slowest rank. The
time that each rank spends before that, to fetch its data and compute the loss, shows which one it
is. With a GPU, which computes asynchronously, it covers only the data and the CPU.
"""

import time
from statistics import median
from typing import Final

import structlog

from rung.core import DistributedContext

_FACTOR: Final = 1.5
_NOTED_S: Final = 0.005

_log = structlog.get_logger("rung")


class StragglerDetector:
    """Measures this rank; the chief compares all of them with every report."""

    def __init__(self, ranks: DistributedContext) -> None:
        self._ranks = ranks
        self._several = ranks.size > 1
        self._began = 0.0
        self._computed: float | None = None
        self._spent_s = 0.0
        self._steps = 0

    def begin(self) -> None:
        """Begin a step, before its data are fetched."""
        if self._several:
            self._computed = None
            self._began = time.perf_counter()

    def computed(self) -> None:
        """Note that a loss of the step is computed; the first one counts."""
        if self._several and self._computed is None:
            self._computed = time.perf_counter()

    def end(self) -> None:
        """End a step."""
        if self._several and self._computed is not None:
            self._spent_s += self._computed - self._began
            self._steps += 1

    def log(self, batches: int) -> None:
        """Compare the ranks, all of which must call this, and log one that is much slower."""
        if not self._several:
            return
        own, self._spent_s, steps, self._steps = self._spent_s, 0.0, self._steps, 0
        means = self._ranks.gather(own / steps if steps else 0.0)
        if means and (words := straggler(means)):
            _log.warning(words, batches=batches)


def straggler(means: list[float]) -> str | None:
    """Return a log line that names a rank which is much slower; None if there is none.

    Args:
        means: seconds that each rank spends on a step before the synchronisation.
    """
    slowest = max(range(len(means)), key=means.__getitem__)
    others = median(means[:slowest] + means[slowest + 1 :])
    if means[slowest] < others * _FACTOR or means[slowest] - others < _NOTED_S:
        return None
    return (
        f"rank {slowest} is slow: {means[slowest]:.3f} s per step for its data and its loss, the "
        f"others {others:.3f} s; every step waits for it"
    )

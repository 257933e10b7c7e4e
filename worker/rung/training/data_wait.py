"""Data wait: the fraction of its time that the training loop waits for data.

Near 0 the loader keeps up; near 1 training would be faster with more `num_workers`, or with data
that are decoded already. Validations and checkpoints are not counted. On a GPU the loop runs ahead
of the device, so that not all of this waiting costs time.

It is reported as the metric `data_wait_fraction` of the group `system`: it depends on the machine,
not on the model, and differs from run to run, so no search may decide on it.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

NAME: Final = "data_wait_fraction"
GROUP: Final = "system"
_PERIOD_S: Final = 1.0

T = TypeVar("T")


class DataWait:
    """Measures the loop between two reports."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, period_s: float | None = None
    ) -> None:
        self._clock = clock
        self._period_s = _PERIOD_S if period_s is None else period_s
        self._waited = 0.0
        self._worked = 0.0
        self._since = 0.0

    def batch(self, following: Callable[[], T]) -> T:
        """Return the next batch, measuring how long it takes."""
        begun = self._clock()
        batch = following()
        self._since = self._clock()
        self._waited += self._since - begun
        return batch

    def trained(self) -> None:
        """Note that the step with that batch has ended."""
        self._worked += self._clock() - self._since

    def take(self) -> dict[str, float]:
        """Return the metric and start again; empty until enough time was measured."""
        total = self._waited + self._worked
        if total < self._period_s or not total:
            return {}
        fraction = self._waited / total
        self._waited = self._worked = 0.0
        return {NAME: fraction}

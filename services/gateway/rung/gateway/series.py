"""The interface to the store of curves and printed lines."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from rung.api import LogLine, LogSelection, TrialLines

Point = tuple[int, float, int]
"""Step, value (may be NaN or infinite), Unix time in milliseconds."""


class Series(Protocol):
    """Curves and printed lines of trials.

    A `RungError` that any method raises is answered as 503.
    """

    async def curve(self, trial_id: str, kind: str, name: str, points: int) -> Sequence[Point]:
        """Return a trial's curve, thinned to at most `points`, extremes and ends kept."""
        ...

    async def overlay(
        self, experiment_id: str, kind: str, name: str, points: int
    ) -> Mapping[str, Sequence[Point]]:
        """Return the curves of all trials of an experiment, each as `curve` does."""
        ...

    async def names(self, experiment_id: str) -> Sequence[tuple[str, str]]:
        """Return kind and name of every metric that an experiment reported."""
        ...

    async def logs(self, selection: LogSelection) -> tuple[list[LogLine], str | None]:
        """Return a page of printed lines, and the cursor of the next one, None at the end.

        Raises:
            ValueError: the cursor is none.
        """
        ...

    async def log_sizes(self, experiment_id: str | None, before_ms: int) -> Sequence[TrialLines]:
        """Return how many lines each trial printed before a time; marks are no lines.

        Args:
            experiment_id: of this experiment only.
            before_ms: Unix time in milliseconds.
        """
        ...

"""What the gateway wants from whoever keeps curves and printed lines."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from rung.api import LogLine

Point = tuple[int, float, int]
"""Step, value (may be NaN or infinite), Unix time in milliseconds."""


class TrialLines(Protocol):
    """How much a trial printed."""

    @property
    def experiment_id(self) -> str: ...  # noqa: D102 - as the wire names it

    @property
    def trial_id(self) -> str: ...  # noqa: D102 - as the wire names it

    @property
    def lines(self) -> int: ...  # noqa: D102 - as the wire names it

    @property
    def size_bytes(self) -> int: ...  # noqa: D102 - as the wire names it


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

    async def logs(  # noqa: PLR0913 - what lines can be chosen by
        self,
        *,
        experiment_id: str | None,
        trial_id: str | None,
        rank: int | None,
        level: str | None,
        text: str | None,
        since_ms: int | None,
        until_ms: int | None,
        after: str | None,
        limit: int,
        order: str,
    ) -> tuple[list[LogLine], str | None]:
        """Return printed lines by time, and where the next page begins, None if there is none.

        Args:
            experiment_id: of this experiment only.
            trial_id: of this trial only.
            rank: of this process of the trial only.
            level: this severe or more.
            text: containing this.
            since_ms: from this Unix time on.
            until_ms: before this Unix time.
            after: a cursor that came with an earlier page.
            limit: how many lines at most; fewer may come where they are long.
            order: `oldest` first, or `newest` first.

        Raises:
            ValueError: `after` is no cursor.
        """
        ...

    async def log_sizes(self, experiment_id: str | None, before_ms: int) -> Sequence[TrialLines]:
        """Return how many lines each trial printed before a time; marks are no lines.

        Args:
            experiment_id: of this experiment only.
            before_ms: Unix time in milliseconds.
        """
        ...

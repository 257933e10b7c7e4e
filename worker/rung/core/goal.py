"""How far a run shall train, and whether a validation says that it got there."""

import math
from collections.abc import Mapping
from typing import Final

from rung.cache.log import log
from rung.core.errors import ReportRefused
from rung.core.values import plain_number
from rung.events.trial import MetricValue, RunSpec

COUNTED: Final = ("batches", "epochs", "records", "steps")
"""Time metrics for which `steps_completed` stands in where a validation does not hold them."""


class Goal:
    """The run's length and the metrics that a validation must hold."""

    def __init__(self, spec: RunSpec, *, tells: bool = True) -> None:
        """Take the goal of a run.

        Args:
            spec: of the run.
            tells: whether this process speaks for the run.
        """
        searcher = spec.config.get("searcher") or {}
        self._metric: str | None = searcher.get("metric")
        self._time_metric = spec.time_metric
        self._length = spec.length
        self._tells = tells
        self.reached = False
        """Whether a validation was reported at or beyond the run's length."""

    def check(self, steps: int, values: Mapping[str, MetricValue]) -> None:
        """Take note of a validation.

        Raises:
            ReportRefused: the searcher's metric or the time metric is missing.
        """
        if self._metric is not None and self._metric not in values:
            raise ReportRefused(_missing("searcher.metric", self._metric, values))
        time = self._time(steps, values)
        if self._length is not None and time >= self._length:
            self.reached = True

    def _time(self, steps: int, values: Mapping[str, MetricValue]) -> float:
        value = values.get(self._time_metric)
        if value is None:
            if self._time_metric in COUNTED:
                self._doubt(steps)
                return steps
            raise ReportRefused(_missing("searcher.time_metric", self._time_metric, values))
        time = plain_number(value)
        if not math.isfinite(time):
            raise ReportRefused(
                f"validation metric {self._time_metric!r} is the search's time_metric and must "
                f"be a finite number, not {value}"
            )
        return time

    def _doubt(self, steps: int) -> None:
        """Say, once, that steps stand in for something that they hardly are.

        A script may count epochs as its steps; then it validates at its length, not far beyond.
        """
        name, length = self._time_metric, self._length
        if length is None or not self._tells:
            return
        if name == "records" or (name == "epochs" and steps > length):
            self._tells = False
            log().warning(
                f"the validation at steps_completed={steps} holds no metric {name!r}, so it counts"
                f" as {steps} {name} of {length}; where a step is something else, report {name!r}"
                " with each validation"
            )


def _missing(field: str, name: str, values: Mapping[str, MetricValue]) -> str:
    given = ", ".join(repr(key) for key in sorted(values)) or "none"
    return (
        f"the validation metrics lack {name!r}, which the experiment file names as {field}; "
        f"given: {given}"
    )

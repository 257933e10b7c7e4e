"""Reporting: `ctx.train`."""

import enum
import time
from collections.abc import Mapping
from typing import Any, Final

from rung.core.goal import Goal
from rung.core.link import Link
from rung.core.protocol import Alive, HparamsRefused, Reported
from rung.core.values import step_number, wire_values

_BEAT_S: Final = 1.0
"""The agent is told no more often than this."""


class EarlyExitReason(enum.Enum):
    """Why a script gives up."""

    INVALID_HP = "the script refused its hyperparameters"


class TrainContext:
    """Takes the metrics of a run; every call returns within microseconds."""

    def __init__(self, link: Link, goal: Goal, *, reports: bool = True) -> None:
        """Take the metrics of a run.

        Args:
            link: to the agent.
            goal: what the run trains for.
            reports: whether this process speaks for the run; what others report goes nowhere.
        """
        self._link = link
        self._goal = goal
        self._reports = reports
        self._beat_at = time.monotonic() + _BEAT_S

    def report_training_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of the training set at a step.

        Raises:
            ReportRefused: a value is no number; the message names it.
        """
        self.report_metrics("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of the validation set; the search decides by them.

        They hold the searcher's metric and its time_metric. Where the latter is `batches`,
        `epochs` or `records` and is not among them, steps_completed counts as that: a script that
        counts its steps in epochs need not say so twice, one that counts batches reports `epochs`.

        Raises:
            ReportRefused: the searcher's metric is missing, or a value is no number.
        """
        self.report_metrics("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of a group of the script's own, such as `test` or `system`.

        Raises:
            ReportRefused: a value is no number, the message names it; or all of them together
                make more than 512 KiB.
        """
        step = step_number(steps_completed)
        values = wire_values(metrics)
        if group == "validation":
            self._goal.check(step, values)
        if self._reports:
            self._link.send(Reported(group, step, time.time_ns() // 1_000_000, values))

    def heartbeat(self) -> None:
        """Say that the script makes progress; call it as often as you like, in every step.

        Matters where the experiment file has a `hang_timeout`: a script that reports nothing for
        so long is taken to hang, and is killed. Reports and checkpoints are signs of life too.
        """
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + _BEAT_S
            self._link.send(Alive())

    def report_early_exit(self, reason: EarlyExitReason | str) -> None:
        """Say that the script cannot train with these hyperparameters; leave soon after.

        Args:
            reason: `EarlyExitReason.INVALID_HP`, or in words what is wrong with them.
        """
        text = reason.value if isinstance(reason, EarlyExitReason) else reason
        self._link.send(HparamsRefused(text))

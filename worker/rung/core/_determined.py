"""Determined's `ctx.searcher` and `ctx.profiler`, for scripts written for it.

Rung does not need them: a run has one length, and the agent measures resource usage in any case.
"""

import enum
from collections.abc import Iterator
from typing import Any

from rung.cache.log import log
from rung.core._distributed import DistributedContext
from rung.core._info import TrialInfo
from rung.core._train import TargetLength, TrainContext


class Unit(enum.Enum):
    """The unit of a length."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherMode(enum.Enum):
    """Which ranks iterate over the operations; without effect in Rung."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class SearcherOperation:
    """Train until this length, and validate there."""

    def __init__(
        self,
        length: int,
        info: TrialInfo,
        train: TrainContext,
        target: TargetLength,
    ) -> None:
        self.length = length
        self._info = info
        self._train = train
        self._target = target

    def report_progress(self, length: float) -> None:
        """Report the progress of the trial, in units of the length."""
        self._train.report_progress(min(max(length / self.length, 0.0), 1.0))

    def report_completed(self, searcher_metric: Any) -> None:
        """Report the searcher's metric at the length, unless a validation did so."""
        if self._target.reached:
            return
        metric = (self._info.config.get("searcher") or {}).get("metric", "searcher_metric")
        values = {metric: searcher_metric, self._info.time_metric: self.length}
        self._train.report_validation_metrics(self.length, values)


class SearcherContext:
    """The run's length as the one operation of a search."""

    def __init__(self, info: TrialInfo, train: TrainContext, target: TargetLength) -> None:
        self._info = info
        self._train = train
        self._target = target

    def operations(
        self,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,  # noqa: ARG002 - Determined's
        auto_ack: bool = True,  # noqa: ARG002, FBT001, FBT002 - Determined's
    ) -> Iterator[SearcherOperation]:
        """Yield the run's length, unless it was reached; a promotion is another run."""
        length = self._info.length
        if length is not None and not self._target.reached:
            yield SearcherOperation(length, self._info, self._train, self._target)

    def acknowledge_out_of_ops(self) -> None:
        """Do nothing: a run that exits at its length has finished."""

    def get_configured_units(self) -> Unit | None:
        """Return the unit of the length; None: a metric that the script reports."""
        name = self._info.time_metric.upper()
        return Unit[name] if name in Unit.__members__ else None


class ProfilerContext:
    """Without effect: the agent always measures CPU, memory, disk, network and GPU."""

    def __init__(self, distributed: DistributedContext) -> None:
        self._tells = distributed.is_chief

    def on(self, sampling_interval: int = 1, samples_per_report: int = 10) -> None:
        """Log that the agent measures already, at its own interval."""
        if self._tells:
            self._tells = False
            log().info(
                "the agent measures the machine in any case: see the group `system`",
                asked_interval_s=sampling_interval,
                asked_samples=samples_per_report,
            )

    def off(self) -> None:
        """Do nothing: the agent goes on measuring."""

"""What a run says of itself: training reports, validations, and which of these is the best.

All ranks make these calls, since what they know is brought together; the chief's words count.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rung.torch.callback import Callback, listening
from rung.torch.data import TrainingData
from rung.torch.evaluate import evaluate
from rung.torch.pace import Pace
from rung.torch.plan import Plan, Progress
from rung.torch.state import Parts
from rung.torch.waiting import GROUP, DataWait


class Telling:
    """Reports and validates for the loop."""

    def __init__(
        self, parts: Parts, plan: Plan, hooks: Sequence[Callback], data: TrainingData
    ) -> None:
        self._parts = parts
        self._plan = plan
        self._hooks = hooks
        self._data = data
        self._context = parts.context
        self._core = parts.context.core
        self.pace: Final = Pace(parts.ranks)
        self.wait: Final = DataWait()
        each = listening(hooks, "on_training_workload_end")
        self._workloads: Final = any(parts.ranks.allgather(each))
        parts.averages.each = self._workloads

    @property
    def _progress(self) -> Progress:
        return self._parts.progress

    def report(self) -> None:
        """Report the means over the batches since the last report."""
        batches, ranks = self._progress.batches, self._parts.ranks
        means: dict[str, Any] = dict(self._parts.averages.take(ranks))
        self.pace.tell(batches)
        reducers = self._parts.context.reducers
        means |= reducers.reduced(training=True)
        reducers.reset(training=True)
        if means:
            self._core.train.report_training_metrics(batches, means)
        if waited := self.wait.take():
            self._core.train.report_metrics(GROUP, batches, waited)
        if self._workloads:
            means, each = ranks.broadcast(means), self._parts.averages.batches()
            for hook in self._hooks:
                hook.on_training_workload_end(dict(means), each)

    def validate(self) -> bool:
        """Validate and report; return whether the policy wants a checkpoint of this."""
        plan, progress = self._plan, self._progress
        for hook in self._hooks:
            hook.on_validation_start()
        self._context.reducers.reset(training=False)
        metrics = evaluate(self._parts.trial, self._context, self._hooks)
        metrics |= self._context.reducers.reduced(training=False)
        self._context.reducers.reset(training=False)
        for hook in self._hooks:
            hook.on_validation_end(metrics)
        counted = {
            "batches": progress.batches,
            "epochs": self._epochs_done(),
            "records": progress.records,
        }
        self._core.train.report_validation_metrics(progress.batches, counted | metrics)
        progress.validated_at = progress.moment()
        better = self._better(metrics)
        return plan.policy == "all" or (plan.policy == "best" and better)

    def _better(self, metrics: Mapping[str, Any]) -> bool:
        """Return whether this is the trial's best validation so far, and remember it."""
        if self._plan.metric is None or self._plan.metric not in metrics:
            return True
        value, best = float(metrics[self._plan.metric]), self._progress.best
        if math.isnan(value):
            return False
        if best is None or (value < best if self._plan.smaller_is_better else value > best):
            self._progress.best = value
            return True
        return False

    def _epochs_done(self) -> float:
        progress = self._progress
        part = progress.batch_in_epoch / self._data.length if self._data.length else 0.0
        if self._data.length is None:
            config = self._core.info.trial.config
            records = int(config.get("records_per_epoch") or 0)
            part = min(progress.records_in_epoch / records, 1.0) if records else 0.0
        return progress.epochs + part

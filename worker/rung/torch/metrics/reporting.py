"""Reporting: training reports and validations.

All ranks make these calls, since their metrics are reduced to one; the chief reports.
"""

from collections.abc import Sequence
from typing import Any, Final

from rung.torch.callback import Callback, listening
from rung.torch.checkpoint.state import Parts
from rung.torch.data.training_data import TrainingData
from rung.torch.metrics.evaluation import evaluate
from rung.training.data_wait import GROUP, DataWait
from rung.training.plan import Plan, Progress


class Reporter:
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
        self._context.straggler.log(batches)
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
        """Validate and report; return whether the policy requires a checkpoint."""
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
        return plan.validated(progress, metrics)

    def _epochs_done(self) -> float:
        progress = self._progress
        part = progress.batch_in_epoch / self._data.length if self._data.length else 0.0
        if self._data.length is None:
            config = self._core.info.trial.config
            records = int(config.get("records_per_epoch") or 0)
            part = min(progress.records_in_epoch / records, 1.0) if records else 0.0
        return progress.epochs + part

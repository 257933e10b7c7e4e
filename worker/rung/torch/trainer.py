"""The training loop.

A batch at a time: train, step the schedulers, then report, validate and checkpoint as the plan
says. A checkpoint is made after everything else of its moment, so a run that restores it goes on
with the next batch. At the run's length the trainer validates, checkpoints and leaves; asked to
leave before that, it checkpoints and leaves; a run that finds itself at its length already was
killed on its way out, so it validates once more, for the report may have been lost.

Several ranks run this loop in step: what it decides by (periods, lengths, the reduced metrics, the
chief's word on leaving) is the same on all of them. The chief reports and stores.

Every generator is set back to its state at the checkpoint once all else is in place, as the very
last thing before the loop.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch

from rung.torch import exactness, ranks, rng, state
from rung.torch.averages import TrainingAverages, named
from rung.torch.context import StepMode, TrialContext
from rung.torch.data import TrainingData
from rung.torch.evaluate import evaluate
from rung.torch.pace import Pace
from rung.torch.plan import Plan, Progress, due, make_plan
from rung.torch.saving import Saver
from rung.torch.trial import Trial
from rung.torch.unit import TrainUnit
from rung.torch.waiting import GROUP, DataWait


class Trainer:
    """Trains a trial."""

    def __init__(self, trial: Trial, context: TrialContext) -> None:
        self._trial = trial
        self._context = context

    def fit(  # noqa: PLR0913 - each has a default; Determined's names
        self,
        *,
        max_length: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        checkpoint_period: TrainUnit | None = None,
        reporting_period: TrainUnit | None = None,
        checkpoint_policy: str | None = None,
        latest_checkpoint: str | None = None,
        step_zero_validation: bool | None = None,
    ) -> None:
        """Train until the run's length, or until asked to leave.

        What is not given comes from the experiment file: `min_validation_period`,
        `min_checkpoint_period`, `scheduling_unit` (how many batches make one training report,
        100), `checkpoint_policy` (best), `perform_initial_validation` (false). A length given
        here and one of the searcher's both hold: the first that is reached ends the run.

        Args:
            max_length: train no longer than this, counted from the trial's beginning.
            validation_period: how often to validate; always at the length.
            checkpoint_period: how often to checkpoint; always before leaving.
            reporting_period: how many batches to average for one training report.
            checkpoint_policy: `best`, `all` or `none`: whether validations are followed by one.
            latest_checkpoint: what to go on from, where the platform does not say.
            step_zero_validation: whether to validate before the first batch.
        """
        plan = make_plan(
            self._context.core.info.trial,
            max_length=max_length,
            validation_period=validation_period,
            checkpoint_period=checkpoint_period,
            reporting_period=reporting_period,
            checkpoint_policy=checkpoint_policy,
            step_zero_validation=step_zero_validation,
        )
        _Loop(self._trial, self._context, plan).run(latest_checkpoint)


class _Loop:
    """One run: its parts, how far it is, and what happens next."""

    def __init__(self, trial: Trial, context: TrialContext, plan: Plan) -> None:
        self._trial = trial
        self._context = context
        self._core = context.core
        self._plan = plan
        self._parts = state.Parts(
            trial=trial,
            context=context,
            callbacks=trial.build_callbacks(),
            averages=TrainingAverages(),
            progress=Progress(),
        )
        self._hooks = list(self._parts.callbacks.values())
        self._data = TrainingData(
            trial.build_training_data_loader(),
            self._core.seed,
            context.distributed,
            context.get_hparams().get("global_batch_size"),
        )
        self._pace = Pace(context.distributed)
        self._data_state: dict[str, Any] | None = None
        self._saver = Saver(self._core.checkpoint, self._hooks, context.distributed)
        self._wait = DataWait()
        self._stored_at: tuple[int, int] | None = None
        self._restored = False
        self._beginning = ranks.new_generators(context.distributed, self._core.seed, 0)

    @property
    def _progress(self) -> Progress:
        return self._parts.progress

    def run(self, checkpoint_id: str | None) -> None:
        """Train from wherever the trial is to wherever this run ends."""
        for model in self._context.models:
            model.train()
        if self._context.distributed.is_chief:
            exactness.tell(self._trial, self._context.device, self._data.parts)
        found = self._core.checkpoint.latest or checkpoint_id
        generators = self._restore(found) if found else self._beginning
        for hook in self._hooks:
            hook.on_trial_startup(self._progress.batches, found)
        if self._plan.complete(self._progress):
            if generators is not None:
                rng.restore(generators)
            self._validate()
        else:
            self._train(generators)
        self._saver.finish()
        for hook in self._hooks:
            hook.on_trial_shutdown()

    def _train(self, generators: rng.Generators | None) -> None:
        for hook in self._hooks:
            hook.on_training_start()
        if not self._restored and self._plan.initial_validation:
            self._validate()
        leaving = self._core.preempt.should_preempt()
        while not leaving:
            progress = self._progress
            self._data.start(progress.epochs, self._data_state, progress.batch_in_epoch)
            self._data_state = None
            if generators is not None:
                rng.restore(generators)
                generators = None
            if progress.batch_in_epoch == 0:
                for hook in self._hooks:
                    hook.on_training_epoch_start(progress.epochs)
            leaving = self._epoch()

    def _epoch(self) -> bool:
        """Train to the end of the epoch; return whether to leave."""
        epoch = self._progress.epochs
        while self._progress.epochs == epoch:
            before = copy.copy(self._progress)
            self._pace.begin(self._context)
            try:
                batch = self._wait.batch(self._data.next)
            except StopIteration:
                if self._progress.batch_in_epoch == 0:
                    raise RuntimeError("the training data loader yields no batches") from None
                self._end_epoch()
            else:
                self._step(batch)
                self._wait.trained()
                if self._progress.batch_in_epoch == self._data.length:
                    self._data.finish()
                    self._end_epoch()
            if self._after(before):
                return True
        return False

    def _step(self, batch: Any) -> None:
        progress, context, data = self._progress, self._context, self._data
        records = data.records
        if records is None:
            records = self._trial.get_batch_length(batch)
        context.weight = data.share * context.distributed.size
        with exactness.operators_named():
            metrics = self._trial.train_batch(
                context.to_device(batch), progress.epochs, progress.batches
            )
        self._pace.end(context)
        self._parts.averages.add(named(metrics), data.share)
        progress.batches += 1
        progress.batch_in_epoch += 1
        progress.records += records
        progress.records_in_epoch += records
        self._core.train.heartbeat()
        context.batches = progress.batches
        context.step_schedulers(StepMode.STEP_EVERY_BATCH, progress.batches)

    def _end_epoch(self) -> None:
        progress = self._progress
        for hook in self._hooks:
            hook.on_training_epoch_end(progress.epochs)
        progress.epochs += 1
        progress.batch_in_epoch = progress.records_in_epoch = 0
        self._context.epoch = progress.epochs
        self._context.step_schedulers(StepMode.STEP_EVERY_EPOCH, progress.epochs)

    def _after(self, before: Progress) -> bool:
        """Report, validate and checkpoint what is due; return whether to leave."""
        self._saver.poll()
        plan, progress = self._plan, self._progress
        complete = plan.complete(progress)
        stop = self._context.distributed.broadcast(self._context.get_stop_requested())
        leaving = complete or stop or self._core.preempt.should_preempt()
        validate = complete or due(plan.validation_period, before, progress)
        if validate or due(plan.reporting_period, before, progress):
            self._report()
        wanted = due(plan.checkpoint_period, before, progress)
        if validate and progress.validated_at != progress.moment():
            wanted = self._validate() or wanted
            leaving = leaving or self._core.preempt.should_preempt()
        if wanted or leaving:
            self._checkpoint()
        return leaving

    def _report(self) -> None:
        means = self._parts.averages.take(self._context.distributed)
        self._pace.tell(self._progress.batches)
        if means:
            self._core.train.report_training_metrics(self._progress.batches, means)
        if waited := self._wait.take():
            self._core.train.report_metrics(GROUP, self._progress.batches, waited)

    def _validate(self) -> bool:
        """Validate and report; return whether the policy wants a checkpoint of this."""
        plan, progress = self._plan, self._progress
        for hook in self._hooks:
            hook.on_validation_start()
        metrics = evaluate(self._trial, self._context)
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

    def _checkpoint(self) -> None:
        """Copy the state of this moment and have it stored behind training."""
        progress = self._progress
        if self._stored_at == progress.moment():
            return
        self._stored_at = progress.moment()
        metadata = {"framework": f"torch-{torch.__version__}", "epochs": progress.epochs}
        self._saver.save(self._capture, metadata, progress.batches)

    def _capture(self) -> state.Captured:
        data = self._data
        return state.capture(self._parts, data.state(), fetched=data.share > 0)

    def _restore(self, checkpoint_id: str) -> rng.Generators | None:
        """Take a checkpoint in; return the generators' states, to be set last.

        A checkpoint of another trial gives only its model, optimizers and schedulers.
        """
        with self._core.checkpoint.restore_files(checkpoint_id) as files:
            captured = state.read(files, len(self._context.models))
            for hook in self._hooks:
                hook.on_checkpoint_load_start(captured.training)
            state.apply(self._parts, captured)
            info = self._core.info
            if info.managed and captured.trainer["trial_id"] != info.trial.trial_id:
                return self._beginning
            state.apply_moment(self._parts, captured)
            if self._context.distributed.is_chief:
                exactness.tell_differences(captured.trainer.get("machine"))
        self._parts.progress = state.progress_of(captured)
        self._context.batches = self._progress.batches
        self._context.epoch = self._progress.epochs
        self._data_state = captured.training["data"]
        self._stored_at = self._progress.moment()
        self._restored = True
        return state.generators_of(self._parts, captured)

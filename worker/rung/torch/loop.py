"""The training loop.

A batch at a time: train, step the schedulers, then report, validate and checkpoint as the plan
says. A checkpoint is made after everything else of its moment, so a run that restores it goes on
with the next batch. At the run's length the trainer validates, checkpoints and leaves; asked to
leave before that, it checkpoints and leaves; a run that finds itself at its length already was
killed on its way out, so it validates once more, for the report may have been lost. One whose
checkpoint says that the trial asked to end leaves before its first batch.

Several ranks run this loop in step: what it decides by (periods, lengths, the reduced metrics, the
chief's word on leaving) is the same on all of them. The chief reports and stores.

Every generator is set back to its state at the checkpoint once all else is in place, as the very
last thing before the loop.
"""

import copy
from typing import Any

import torch

from rung.torch import compiling, exactness, ranks, rng, state
from rung.torch.averages import TrainingAverages, named
from rung.torch.completeness import demand_complete
from rung.torch.context import TrialContext
from rung.torch.data import TrainingData
from rung.torch.files import read
from rung.torch.normalising import too_few_named
from rung.torch.plan import Plan, Progress, due
from rung.torch.saving import Saver
from rung.torch.telling import Telling
from rung.torch.trial import Trial


class Loop:
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
        self._telling = Telling(self._parts, plan, self._hooks, self._data)
        self._say_where()
        self._data_state: dict[str, Any] | None = None
        self._saver = Saver(self._core.checkpoint, self._hooks, context.distributed, context.board)
        self._stored_at: tuple[int, int] | None = None
        self._restored = False
        self._beginning = ranks.new_generators(context.distributed, self._core.seed, 0)

    @property
    def _progress(self) -> Progress:
        return self._parts.progress

    def run(self, checkpoint_id: str | None) -> None:
        """Train from wherever the trial is to wherever this run ends.

        Raises:
            IncompleteCheckpoint: the trial trains what its checkpoints would lack.
        """
        demand_complete(self._trial, self._context)
        for model in self._context.models:
            model.train()
        if self._context.distributed.is_chief:
            exactness.tell(self._trial, self._context.where, self._data.parts)
        found = self._core.checkpoint.latest or checkpoint_id
        generators = self._restore(found) if found else self._beginning
        for hook in self._hooks:
            hook.on_trial_startup(self._progress.batches, found)
        if self._plan.complete(self._progress):
            if generators is not None:
                rng.restore(generators)
            self._telling.validate()
        else:
            if self._context.distributed.is_chief:
                self._context.profiling.start()
            try:
                self._train(generators)
            finally:
                self._context.profiling.stop()
        self._saver.finish()
        for hook in self._hooks:
            hook.on_trial_shutdown()

    def _train(self, generators: rng.Generators | None) -> None:
        for hook in self._hooks:
            hook.on_training_start()
        if not self._restored and self._plan.initial_validation:
            self._telling.validate()
        leaving = self._restored and self._asked_to_stop()
        leaving = leaving or self._core.preempt.should_preempt()
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
            self._telling.pace.begin(self._context)
            try:
                batch = self._telling.wait.batch(self._data.next)
            except StopIteration:
                if self._progress.batch_in_epoch == 0:
                    raise RuntimeError("the training data loader yields no batches") from None
                self._end_epoch()
            else:
                self._step(batch)
                self._telling.wait.trained()
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
        moved = context.to_device(batch)
        with (
            exactness.operators_named(),
            compiling.obstacles_named(),
            too_few_named(records, context.distributed.size),
            context.precision.autocast(),
            context.reducers.paused(when=data.share == 0),
        ):
            metrics = self._trial.train_batch(moved, progress.epochs, progress.batches)
        context.precision.end_batch()
        self._telling.pace.end(context)
        self._parts.averages.add(named(metrics), data.share)
        progress.batches += 1
        progress.batch_in_epoch += 1
        progress.records += records
        progress.records_in_epoch += records
        self._core.train.heartbeat()
        self._say_where()
        context.schedulers.after_batch(progress.batches)
        context.profiling.step()

    def _end_epoch(self) -> None:
        progress = self._progress
        for hook in self._hooks:
            hook.on_training_epoch_end(progress.epochs)
        progress.epochs += 1
        progress.batch_in_epoch = progress.records_in_epoch = 0
        self._say_where()
        self._context.schedulers.after_epoch(progress.epochs)

    def _say_where(self) -> None:
        """Let the context know how far training is."""
        context, progress = self._context, self._progress
        context.batches, context.epoch = progress.batches, progress.epochs
        context.batch_in_epoch, context.epoch_length = progress.batch_in_epoch, self._data.length

    def _after(self, before: Progress) -> bool:
        """Report, validate and checkpoint what is due; return whether to leave."""
        self._saver.poll()
        plan, progress = self._plan, self._progress
        complete = plan.complete(progress)
        leaving = self._asked_to_stop() or complete or self._core.preempt.should_preempt()
        validate = complete or plan.validates(before, progress)
        if validate or due(plan.reporting_period, before, progress):
            self._telling.report()
        wanted = due(plan.checkpoint_period, before, progress)
        if validate and progress.validated_at != progress.moment():
            wanted = self._telling.validate() or wanted
            leaving = self._asked_to_stop() or leaving or self._core.preempt.should_preempt()
        if leaving:
            self._context.profiling.stop()  # its traces belong to the last checkpoint
        if wanted or leaving:
            self._checkpoint()
        return leaving

    def _asked_to_stop(self) -> bool:
        """Return whether the trial asked to end, and have the next checkpoint say so."""
        context = self._context
        asked: bool = context.distributed.broadcast(context.get_stop_requested())
        self._progress.stop_requested = asked
        return asked

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

        A checkpoint of another experiment gives only its model, optimizers and schedulers. One of
        another trial of this experiment, whose weights the search has this trial go on with, gives
        all that it holds of the training, but not that trial's event files.
        """
        with self._core.checkpoint.restore_files(checkpoint_id) as files:
            captured = read(files, len(self._context.models))
            for hook in self._hooks:
                hook.on_checkpoint_load_start(captured.training)
            built = exactness.learning_rates(self._context.optimizers)
            state.apply(self._parts, captured)
            if self._context.distributed.is_chief:
                exactness.tell_rates(built, exactness.learning_rates(self._context.optimizers))
            info = self._core.info
            trained_by: str = captured.trainer["trial_id"]
            if info.managed and trained_by.rpartition(".")[0] != info.trial.experiment_id:
                return self._beginning
            state.apply_moment(self._parts, captured)
            if self._context.distributed.is_chief:
                exactness.tell_differences(captured.trainer.get("machine"))
                if not info.managed or trained_by == info.trial.trial_id:
                    self._context.board.bring_back(files)
        self._parts.progress = state.progress_of(captured)
        if self._progress.stop_requested:
            self._context.set_stop_requested(stop_requested=True)
        self._say_where()
        self._data_state = captured.training["data"]
        self._stored_at = self._progress.moment()
        self._restored = True
        return state.generators_of(self._parts, captured)

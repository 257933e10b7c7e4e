"""The training loop.

For each batch: train, step the schedulers, then report, validate and checkpoint by the plan. A
checkpoint is taken after everything else of a step, so a run that restores it continues with the
next batch. At the run's length the loop validates, checkpoints and exits; asked to exit before
that, it checkpoints and exits. A run that is at its length from the start was killed before it had
exited, so it validates again, because the report may have been lost. One whose checkpoint has the
trial's request to end exits before its first batch.

Several ranks run this loop in lockstep: everything on which it decides (periods, lengths, the
reduced metrics, the chief's control messages) is the same on all of them. The chief reports and
stores.

The generators are restored to their states in the checkpoint last, after everything else.
"""

import copy
from typing import Any, NamedTuple

import torch

from rung.torch import determinism, torch_compile
from rung.torch.batchnorm_errors import too_few_named
from rung.torch.checkpoint import state
from rung.torch.checkpoint.completeness import demand_complete
from rung.torch.checkpoint.files import read
from rung.torch.checkpoint.saver import Saver
from rung.torch.checkpoint.untracked_state import UntrackedState
from rung.torch.context import TrialContext
from rung.torch.data.training_data import TrainingData
from rung.torch.metrics.reporting import Reporter
from rung.torch.trial import Trial
from rung.training import batch_size, rng
from rung.training.averages import TrainingAverages, named
from rung.training.checkpoint_schedule import CheckpointSchedule
from rung.training.continuation import continues, log_place
from rung.training.determinism import log_differences
from rung.training.plan import Plan, Progress, due
from rung.training.states import rank_states


class _Control(NamedTuple):
    """The control message of a step: what the chief decides for all ranks, sent once."""

    stop: bool
    """The trial asked to end."""
    checkpoint: bool
    """A checkpoint is due by the schedule."""
    stored: bool
    """The previous checkpoint is stored, and the callbacks were not notified yet."""


class Loop:
    """The training loop of one run."""

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
            batch_size.wanted_by(context.get_hparams()),
        )
        self._reporter = Reporter(self._parts, plan, self._hooks, self._data)
        self._say_where()
        self._data_state: dict[str, Any] | None = None
        self._saver = Saver(self._core.checkpoint, self._hooks, context.distributed, context.board)
        self._stored_at: tuple[int, int] | None = None
        self._final = False
        self._schedule = CheckpointSchedule(
            automatic=plan.automatic and self._core.info.managed and self._is_chief
        )
        self._restored = False
        self._beginning = rank_states.new_generators(context.distributed, self._core.seed, 0)

    @property
    def _is_chief(self) -> bool:
        return self._context.distributed.is_chief

    @property
    def _progress(self) -> Progress:
        return self._parts.progress

    def run(self, checkpoint_id: str | None) -> None:
        """Train from the trial's current state to the end of this run.

        Raises:
            IncompleteCheckpoint: the trial trains objects that are not in its checkpoints, or has
                changed what a run that resumes could not set again.
            NotPlain: a state contains values that checkpoints cannot.
        """
        demand_complete(self._trial, self._context)
        state.demand_storable(self._parts, self._data.parts)
        for model in self._context.models:
            model.train()
        self._context.training_began = True
        self._untracked = UntrackedState(self._parts, self._data.dataset, self._data.samplers)
        size = self._data.batch_size
        if size is not None:
            size = size._replace(accumulated=self._context.aggregation_frequency)
        batch_size.log(self._core, size, each_own=self._data.shards_itself)
        if self._is_chief:
            determinism.tell(self._trial, self._context.where, self._data.parts)
        found = self._core.checkpoint.download_latest() or checkpoint_id
        generators = self._restore(found) if found else self._beginning
        for hook in self._hooks:
            hook.on_trial_startup(self._progress.batches, found)
        if self._plan.complete(self._progress):
            if generators is not None:
                rng.restore(generators)
            self._reporter.validate()
        else:
            if self._is_chief:
                self._context.profiling.start()
            try:
                self._train(generators)
            finally:
                self._context.profiling.stop()
        self._saver.finish()
        for hook in self._hooks:
            hook.on_trial_shutdown()
        self._context.training_began = False

    def _train(self, generators: rng.Generators | None) -> None:
        for hook in self._hooks:
            hook.on_training_start()
        if not self._restored and self._plan.initial_validation:
            self._reporter.validate()
        if self._restored:
            _, leaving = self._control()
        else:
            leaving = self._core.preempt.should_preempt()
        while not leaving:
            progress = self._progress
            self._untracked.rewind_data()
            self._untracked.begin_epoch()
            self._data.start(progress.epochs, self._data_state, progress.batch_in_epoch)
            self._data_state = None
            self._untracked.forward_data()
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
            self._context.straggler.begin()
            try:
                batch = self._reporter.wait.batch(self._data.next)
            except StopIteration:
                if self._progress.batch_in_epoch == 0:
                    raise RuntimeError("the training data loader yields no batches") from None
                self._end_epoch()
            else:
                self._step(batch)
                self._reporter.wait.trained()
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
            determinism.operators_named(),
            torch_compile.obstacles_named(),
            too_few_named(records, context.distributed.size),
            context.precision.autocast(),
            context.reducers.paused(when=data.share == 0),
        ):
            metrics = self._trial.train_batch(moved, progress.epochs, progress.batches)
        context.precision.end_batch()
        context.straggler.end()
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
        """Copy the progress to the context."""
        context, progress = self._context, self._progress
        context.batches, context.epoch = progress.batches, progress.epochs
        context.batch_in_epoch, context.epoch_length = progress.batch_in_epoch, self._data.length

    def _after(self, before: Progress) -> bool:
        """Report, validate and checkpoint if due; return whether to exit."""
        plan, progress = self._plan, self._progress
        complete = plan.complete(progress)
        control, leaving = self._control(leaving=complete)
        validate = complete or plan.validates(before, progress)
        if validate or due(plan.reporting_period, before, progress):
            self._reporter.report()
        wanted = control.checkpoint or due(plan.checkpoint_period, before, progress)
        if validate and progress.validated_at != progress.moment():
            wanted = self._reporter.validate() or wanted
            control, leaving = self._control(leaving=leaving)
            wanted = wanted or control.checkpoint
        if leaving:
            self._context.profiling.stop()  # its traces belong to the last checkpoint
        if wanted or (leaving and not (self._final and self._stored_at)):
            self._checkpoint()
        return leaving

    def _control(self, *, leaving: bool = False) -> tuple[_Control, bool]:
        """Return the chief's control message, and whether to exit; one message to the ranks.

        The trial's request to end becomes part of the next checkpoint.

        Args:
            leaving: whether the run ends here in any case: then a preemption is not acknowledged.
        """
        preempt = self._core.preempt
        due = self._schedule.due(storing=self._core.checkpoint.storing)
        own = _Control(self._context.get_stop_requested(), due, self._saver.stored)
        preempted, control = preempt.agree(own, auto_ack=not (leaving or own.stop))
        self._schedule.tell(self._core.train, self._progress.batches)
        self._progress.stop_requested = control.stop
        if control.stored:
            self._saver.notify()
        leaving = leaving or control.stop
        if preempted and not leaving:
            self._final = preempt.final
        return control, leaving or preempted

    def _checkpoint(self) -> None:
        """Copy the current state and have it stored in the background."""
        progress = self._progress
        if self._stored_at == progress.moment():
            return
        self._stored_at = progress.moment()
        metadata = {"framework": f"torch-{torch.__version__}", "epochs": progress.epochs}
        self._saver.finish()
        if self._context.device.type == "cuda":
            torch.cuda.synchronize(self._context.device)  # so that queued steps are not measured
        with self._schedule.holding():
            self._saver.save(self._capture, metadata, progress.batches)

    def _capture(self) -> state.Captured:
        data = self._data
        self._untracked.demand_structure()
        captured = state.capture(self._parts, data.state(), fetched=data.share > 0)
        between_epochs = self._progress.batch_in_epoch == 0
        captured.untracked = self._untracked.capture(captured, between_epochs=between_epochs)
        return captured

    def _restore(self, checkpoint_id: str) -> rng.Generators | None:
        """Restore a checkpoint; return the generators' states, to be set last.

        Of a checkpoint of another experiment, only model, optimizers and schedulers are restored,
        unless this experiment continues that one.
        Of one of another trial of this experiment, from which the search has this trial continue,
        everything is restored except that trial's TensorBoard files.
        """
        with self._core.checkpoint.restore_files(checkpoint_id) as files:
            captured = read(files, len(self._context.models))
            for hook in self._hooks:
                hook.on_checkpoint_load_start(captured.training)
            info = self._core.info
            trained_by: str = captured.trainer["trial_id"]
            other = trained_by.rpartition(".")[0] != info.trial.experiment_id
            foreign = info.managed and other and not continues(self._core)
            if not foreign:
                self._untracked.apply_structure(captured.untracked)
            built = determinism.learning_rates(self._context.optimizers)
            state.apply(self._parts, captured)
            if self._is_chief:
                determinism.log_rates(built, determinism.learning_rates(self._context.optimizers))
            if foreign:
                return self._beginning
            self._untracked.apply()
            state.apply_moment(self._parts, captured)
            if self._is_chief:
                log_differences(captured.trainer.get("machine"), determinism.machine())
                if not info.managed or trained_by == info.trial.trial_id:
                    self._context.board.restore(files)
        self._parts.progress = state.progress_of(captured)
        log_place(self._core, self._progress.batches, checkpoint_id)
        if self._progress.stop_requested:
            self._context.set_stop_requested(stop_requested=True)
        self._say_where()
        self._data_state = captured.training["data"]
        self._stored_at = self._progress.moment()
        self._restored = True
        return state.generators_of(self._parts, captured)

"""The callback: a trial in `transformers.Trainer`'s own loop.

A step of this loop is a step of the optimizer, and so is a batch of the experiment file. What the
trainer saves is the checkpoint, file by file: `model.safetensors`, `optimizer.pt`, `scheduler.pt`,
`trainer_state.json`; and beside it `rung.json`, with what exact resuming needs of each slot.

`Trainer.train` is called by `Callback.train`, with the checkpoint from which to go on.

The trainer calls the hooks of a beginning in every run: `on_train_begin`, and `on_epoch_begin`
also for an epoch that goes on in its middle. What they do was done before the checkpoint. So
weights, optimizer, schedule and the states of callbacks are set behind the last of those hooks;
those of an epoch that does begin run on what the checkpoint holds.

On several slots every rank has this callback and a trainer, in step with the others; the chief
reports and stores. All of this stands on public interfaces. What makes a run resume bit for bit,
and several slots train the curve of one, is in `rung.transformers.exact`.
"""

import contextlib
import functools
import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import transformers
from transformers.trainer_callback import ExportableState

from rung import core
from rung.torch import determinism, external_loop
from rung.torch.checkpoint import model_changes
from rung.torch.checkpoint.model_changes import ModelChanges
from rung.training.batch_size import BatchSize, Given, batch_size
from rung.training.errors import NotResumable
from rung.training.introspection.seams import exact
from rung.training.progress import ProgressTracker, begin_training
from rung.training.states import callback_states, rank_states
from rung.training.states.callback_states import CallbackStates
from rung.transformers import exportable_states
from rung.transformers.shared_data import refuse_shared_already
from rung.transformers.trainer_changes import TrainerChanges
from rung.transformers.weights import (
    demand_readable,
    demand_storable,
    load_optimizer,
    load_weights,
)

if TYPE_CHECKING:
    from rung.transformers.exact import ExactTraining

FILE: Final = "rung.json"
_PICKLED: Final = "training_args.bin"
"""A file of the trainer that only pickle reads."""
_GENERATORS: Final = "rng_state"
"""What the names of the trainer's files with its generators begin with."""


class Callback(transformers.TrainerCallback):  # type: ignore[misc]  # may not be installed
    """Reports, checkpoints, resumes, and leaves when asked to.

    Args:
        run: what `init` returned.
    """

    def __init__(self, run: core.Context) -> None:
        super().__init__()
        self._tracker = ProgressTracker(
            run, f"transformers-{transformers.__version__}", determinism.machine
        )
        self._ranks = run.distributed
        self._exact = _add_on(self._tracker)
        self._trainer: Any = None
        self._size = BatchSize(0)
        self._found: Path | None = None
        self._states: CallbackStates | None = None
        self._changes: ModelChanges | None = None
        self._around: TrainerChanges | None = None
        self._prefixes: list[str] = []
        self._asked = False
        self._saving_since = 0.0
        self._put_off = False
        self._between = False
        self._evaluating = False
        self._at_start = False
        self._left = False

    def train(self, trainer: Any) -> Any:
        """Call `trainer.train()`, from the trial's newest checkpoint on.

        Returns:
            What it returns; None where the trial is as long as this run should make it, or a
            callback stopped it.

        Raises:
            NotResumable: an argument of the trainer stands in the way.
        """
        args, run = trainer.args, self._tracker.run
        _check(args, self._ranks)
        refuse_shared_already(trainer, self._ranks)
        begin_training(run, "rung.train()")
        field = "per_device_train_batch_size"
        steps = args.gradient_accumulation_steps
        self._size = batch_size(
            run, args.train_batch_size, field, Given.PER_SLOT, accumulated=steps
        )
        self._trainer = trainer
        self._at_start = args.eval_on_start
        args.restore_callback_states_from_checkpoint = False  # done here, on the same objects
        if self._exact is not None:
            self._exact.take_over(trainer)
        self._states = self._states_of(trainer)
        self._stand_around(trainer.callback_handler)
        fetch = trainer.get_batch_samples
        trainer.get_batch_samples = functools.partial(self._fetch, fetch)
        trainer.evaluate = functools.partial(self._evaluate, trainer.evaluate)
        with self._tracker.found() as found:
            pass  # what is found stays there until the run is closed
        if found is None:
            return trainer.train()
        folder, own = found
        if not own:
            load_weights(trainer.model, folder)
            return trainer.train()
        return self._resume(trainer, folder)

    def _resume(self, trainer: Any, folder: Path) -> Any:
        kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if self._tracker.complete or kept.get("stopped"):
            load_weights(trainer.model, folder)
            self._tracker.report_validation_again()
            self._ranks.barrier()  # the chief removes the files when it leaves
            return None
        self._found = folder
        nothing = contextlib.nullcontext()
        with nothing if self._exact is None else self._exact.resuming(kept):
            return trainer.train(resume_from_checkpoint=str(folder))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """See to it that this is the trainer's training that Rung knows of."""
        if self._trainer is None:
            raise NotResumable("call callback.train(trainer) in place of trainer.train()")

    def _stand_around(self, handler: Any) -> None:
        """Take the place of what calls the hooks of a beginning of all callbacks."""
        train, epoch = handler.on_train_begin, handler.on_epoch_begin

        def train_began(*arguments: Any, **named: Any) -> Any:
            self._changes = self._changes_of(self._trainer)
            self._around = TrainerChanges(self._trainer, self._tracker.run)
            exportable_states.demand_storable(self._trainer)
            if not (self._trainer.args.fsdp or self._trainer.args.deepspeed):
                demand_storable(self._trainer)
            control = train(*arguments, **named)
            assert self._states is not None
            self._set()
            self._states.demand_complete()
            if self._exact is not None:
                self._exact.train_began()
            return control

        def epoch_began(*arguments: Any, **named: Any) -> Any:
            if self._exact is not None:
                self._exact.epoch_begins()
            control = epoch(*arguments, **named)
            if self._tracker.progress.batch_in_epoch:
                self._set()
            self._found = None
            if self._around is not None:
                self._around.begin_epoch()
            if self._exact is not None:
                self._exact.epoch_began()
            return control

        handler.on_train_begin, handler.on_epoch_begin = train_began, epoch_began

    def _set(self) -> None:
        """Set what the checkpoint holds that hooks may have changed."""
        if self._found is None:
            return
        trainer, folder = self._trainer, self._found
        assert self._states is not None
        assert self._changes is not None
        assert self._around is not None
        if not (trainer.args.fsdp or trainer.args.deepspeed):  # with files of their own
            load_weights(trainer.model, folder)
            load_optimizer(trainer, folder)
        self._changes.apply(folder)
        self._around.set(model_changes.read(folder))
        kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
        own = rank_states.share_of(self._ranks, kept).own
        self._around.generators.set((own or {}).get("own_generators", {}))
        exportable_states.restore(trainer)
        self._states.read(folder / callback_states.FILE)

    def _states_of(self, trainer: Any) -> CallbackStates:
        """Return the states of the callbacks that do not export theirs; the library's own do."""
        silent = [
            each
            for each in trainer.callback_handler.callbacks
            if each is not self
            and not type(each).__module__.startswith("transformers.")
            and not isinstance(each, ExportableState)
        ]

        def of_loop() -> list[Any]:
            model, optimizer = trainer.model, trainer.optimizer
            weights = [*model.parameters(), *model.buffers()]
            optimizers = [optimizer, getattr(optimizer, "optimizer", None), trainer.lr_scheduler]
            parts = [trainer.accelerator, trainer.args, trainer.state, trainer.control]
            others = [self._tracker.run, *trainer.callback_handler.callbacks]
            if trainer.train_dataset is not None:
                others.append(trainer.train_dataset)
            return [trainer, *others, *parts, *optimizers, *model.modules(), *weights]

        return CallbackStates(callback_states.named(silent), of_loop)

    def _changes_of(self, trainer: Any) -> ModelChanges:
        """Return what training changes in the model beside its state."""

        def of_loop() -> list[Any]:
            callbacks, schedule = trainer.callback_handler.callbacks, trainer.lr_scheduler
            return [self._tracker.run, trainer, trainer.args, *callbacks, schedule]

        optimizers = [it for it in (trainer.optimizer,) if it is not None]
        return ModelChanges(trainer.model, optimizers, of_loop)

    def _changed(self) -> dict[str, Any]:
        """Return what has changed beside the states.

        Raises:
            NotResumable: a change cannot be stored, or not be set again.
        """
        assert self._changes is not None
        assert self._around is not None
        within = self._tracker.progress.batch_in_epoch > 0
        around = self._around.capture(within=within)
        return self._changes.capture(groups=False) | around

    def on_step_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Count, and say what is due: logging, validating, checkpointing, leaving."""
        tracker = self._tracker
        self._between = False
        if self._left:
            return
        records = self._size.together * args.gradient_accumulation_steps
        tracker.batch_done(state.global_step - tracker.progress.batches, records)
        if self._ends_epoch(state):
            self._put_off, control.should_evaluate = control.should_evaluate, False
            control.should_save = self._asked = False
        else:
            self._mark(control)

    def on_substep_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Say that the run makes progress, also where a step is many batches."""
        self._tracker.alive()
        self._between = True  # also where the pass of a stream ends before the step

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Say that the run makes progress where it evaluates."""
        self._tracker.alive()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Do as at a step; an epoch that the trainer stops within is not counted."""
        if self._left:
            control.should_evaluate = control.should_save = False
        else:
            control.should_evaluate |= self._put_off
            self._put_off = False
            if self._ends_epoch(state) or not control.should_training_stop:
                self._tracker.epoch_done()
            self._mark(control)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_more: Any
    ) -> None:
        """Report what is logged in the training: by the trainer, and by the script.

        What an evaluation finds is reported as a validation, and what the trainer sums up at the
        end is none of a step.
        """
        found = logs or {}
        if self._left or "train_runtime" in found:
            return
        metrics = {name: value for name, value in found.items() if _is_metric(name, value)}
        if "loss" in metrics:
            self._tracker.report(metrics)
            return
        own = {n: v for n, v in metrics.items() if not n.startswith(tuple(self._prefixes))}
        if own:
            self._tracker.run.train.report_training_metrics(self._tracker.progress.batches, own)

    def on_save(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Take the folder that the trainer saved as the checkpoint."""
        if self._left or not self._asked:
            return
        self._asked = False
        saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        assert self._around is not None
        changes, drawing = self._changed(), self._around.generators.states()
        take = functools.partial(self._take, saved, changes, drawing)
        self._tracker.store(take, self._saving_since)
        if self._tracker.leaving:
            self._left = control.should_training_stop = True

    def _fetch(self, original: Any, *arguments: Any, **named: Any) -> Any:
        """Fetch the batches of a step, and measure how long the trainer waits for them."""
        assert self._around is not None
        with self._around.fetching():
            return self._tracker.fetched(functools.partial(original, *arguments, **named))

    def _evaluate(self, original: Any, *arguments: Any, **named: Any) -> Any:
        """Report what the trainer's own evaluation gives, of all data sets together.

        Its hook is called for each data set, and for evaluations that a script makes by itself.
        """
        control = self._trainer.control
        by_itself = not arguments and not named.keys() - {"ignore_keys"}
        wanted = control.should_evaluate or self._at_start
        theirs = self._evaluating or not by_itself or not wanted
        self._prefixes.append(f"{_prefix(*arguments, **named)}_")
        try:
            if theirs:
                return original(*arguments, **named)
            self._evaluating, self._at_start = True, False
            try:
                found = original(*arguments, **named)
            finally:
                self._evaluating = False
        finally:
            self._prefixes.pop()
        if not self._left:
            if found is None:
                raise NotResumable(
                    f"{type(self._trainer).__name__}.evaluate() returns nothing: let it return "
                    "metrics"
                )
            self._tracker.validated({n: v for n, v in found.items() if _is_metric(n, v)})
            self._keep(self._trainer.control)
        return found

    def _mark(self, control: Any) -> None:
        """Ask the trainer for what is due at this moment."""
        tracker = self._tracker
        if tracker.report_due:
            control.should_log = True
        if tracker.validation_due and self._trainer.eval_dataset is not None:
            control.should_evaluate = True
        if not control.should_evaluate:
            self._keep(control)

    def _keep(self, control: Any) -> None:
        """Ask the trainer to save; the saved folder becomes the checkpoint in `on_save`.

        It has no gradients that wait for more batches, so between steps nothing is saved.
        """
        tracker = self._tracker
        wanted = tracker.leaving or tracker.checkpoint_due
        if wanted:
            exportable_states.demand_storable(self._trainer)
        self._saving_since = time.monotonic()
        control.should_save = self._asked = wanted and (tracker.complete or not self._between)

    def _ends_epoch(self, state: Any) -> bool:
        """Return whether this was the last step of its epoch, after which much else happens."""
        return float(state.epoch).is_integer()

    def _take(
        self, saved: Path, changes: dict[str, Any], drawing: dict[str, Any], folder: Path
    ) -> None:
        own: dict[str, Any] = {"stopped": _stopped(self._trainer), "own_generators": drawing}
        left_out: tuple[str, ...] = (_PICKLED,)
        if self._exact is not None:
            own |= self._exact.state()
            left_out += (_GENERATORS,)  # among what is its own
        kept = external_loop.gathered(self._ranks, own)  # comes when all ranks have saved
        if self._ranks.is_chief:
            demand_readable(saved)
            for file in saved.iterdir():
                if not file.name.startswith(left_out):
                    shutil.move(file, folder / file.name)
            model_changes.write(changes, folder)
            if self._states is not None:
                self._states.write(folder / callback_states.FILE)
        if self._ranks.is_local_chief:
            shutil.rmtree(saved)
        (folder / FILE).write_text(json.dumps(kept), encoding="utf-8")


def _add_on(tracker: ProgressTracker) -> "ExactTraining | None":
    if not exact(tracker.run):
        return None
    from rung.transformers.exact import ExactTraining  # noqa: PLC0415 - checks what it needs

    return ExactTraining(tracker)


def _check(args: Any, ranks: core.DistributedContext) -> None:
    if ranks.size > 1 and args.world_size != ranks.size:
        raise NotResumable(
            f"the trainer sees {args.world_size} process(es) of {ranks.size}: make "
            "TrainingArguments inside `with rt.init()`"
        )
    for name in ("fsdp", "deepspeed"):
        if ranks.size > 1 and getattr(args, name):
            raise NotResumable(
                f"TrainingArguments({name}=…) does not go with resources.slots_per_trial: "
                f"{ranks.size} here; leave it out"
            )
    if args.save_only_model:
        raise NotResumable(
            "TrainingArguments(save_only_model=True) saves no optimizer; leave it out"
        )
    if args.ignore_data_skip:
        raise NotResumable(
            "TrainingArguments(ignore_data_skip=True) would train on the first batches of a "
            "resumed epoch twice; leave it out"
        )
    if args.save_strategy == "best":
        raise NotResumable(
            'TrainingArguments(save_strategy="best") saves only there, and a run could not leave: '
            "leave it out; `checkpoint_policy: best` in the experiment file keeps the best"
        )
    if args.load_best_model_at_end:
        raise NotResumable(
            "TrainingArguments(load_best_model_at_end=True): Rung keeps the best checkpoint; "
            "leave it out and load that one"
        )


def _stopped(trainer: Any) -> bool:
    """Return whether a callback stops the training for good, and not for its number of steps."""
    state = trainer.state
    return bool(trainer.control.should_training_stop) and state.global_step < state.max_steps


def _prefix(
    _data: Any = None,
    _ignored: Any = None,
    metric_key_prefix: str = "eval",
    **_named: Any,
) -> str:
    """Return what the names of an evaluation's metrics begin with, by its arguments."""
    return metric_key_prefix


def _is_metric(name: str, value: Any) -> bool:
    timed = ("_runtime", "_per_second")
    return isinstance(value, int | float) and not name.endswith(timed) and name != "epoch"

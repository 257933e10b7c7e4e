"""The callback: a trial in `transformers.Trainer`'s own loop.

A step of this loop is a step of the optimizer, and so is a batch of the experiment file. What the
trainer saves is the checkpoint, file by file: `model.safetensors`, `optimizer.pt`, `scheduler.pt`,
`trainer_state.json`; and beside it `rung.json`, with what exact resuming needs of each slot.

`Trainer.train` is called by `Callback.train`, with the checkpoint from which to go on.

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

from rung import core
from rung.torch import determinism, external_loop
from rung.training.batch_size import BatchSize, Given, batch_size
from rung.training.errors import NotResumable
from rung.training.progress import ProgressTracker, begin_training
from rung.training.seams import exact
from rung.transformers import callback_states
from rung.transformers.shared_data import refuse_shared_already
from rung.transformers.weights import load_weights

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
        self._resumes = False
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
        self._resumes = True
        nothing = contextlib.nullcontext()
        with nothing if self._exact is None else self._exact.resuming(kept):
            return trainer.train(resume_from_checkpoint=str(folder))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Give the trainer's other callbacks, and the trainer, back what they kept."""
        if self._trainer is None:
            raise NotResumable("call callback.train(trainer) in place of trainer.train()")
        if self._resumes:
            callback_states.restore(self._trainer)
        if self._exact is not None:
            self._exact.train_began()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Begin an epoch, or go on in it."""
        if self._exact is not None:
            self._exact.epoch_began()

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
        """Report what the trainer logs of its training."""
        metrics = {name: value for name, value in (logs or {}).items() if _is_metric(name, value)}
        if not self._left and "loss" in metrics:
            self._tracker.report(metrics)

    def on_save(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Take the folder that the trainer saved as the checkpoint."""
        if self._left or not self._asked:
            return
        self._asked = False
        saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._tracker.store(lambda folder: self._take(saved, folder), self._saving_since)
        if self._tracker.leaving:
            self._left = control.should_training_stop = True

    def _fetch(self, original: Any, *arguments: Any, **named: Any) -> Any:
        """Fetch the batches of a step, and measure how long the trainer waits for them."""
        return self._tracker.fetched(functools.partial(original, *arguments, **named))

    def _evaluate(self, original: Any, *arguments: Any, **named: Any) -> Any:
        """Report what the trainer's own evaluation gives, of all data sets together.

        Its hook is called for each data set, and for evaluations that a script makes by itself.
        """
        control = self._trainer.control
        by_itself = not arguments and not named.keys() - {"ignore_keys"}
        wanted = control.should_evaluate or self._at_start
        if self._evaluating or not by_itself or not wanted:
            return original(*arguments, **named)
        self._evaluating, self._at_start = True, False
        try:
            found = original(*arguments, **named)
        finally:
            self._evaluating = False
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
        self._saving_since = time.monotonic()
        control.should_save = self._asked = wanted and (tracker.complete or not self._between)

    def _ends_epoch(self, state: Any) -> bool:
        """Return whether this was the last step of its epoch, after which much else happens."""
        return float(state.epoch).is_integer()

    def _take(self, saved: Path, folder: Path) -> None:
        own: dict[str, Any] = {"stopped": _stopped(self._trainer)}
        left_out: tuple[str, ...] = (_PICKLED,)
        if self._exact is not None:
            own |= self._exact.state()
            left_out += (_GENERATORS,)  # among what is its own
        kept = external_loop.gathered(self._ranks, own)  # comes when all ranks have saved
        if self._ranks.is_chief:
            for file in saved.iterdir():
                if not file.name.startswith(left_out):
                    shutil.move(file, folder / file.name)
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


def _is_metric(name: str, value: Any) -> bool:
    timed = ("_runtime", "_per_second")
    return isinstance(value, int | float) and not name.endswith(timed) and name != "epoch"

"""The callback: a trial in `transformers.Trainer`'s own loop.

A step of this loop is a step of the optimizer, and so is a batch of the experiment file. What the
trainer saves is the checkpoint, file by file: `model.safetensors`, `optimizer.pt`, `scheduler.pt`,
`trainer_state.json`; and beside it `rung.json`: every generator at the moment and at the epoch's
beginning, and the losses since the trainer last logged, which it forgets itself.

`Trainer.train` is called by `Callback.train`, which tells it what to go on from.

On several slots every rank has this callback and a trainer, in step with the others; the chief
reports, and stores with `rung.json` what each rank has of its own.
"""

import functools
import json
import shutil
from pathlib import Path
from typing import Any, Final

import transformers

from rung import core
from rung.loop import Course, exactness, once, ranks
from rung.loop.course import generators_from_json, generators_to_json
from rung.loop.errors import CannotFollow
from rung.torch import rng
from rung.transformers.resuming import resuming
from rung.transformers.seeded import Seeds, seed_data, seed_evaluations
from rung.transformers.shared import SharedTrainer

FILE: Final = "rung.json"
_PICKLED: Final = ("rng_state", "training_args.bin")
"""Files of the trainer that only pickle reads."""


class Callback(transformers.TrainerCallback):  # type: ignore[misc]  # may not be installed
    """Reports, checkpoints, resumes, and leaves when asked to.

    Args:
        run: what `init` returned.
    """

    def __init__(self, run: core.Context) -> None:
        super().__init__()
        self._course = Course(run, f"transformers-{transformers.__version__}")
        self._ranks = run.distributed
        self._trainer: Any = None
        self._shared: SharedTrainer | None = None
        self._new: rng.Generators | None = None
        self._kept: dict[str, Any] | None = None
        self._begun: rng.Generators | None = None
        self._seeds: Final = Seeds(run.seed)
        self._asked = False
        self._put_off = False
        self._between = False
        self._left = False

    def train(self, trainer: Any) -> Any:
        """Call `trainer.train()`, from the trial's newest checkpoint on.

        Returns:
            What it returns; None where the trial is as long as this run should make it, or a
            callback stopped it.

        Raises:
            CannotFollow: an argument of the trainer stands in the way.
        """
        _check(trainer.args)
        once.begin(self._course.run, "rung.train()")
        exactness.tell(self._course.run, trainer.args.device)
        self._trainer = trainer
        trainer._evaluate = self._evaluate
        seed_data(trainer, self._seeds)
        seed_evaluations(trainer, self._course.run.seed, lambda: self._course.progress.batches)
        if self._ranks.size > 1:
            self._shared = SharedTrainer(trainer, self._course)
        self._new = ranks.new_generators(self._course.run, 0)
        self._measure(trainer)
        with self._course.found() as found:
            pass  # what is found stays there until the run is closed
        if found is None:
            return trainer.train()
        folder, own = found
        if not own:
            trainer._load_from_checkpoint(str(folder))
            return trainer.train()
        kept = self._share(json.loads((folder / FILE).read_text(encoding="utf-8")))
        if self._course.complete or kept.get("stopped"):
            trainer._load_from_checkpoint(str(folder))
            self._course.validated_again()
            self._ranks.barrier()  # the chief removes the files when it leaves
            return None
        self._kept = kept
        with resuming(trainer, self._course.progress, self._arrive):
            return trainer.train(resume_from_checkpoint=str(folder))

    def on_train_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Prepare the ranks, and give the trainer back the losses that it had not logged yet."""
        if self._trainer is None:
            raise CannotFollow("call callback.train(trainer) in place of trainer.train()")
        if self._shared is not None:
            self._shared.settle()
        if self._kept is not None:
            trainer = self._trainer
            trainer._tr_loss += self._kept["loss"]
            trainer._total_loss_scalar = self._kept["total"]
            trainer._globalstep_last_logged = self._kept["logged_at"]

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Remember the generators, or set them to what they were when the epoch began."""
        kept = self._kept
        self._seeds.begin(self._course.progress.epochs)
        if self._shared is not None:
            done = self._course.progress.batch_in_epoch
            self._shared.begin(done * args.gradient_accumulation_steps)
        if kept is None:
            if self._new is not None:
                rng.restore(self._new)
                self._new = None
            self._begun = rng.capture()
            return
        self._new = None
        within = self._course.progress.batch_in_epoch > 0
        self._begun = generators_from_json(kept["begun" if within else "now"])
        rng.restore(self._begun)

    def on_step_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Count, and say what is due: logging, validating, checkpointing, leaving."""
        course = self._course
        self._between = False
        if self._left:
            return
        records = self._trainer.get_total_train_batch_size(args)
        if self._shared is not None:
            records = self._shared.batch_size * args.gradient_accumulation_steps
        course.batch_done(state.global_step - course.progress.batches, records)
        if self._ends_epoch(state):
            self._put_off, control.should_evaluate = control.should_evaluate, False
            control.should_save = self._asked = False
        else:
            self._mark(control)

    def on_substep_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Say that the run makes progress, also where a step is many batches."""
        self._course.alive()
        self._between = True  # also where the pass of a stream ends before the step

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Say that the run makes progress where it evaluates."""
        self._course.alive()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Do as at a step."""
        if self._left:
            control.should_evaluate = control.should_save = False
        else:
            control.should_evaluate |= self._put_off
            self._put_off = False
            self._course.epoch_done()
            self._mark(control)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_more: Any
    ) -> None:
        """Report what the trainer logs of its training."""
        metrics = {name: value for name, value in (logs or {}).items() if _is_metric(name, value)}
        if not self._left and "loss" in metrics:
            self._course.report(metrics)

    def on_save(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Take the folder that the trainer saved as the checkpoint."""
        if self._left or not self._asked:
            return
        self._asked = False
        saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._course.store(lambda folder: self._take(saved, folder))
        if self._course.leaving:
            self._left = control.should_training_stop = True

    def _measure(self, trainer: Any) -> None:
        """Have the course measure how long the trainer waits for its batches."""
        course, shared = self._course, self._shared
        fetch = functools.partial(type(trainer).get_batch_samples, trainer)
        if shared is not None:
            fetch = functools.partial(shared.batch_samples)

        def get_batch_samples(*arguments: Any) -> Any:
            return course.fetched(functools.partial(fetch, *arguments))

        trainer.get_batch_samples = get_batch_samples

    def _evaluate(self, *arguments: Any, **named: Any) -> Any:
        """Report what the trainer's own evaluation gives, of all data sets together.

        Its hook is called for each data set, and for evaluations that a script makes by itself.
        """
        trainer = self._trainer
        found = type(trainer)._evaluate(trainer, *arguments, **named)
        if not self._left:
            if found is None:
                raise CannotFollow(
                    f"{type(trainer).__name__}.evaluate() returns nothing: let it return metrics"
                )
            self._course.validated({n: v for n, v in found.items() if _is_metric(n, v)})
            self._keep(trainer.control)
        return found

    def _mark(self, control: Any) -> None:
        """Ask the trainer for what is due at this moment."""
        course = self._course
        if course.report_due:
            control.should_log = True
        if course.validation_due and self._trainer.eval_dataset is not None:
            control.should_evaluate = True
        if not control.should_evaluate:
            self._keep(control)

    def _keep(self, control: Any) -> None:
        """Ask the trainer to save; the saved folder becomes the checkpoint in `on_save`.

        It has no gradients that wait for more batches, so between steps nothing is saved.
        """
        course = self._course
        wanted = course.checkpoint_due or course.leaving
        control.should_save = self._asked = wanted and (course.complete or not self._between)

    def _ends_epoch(self, state: Any) -> bool:
        """Return whether this was the last step of its epoch, after which much else happens."""
        return float(state.epoch).is_integer()

    def _take(self, saved: Path, folder: Path) -> None:
        trainer, begun = self._trainer, self._begun
        assert begun is not None
        own = {
            "now": generators_to_json(rng.capture()),
            "begun": generators_to_json(begun),
            "loss": float(trainer._tr_loss),
            "total": float(trainer._total_loss_scalar),
            "logged_at": int(trainer._globalstep_last_logged),
            "stopped": _stopped(trainer),
        }
        kept = ranks.gathered(self._ranks, own)  # comes when all ranks have saved
        if self._ranks.is_chief:
            for file in saved.iterdir():
                if not file.name.startswith(_PICKLED):
                    shutil.move(file, folder / file.name)
        if self._ranks.is_local_chief:
            shutil.rmtree(saved)
        (folder / FILE).write_text(json.dumps(kept), encoding="utf-8")

    def _share(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Return what this rank goes on from; on another number of ranks than before, its part."""
        said = kept.get("ranks") or [kept]
        share = ranks.share_of(self._ranks, kept)
        if len(said) == self._ranks.size and share.own is not None:
            return share.own
        mean = sum(each["loss"] for each in said) / len(said)
        found = (share.own or said[0]) | {"loss": mean}
        new = ranks.new_generators(self._course.run, self._course.progress.batches)
        if new is not None:
            found |= {"now": generators_to_json(new), "begun": generators_to_json(new)}
        return found

    def _arrive(self, _checkpoint: str | None) -> None:
        """Set the generators: the position in the data is reached."""
        assert self._kept is not None
        rng.restore(generators_from_json(self._kept["now"]))
        self._kept = None


def _check(args: Any) -> None:
    if args.save_only_model:
        raise CannotFollow(
            "TrainingArguments(save_only_model=True) saves no optimizer; leave it out"
        )
    if args.ignore_data_skip:
        raise CannotFollow(
            "TrainingArguments(ignore_data_skip=True) would train on the first batches of a "
            "resumed epoch twice; leave it out"
        )
    if args.save_strategy == "best":
        raise CannotFollow(
            'TrainingArguments(save_strategy="best") saves only there, and a run could not leave: '
            "leave it out; `checkpoint_policy: best` in the experiment file keeps the best"
        )
    if args.load_best_model_at_end:
        raise CannotFollow(
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

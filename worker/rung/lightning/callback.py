"""The callback: a trial in Lightning's own loop.

A moment's order is: train the batch, report, validate, checkpoint. Lightning validates after
`on_train_batch_end`, where it does, so what is due at such a batch waits for `on_validation_end`;
and what is due at the last batch of an epoch waits for `on_train_epoch_end`.

The checkpoint is Lightning's own file, `lightning.ckpt`; what is Rung's lies in it as the state
of this callback. It is read without unpickling anything but tensors and plain values.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import lightning
import torch
from lightning.pytorch.callbacks import Callback as LightningCallback

from rung import core
from rung.lightning.loader import CannotFollow, ExactLoader
from rung.loop import Course
from rung.loop.course import generators_from_json, generators_to_json
from rung.torch import rng
from rung.torch.averages import TrainingAverages
from rung.torch.data import records_of
from rung.torch.plain import plain

FILE: Final = "lightning.ckpt"


class Callback(LightningCallback):  # type: ignore[misc]  # Lightning may not be installed
    """Reports, checkpoints, resumes, and leaves when asked to.

    Args:
        run: what `init` returned.
    """

    def __init__(self, run: core.Context) -> None:
        super().__init__()
        self._course = Course(run, f"lightning-{lightning.__version__}")
        self._averages = TrainingAverages()
        self._path: Path | None = None
        self._weights: Path | None = None
        self._generators: rng.Generators | None = None
        self._sums: dict[str, Any] = {}
        self._searched = False
        self._storing = False
        self._left = False

    @property
    def resume(self) -> dict[str, Any]:
        """What to give `Trainer.fit` so that it goes on from the trial's newest checkpoint."""
        self._search()
        return {"ckpt_path": self._path, "weights_only": True}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Put the training data in order; take in what Lightning does not."""
        if stage != "fit":
            return
        self._search()
        if self._path is not None and trainer.ckpt_path not in {None, self._path}:
            raise CannotFollow(f"fit(ckpt_path={trainer.ckpt_path}): give fit(**callback.resume)")
        if self._weights is not None:
            kept = torch.load(self._weights, map_location="cpu", weights_only=True)
            pl_module.load_state_dict(kept["state_dict"])
        source = trainer.fit_loop._data_source
        trainer.fit_loop._data_source = _Source(source, self._exact)
        if self._course.complete:
            self._course.validated_again()
            self._left = trainer.should_stop = True

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """See to it that a checkpoint that is there was taken in."""
        if self._path is not None and trainer.ckpt_path is None:
            raise CannotFollow(
                "this trial has a checkpoint, but fit() did not get it: call "
                "trainer.fit(…, **callback.resume)"
            )

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report, checkpoint and leave, as is due."""
        course = self._course
        if self._left:
            return
        course.batch_done(1, records_of(batch) or 0)
        self._add_sums(trainer)
        self._averages.add(_step_metrics(trainer, outputs))
        if course.report_due:
            course.report(self._averages.take())
        last = self._is_last(trainer)
        if course.complete or (last and course.epochs == course.progress.epochs + 1):
            trainer.should_stop = True  # Lightning validates before it stops
        if not last and not self._validates(trainer):
            self._keep_and_leave(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the validation; within an epoch, checkpoint and leave, as is due."""
        if trainer.sanity_checking or self._left:
            return
        last = self._is_last(trainer)
        if last:
            self._course.epoch_done()
        self._course.validated(_logged(trainer))
        if not last:
            self._keep_and_leave(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Checkpoint and leave at the end of an epoch, as is due."""
        course = self._course
        if self._left:
            return
        if course.progress.batch_in_epoch:
            course.epoch_done()
        self._keep_and_leave(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """A script that ends by itself leaves a checkpoint, too."""
        if not self._left:
            self._store(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return what belongs to the moment."""
        return {
            "generators": generators_to_json(rng.capture()),
            "averages": self._averages.state_dict(),
            "sums": self._sums,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what belongs to the moment; generators are set before the next batch."""
        self._generators = generators_from_json(state_dict["generators"])
        self._averages.load_state_dict(state_dict["averages"])
        self._sums = state_dict["sums"]

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """See to it that what Rung keeps can be loaded without running code."""
        if self._storing:
            plain(checkpoint, "checkpoint")

    def _search(self) -> None:
        if self._searched:
            return
        self._searched = True
        with self._course.found() as found:
            if found is not None:
                folder, own = found
                self._path, self._weights = (folder / FILE, None) if own else (None, folder / FILE)

    def _exact(self, loader: Any) -> ExactLoader:
        return ExactLoader(loader, self._course.run.seed, self._arrive)

    def _arrive(self) -> None:
        if self._generators is not None:
            rng.restore(self._generators)
            self._generators = None

    def _keep_and_leave(self, trainer: Any) -> None:
        leaving = self._course.leaving
        if leaving or self._course.checkpoint_due:
            self._store(trainer)
        if leaving:
            self._left = trainer.should_stop = True
            trainer.fit_loop.epoch_loop._skip_next_val = True

    def _store(self, trainer: Any) -> None:
        self._sums = _sums(trainer) if self._course.progress.batch_in_epoch else {}
        self._storing = True
        try:
            self._course.store(lambda folder: trainer.save_checkpoint(folder / FILE))
        finally:
            self._storing = False
            self._sums = {}

    def _is_last(self, trainer: Any) -> bool:
        return bool(trainer.fit_loop.epoch_loop.batch_progress.is_last_batch)

    def _validates(self, trainer: Any) -> bool:
        loop = trainer.fit_loop
        return bool(
            trainer.enable_validation and loop.epoch_loop._should_check_val_fx(loop._data_fetcher)
        )

    def _add_sums(self, trainer: Any) -> None:
        """Put back what Lightning had summed up for the epoch before the checkpoint.

        Its own checkpoints lack that; a sum is there to add to once its name was logged again.
        """
        sums, self._sums = self._sums, {}
        for name, kept in sums.items():
            metric = trainer.fit_loop._results.get(name)
            if metric is None:
                continue
            reduce = torch.maximum if metric.meta.is_max_reduction else torch.add
            reduce = torch.minimum if metric.meta.is_min_reduction else reduce
            metric.value = reduce(metric.value, kept["value"])
            if "size" in kept:
                metric.cumulated_batch_size = metric.cumulated_batch_size + kept["size"]


class _Source:
    """Where Lightning gets the training data from: what the user gave, put in order."""

    def __init__(self, inner: Any, exact: Any) -> None:
        self._inner = inner
        self._exact = exact

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def dataloader(self) -> Any:
        """Return the loader."""
        loader = self._inner.dataloader()
        return loader if isinstance(loader, ExactLoader) else self._exact(loader)


def _sums(trainer: Any) -> dict[str, Any]:
    """Return what Lightning has summed up for the metrics of the epoch so far."""
    found: dict[str, Any] = {}
    for name, metric in trainer.fit_loop.epoch_loop._results.items():
        if metric.is_tensor and metric.meta.on_epoch and not metric.has_reset:
            found[name] = {"value": metric.value}
            if metric.meta.is_mean_reduction:
                found[name]["size"] = metric.cumulated_batch_size
    return found


def _step_metrics(trainer: Any, outputs: Any) -> dict[str, Any]:
    """Return what the training step logged, and its loss."""
    metrics = dict(_logged(trainer))
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if loss is not None:
        metrics.setdefault("loss", loss)
    return metrics


def _logged(trainer: Any) -> dict[str, Any]:
    found: dict[str, Any] = trainer._logger_connector.metrics["callback"]
    return found

"""The callback: a trial in Lightning's own loop.

A moment's order is: train the batch, report, validate, checkpoint. The hooks of this callback
count and report; what is kept, and when a run leaves, is decided behind all hooks, by `Moments`.

The checkpoint is Lightning's own file, `lightning.ckpt`; what is Rung's lies in it as the state
of this callback. It is read without unpickling anything but tensors and plain values.

On several slots every rank has this callback, in step with the others: each trains its part of
the batch, and the chief reports and stores what all of them say.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lightning
import torch
from lightning.pytorch.callbacks import Callback as LightningCallback

from rung import core
from rung.lightning import gradients, logged, strategy
from rung.lightning.loader import ExactLoader
from rung.lightning.moments import Calls, Moments
from rung.lightning.source import Source, Validation
from rung.loop import Course, exactness, ranks
from rung.loop.course import generators_from_json, generators_to_json
from rung.loop.errors import CannotFollow
from rung.torch import rng
from rung.torch.averages import TrainingAverages, merged
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
        self._ranks = run.distributed
        self._several = run.distributed.size > 1
        self._loader: ExactLoader | None = None
        self._results: list[logged.SharedResults] = []
        self._validation: Validation | None = None
        self._moments: Moments | None = None
        self._undo: Callable[[], None] | None = None
        self._path: Path | None = None
        self._weights: Path | None = None
        self._generators: rng.Generators | None = None
        self._gradients: dict[str, torch.Tensor] = {}
        self._sums: dict[str, Any] = {}
        self._to_add: list[dict[str, Any]] = []
        self._measured: dict[str, Any] = {}
        self._to_measure: list[dict[str, Any]] | None = None
        self._searched = False
        self._storing = False
        if self._several:
            strategy.offer(run)

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
        exactness.tell(self._course.run, trainer.strategy.root_device)
        source = trainer.fit_loop._data_source
        trainer.fit_loop._data_source = Source(source, functools.partial(self._exact, trainer))
        if self._several:
            self._share(trainer)
        self._moments = Moments(
            trainer,
            self._course,
            self,
            Calls(
                begun=functools.partial(self._measure, trainer),
                trained=functools.partial(self._trained, trainer),
                store=functools.partial(self._store, trainer),
            ),
        )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """See to it that a checkpoint that is there was taken in."""
        if self._path is not None and trainer.ckpt_path is None:
            raise CannotFollow(
                "this trial has a checkpoint, but fit() did not get it: call "
                "trainer.fit(…, **callback.resume)"
            )

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Weigh the batch by this rank's part of it."""
        known = self._loader is not None and self._loader.records is not None
        if self._course.counts_records and not known and records_of(batch) is None:
            raise CannotFollow(
                "a length or a period of the experiment file is in records, but those of a batch "
                f"of type {type(batch).__name__} cannot be counted: count in batches or epochs, "
                "or have the loader give tensors, or a dict, list or tuple of them"
            )
        if not self._several or self._loader is None:
            return
        share = self._loader.share
        trainer.strategy.weight = share * self._ranks.size
        if self._course.progress.batch_in_epoch == 0:
            self._results[0].records = 0
        if share:
            self._results[0].records += records_of(batch) or 0
        else:
            self._undo = logged.not_counting(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch, and report as is due."""
        course = self._course
        records = self._loader.records if self._loader is not None else None
        course.batch_done(1, records_of(batch) or 0 if records is None else records)
        share = self._loader.share if self._loader is not None else 1.0
        self._averages.add(logged.of_step(trainer, outputs), share)
        if course.report_due:
            course.report(self._averages.take(self._ranks))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validate what the chief has: running means differ from rank to rank."""
        if self._several and _is_fitting(trainer):
            ranks.share_buffers(pl_module)
            self._results[1].records = 0

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_more: Any
    ) -> None:
        """Say that the run makes progress; count records, by which ranks count."""
        self._course.alive()
        if self._several and _is_fitting(trainer):
            self._results[1].records += records_of(batch) or 0

    def on_test_batch_end(self, *_all: Any) -> None:
        """Say that the run makes progress where the script tests what was trained."""
        self._course.alive()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the validation."""
        if _is_fitting(trainer) and not trainer.sanity_checking:
            self._course.validated(logged.logged(trainer))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Have all ranks look at the epoch's metrics at once, so that one may look alone after."""
        if self._several:
            logged.logged(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the trainer as the script made it."""
        if self._validation is not None:
            self._validation.give_back(trainer)
            self._validation = None
        if self._moments is not None and stage == "fit":
            self._moments.give_back()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """A script that ends by itself leaves a checkpoint, too."""
        if self._moments is not None and not self._moments.left:
            self._store(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return what belongs to the moment."""
        own: dict[str, Any] = {
            "generators": generators_to_json(rng.capture()),
            "averages": self._averages.state_dict(),
            "sums": self._sums,
            "measured": self._measured,
        }
        if self._several:
            own["records"] = self._results[0].records if self._results else 0
        return ranks.gathered(self._ranks, own)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what belongs to the moment; generators are set before the next batch."""
        share = ranks.share_of(self._ranks, state_dict)
        if share.own is not None:
            self._generators = generators_from_json(share.own["generators"])
            self._averages.load_state_dict(merged([each["averages"] for each in share.to_add]))
            if self._results:
                self._results[0].records = share.own.get("records", 0)
        else:
            self._generators = ranks.new_generators(
                self._course.run, self._course.progress.batches
            )
        self._to_add = [each["sums"] for each in share.to_add]
        self._to_measure = [each.get("measured", {}) for each in share.to_add]

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep gradients; see to it that what Rung keeps can be loaded without running code."""
        if self._storing:
            checkpoint[gradients.KEY] = gradients.added_up(pl_module)
            plain(checkpoint, "checkpoint")

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Take gradients; they are set before the next batch, as Lightning clears them before."""
        self._gradients = checkpoint.get(gradients.KEY, {})

    def _search(self) -> None:
        if self._searched:
            return
        self._searched = True
        with self._course.found() as found:
            if found is not None:
                folder, own = found
                self._path, self._weights = (folder / FILE, None) if own else (None, folder / FILE)

    def _share(self, trainer: Any) -> None:
        """Have the ranks share batches, validations and metrics."""
        if not isinstance(trainer.strategy, strategy.Together):
            raise CannotFollow(
                f"Trainer(strategy={type(trainer.strategy).__name__}): with resources."
                f"slots_per_trial: {self._ranks.size}, leave strategy, devices and num_nodes out; "
                "Rung sets them"
            )
        loop = trainer.fit_loop.epoch_loop
        self._results = [
            logged.SharedResults(self._ranks, training=True),
            logged.SharedResults(self._ranks, training=False),
        ]
        loop._results, loop.val_loop._results = self._results
        trainer._accelerator_connector.use_distributed_sampler = False
        self._validation = Validation(trainer, self._course)
        self._results[1].whole = self._validation.whole
        loop.val_loop._data_source = Source(loop.val_loop._data_source, self._validation.shared)
        if self._generators is None:
            self._generators = ranks.new_generators(self._course.run, 0)

    def _exact(self, trainer: Any, loader: Any) -> Any:
        arrive = functools.partial(self._arrive, trainer)
        self._loader = ExactLoader(loader, self._course, arrive)
        return self._loader

    def _arrive(self, trainer: Any) -> None:
        gradients.give_back(trainer.lightning_module, self._gradients)
        self._gradients = {}
        if self._generators is not None:
            rng.restore(self._generators)
            self._generators = None

    def _measure(self, trainer: Any) -> None:
        """Have torchmetrics objects go on, before the start of an epoch may reset them."""
        if self._to_measure is not None:
            logged.measure(trainer, self._to_measure)
            self._to_measure = None

    def _trained(self, trainer: Any) -> None:
        """Set right what the hooks of a batch have logged, those of the module among them."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        to_add, self._to_add = self._to_add, []
        for sums in to_add:
            logged.add_sums(trainer, sums)

    def _store(self, trainer: Any) -> None:
        self._sums = logged.sums(trainer) if self._course.progress.batch_in_epoch else {}
        self._measured = logged.measured(trainer)
        self._storing = True
        try:
            self._course.store(lambda folder: trainer.save_checkpoint(folder / FILE))
        finally:
            self._storing = False
            self._sums, self._measured = {}, {}


def _is_fitting(trainer: Any) -> bool:
    """Return whether this is `fit`, not a script's own `validate`, which is its own affair."""
    return bool(trainer.state.fn == "fit")

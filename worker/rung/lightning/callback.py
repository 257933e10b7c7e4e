"""The callback: a trial in Lightning's own loop.

The checkpoint is Lightning's own file, `lightning.ckpt`; what is Rung's lies in it as the state
of this callback. It is read without unpickling anything but tensors and plain values.

On several slots every rank has this callback, in step with the others: each trains its part of
the batch, and the chief reports and stores what all of them say. All of this stands on public
interfaces. What makes a run resume bit for bit within an epoch, and the metrics of several slots
those of one, is in `rung.lightning.exact`.

Lightning calls `on_train_start` in every run, when everything is loaded. What that hook does was
done before the checkpoint, so weights, optimizers, schedulers and the states of callbacks are set
once more behind it, as they are when every hook of loading has run: a callback that averages
weights has its average in the checkpoint, and puts the trained ones back. Callbacks without a
`state_dict` of their own are kept by their attributes.
"""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lightning
import torch
from lightning.pytorch.callbacks import Callback as LightningCallback
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch.utils.data import DataLoader, Dataset

from rung import core
from rung.lightning import best_checkpoints, gradients, loader_changes, strategy
from rung.lightning.epoch_validations import EpochValidations
from rung.lightning.hyperparameters import leave_out_objects
from rung.lightning.loader_changes import LoaderChanges
from rung.lightning.resumable_loader import ResumableLoader
from rung.lightning.sharded_validation import ShardedValidation
from rung.lightning.step_metrics import LoggedSince, mean_of_ranks, with_loss
from rung.torch import determinism, external_loop
from rung.torch.checkpoint import model_changes
from rung.torch.checkpoint.model_changes import ModelChanges
from rung.torch.checkpoint.object_changes import DataChanges, ObjectChanges, demand_same
from rung.torch.checkpoint.own_generators import OwnGenerators
from rung.torch.checkpoint.tensor_file import demand_storable, plain
from rung.torch.data.training_data import records_of
from rung.torch.determinism import is_kept
from rung.training import rng
from rung.training.averages import TrainingAverages, merged
from rung.training.errors import NotResumable
from rung.training.introspection.seams import exact
from rung.training.progress import ProgressTracker, begin_training
from rung.training.states import callback_states, rank_states
from rung.training.states.callback_states import CallbackStates

if TYPE_CHECKING:
    from rung.lightning.exact import ExactTraining

FILE: Final = "lightning.ckpt"
_OF_MODULES: Final = frozenset(vars(lightning.LightningModule())) - {"training"}
"""Attributes of modules that are Lightning's own."""
_OF_DATA_MODULES: Final = frozenset(vars(lightning.LightningDataModule()))
_SETTINGS: Final = ("accumulate_grad_batches", "gradient_clip_algorithm", "gradient_clip_val")
"""Attributes of a trainer that callbacks may change, and each step looks at."""


class Callback(LightningCallback):  # type: ignore[misc]  # Lightning may not be installed
    """Reports, checkpoints, resumes, and leaves when asked to.

    Args:
        run: what `init` returned.
    """

    def __init__(self, run: core.Context) -> None:
        super().__init__()
        self._tracker = ProgressTracker(
            run, f"lightning-{lightning.__version__}", determinism.machine, each_epoch=False
        )
        self._exact = _add_on(self._tracker)
        self._averages = TrainingAverages()
        self._ranks = run.distributed
        self._several = run.distributed.size > 1
        self._loader: ResumableLoader | None = None
        self._validation: ShardedValidation | None = None
        self._validations: EpochValidations | None = None
        self._logged = LoggedSince()
        self._process: Callable[[], None] | None = None
        self._path: Path | None = None
        self._weights: Path | None = None
        self._generators: rng.Generators | None = None
        self._gradients: dict[str, torch.Tensor] = {}
        self._states: CallbackStates | None = None
        self._changes: ModelChanges | None = None
        self._module_changes: ObjectChanges | None = None
        """Changes of the module that makes the data."""
        self._data_changes: DataChanges | None = None
        self._collating: LoaderChanges | None = None
        """Changes of what makes training batches of records."""
        self._validating: LoaderChanges | None = None
        """Changes of validation data."""
        self._validation_loaders = 0
        """How many were made at the moment."""
        self._moment: tuple[int, int] | None = None
        """Epoch and step at which the last loader of validation was made."""
        self._own_generators: OwnGenerators | None = None
        self._own_states: dict[str, Any] = {}
        self._in_workers: dict[str, Any] = {}
        """What processes of loaders draw in, by its name."""
        self._parts: list[Any] = []
        """The data set, and the samplers of its loader."""
        self._made: dict[str, list[Any]] = {}
        """The callbacks and optimizers of the trainer at the start."""
        self._settings: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        self._loading: Callable[[], dict[str, Any]] | None = None
        """Returns what is loaded, once the hooks of loading have run."""
        self._loaded: dict[str, Any] | None = None
        self._searched = False
        self._storing = False
        self._left = False
        self._seen = 0
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
            raise NotResumable(f"fit(ckpt_path={trainer.ckpt_path}): give fit(**callback.resume)")
        _refuse_exchanges(trainer)
        if self._weights is not None:
            kept = torch.load(self._weights, map_location="cpu", weights_only=True)
            pl_module.load_state_dict(kept["state_dict"])
        if self._states is None:
            self._states = self._states_of(trainer)
            aside = functools.partial(self._beside, trainer)
            self._collating = LoaderChanges(pl_module, aside)
            self._validating = LoaderChanges(pl_module, aside)
            self._own_generators = OwnGenerators(
                functools.partial(self._drawing, trainer),
                lambda: [self._tracker.run, *_around(trainer), *self._parts[1:]],
                without=_OF_MODULES | _OF_DATA_MODULES,
            )
        if self._several:
            if not isinstance(trainer.strategy, strategy.Together):
                raise NotResumable(
                    f"Trainer(strategy={type(trainer.strategy).__name__}): with resources."
                    f"slots_per_trial: {self._ranks.size}, leave strategy, devices and num_nodes "
                    "out; Rung sets them"
                )
            self._validation = ShardedValidation(trainer, self._tracker)
            if self._generators is None:
                self._generators = external_loop.new_generators(self._tracker.run, 0)
        process = trainer.strategy.process_dataloader
        trainer.strategy.process_dataloader = functools.partial(self._loader_of, trainer, process)
        if self._exact is not None:
            begun = functools.partial(self._training_begun, trainer)
            self._exact.take_over(trainer, self, begun, functools.partial(self._save, trainer))
        else:
            self._validations = EpochValidations(trainer)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """See to it that a checkpoint that is there was taken in."""
        begin_training(self._tracker.run, "Trainer.fit()")
        if self._path is not None and trainer.ckpt_path is None:
            raise NotResumable(
                "this trial has a checkpoint, but fit() did not get it: call "
                "trainer.fit(…, **callback.resume)"
            )
        self._changes = self._changes_of(trainer, pl_module)
        self._settings = {name: getattr(trainer, name) for name in _SETTINGS}
        self._made = _parts_of(trainer)
        if self._path is not None:
            self._changes.apply_structure(self._path.parent)
        if self._validations is not None and self._tracker.complete:
            self._tracker.report_validation_again()
            self._leave(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Set what other callbacks have changed; where resuming is exact, behind all hooks."""
        if self._exact is None:
            self._training_begun(trainer)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Weigh the batch by this rank's part of it."""
        loader = self._loader
        known = loader is not None and loader.records is not None
        if self._tracker.counts_records and not known and records_of(batch) is None:
            raise NotResumable(
                "a length or a period of the experiment file is in records, but those of a batch "
                f"of type {type(batch).__name__} cannot be counted: count in batches or epochs, "
                "or have the loader give tensors, or a dict, list or tuple of them"
            )
        if self._exact is None:
            self._logged.begin(trainer)
        if self._several and loader is not None:
            trainer.strategy.weight = loader.share * self._ranks.size
            if self._exact is not None:
                self._exact.batch_began(trainer, batch, loader.share)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch, and report as is due."""
        if self._left:
            return
        tracker, loader = self._tracker, self._loader
        records = loader.records if loader is not None else None
        tracker.batch_done(1, records_of(batch) or 0 if records is None else records)
        share = loader.share if loader is not None else 1.0
        self._averages.add(with_loss(self._metrics(trainer), outputs), share)
        if tracker.report_due:
            tracker.report(self._averages.take(self._ranks))
        if self._validations is not None:
            self._batch_done(trainer, self._validations, batch_idx)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validate what the chief has: running means differ from rank to rank."""
        if not _is_fitting(trainer):
            return
        self._seen = 0
        if self._several:
            external_loop.share_buffers(pl_module)
        if self._exact is not None:
            self._exact.validation_began(trainer, self._validation)
        else:
            self._logged.begin(trainer)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_more: Any
    ) -> None:
        """Say that the run makes progress; count records, by which ranks count."""
        self._tracker.alive()
        if _is_fitting(trainer):
            self._seen += records_of(batch) or 0
            if self._exact is not None:
                self._exact.validated(batch)

    def on_test_batch_end(self, *_all: Any) -> None:
        """Say that the run makes progress where the script tests what was trained."""
        self._tracker.alive()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the validation."""
        if self._left or not _is_fitting(trainer) or trainer.sanity_checking:
            return
        metrics = self._metrics(trainer)
        if self._validations is None:
            self._tracker.validated(metrics)
            return
        self._tracker.validated(mean_of_ranks(self._ranks, metrics, self._seen))
        self._validations.give_back()
        if not trainer.is_last_batch:
            self._keep_and_leave(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Count the epoch; behind all hooks where resuming is exact."""
        if self._exact is not None:
            if self._several:  # all ranks look at the metrics at once, so that one may later
                self._exact.logged(trainer)
        elif not self._left:
            if self._tracker.progress.batch_in_epoch:
                self._tracker.epoch_done()
            self._keep_and_leave(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the trainer as the script made it."""
        if self._validation is not None:
            self._validation.give_back(trainer)
            self._validation = None
        if stage != "fit":
            return
        vars(trainer.strategy).pop("process_dataloader", None)
        if self._exact is not None:
            self._exact.give_back()
        if self._validations is not None:
            self._validations.give_back()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """A script that ends by itself leaves a checkpoint, too."""
        if self._exact is not None:
            if not self._exact.left:
                self._exact.store(trainer, functools.partial(self._save, trainer))
        elif not self._left:
            self._save(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return what belongs to the moment."""
        own: dict[str, Any] = {
            "generators": rng.to_json(rng.capture()),
            "averages": self._averages.state_dict(),
        }
        if self._own_generators is not None:
            own["own_generators"] = self._own_generators.states()
        if self._exact is not None:
            own |= self._exact.state()
        return external_loop.gathered(self._ranks, own)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what belongs to the moment; generators are set before the next batch."""
        if self._loading is not None:  # all callbacks' `on_load_checkpoint` came before
            self._loaded, self._loading = self._loading(), None
        share = rank_states.share_of(self._ranks, state_dict)
        if share.own is not None:
            self._generators = rng.from_json(share.own["generators"])
            self._own_states = share.own.get("own_generators", {})
            self._averages.load_state_dict(merged([each["averages"] for each in share.to_add]))
        else:
            self._generators = external_loop.new_generators(
                self._tracker.run, self._tracker.progress.batches
            )
        if self._exact is not None:
            self._exact.load(share.own, share.to_add)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep gradients; see to it that what Rung keeps can be loaded without running code."""
        if self._storing:
            checkpoint[gradients.KEY] = gradients.added_up(pl_module)
            leave_out_objects(checkpoint)
            plain(checkpoint, "checkpoint")

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Take gradients; they are set before the next batch, as Lightning clears them before.

        Put the best files of other callbacks where they are to be, and remember what Lightning
        loads until training has begun.
        """
        if not _is_fitting(trainer) or self._path is None or self._loaded is not None:
            return  # a tuner takes back what it has tried
        self._gradients = checkpoint.get(gradients.KEY, {})
        states = checkpoint.setdefault("callbacks", {})
        writes = self._ranks.is_local_chief
        best_checkpoints.give_back(trainer, states, self._path.parent, writes=writes)
        self._loading = functools.partial(_copied, trainer, checkpoint)

    def _training_begun(self, trainer: Any) -> None:
        """Set again what Lightning has loaded; see to it that what callbacks keep can be kept."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            module, training = trainer.lightning_module, trainer.strategy
            training.load_model_state_dict(loaded, strict=module.strict_loading)
            training.load_optimizer_state_dict(loaded)
            kept = zip(trainer.lr_scheduler_configs, loaded["lr_schedulers"], strict=True)
            for config, state in kept:
                config.scheduler.load_state_dict(state)
            for callback in trainer.callbacks:
                state = loaded["callbacks"].get(callback.state_key)
                if state and callback is not self:
                    callback.load_state_dict(state)
        assert self._states is not None
        assert self._changes is not None
        assert self._own_generators is not None
        _set_up_validation(trainer)
        if self._path is not None:
            self._changes.apply(self._path.parent)
            self._set_around(trainer, self._path.parent)
            self._states.read(self._path.parent / callback_states.FILE)
        self._states.demand_complete()
        self._demand_storable(trainer)
        self._own_generators.begin(self._in_workers)
        if not self._tracker.progress.batch_in_epoch:
            self._set_generators()  # the hooks of the epoch's start are still to come

    def _demand_storable(self, trainer: Any) -> None:
        """Check that checkpoints can hold the states of module, callbacks and data module.

        A `state_dict` that raises is left to the first checkpoint: it may need what is trained.

        Raises:
            NotPlain: a state has values that a checkpoint cannot hold.
        """
        others = [each for each in trainer.callbacks if each is not self]
        data = [trainer.datamodule] if trainer.datamodule is not None else []
        states = [
            ("state_dict", trainer.strategy.lightning_module_state_dict),
            *((f"callbacks.{type(each).__name__}", each.state_dict) for each in others),
            *((type(each).__name__, each.state_dict) for each in data),
        ]
        for name, state_dict in states:
            try:
                state = state_dict()
            except Exception:  # noqa: BLE001, S112 - any of the user's
                continue
            demand_storable(state, name)

    def _states_of(self, trainer: Any) -> CallbackStates:
        """Return the states of the callbacks that do not tell theirs; Lightning's own do."""
        own = (LightningCallback.state_dict, LightningCallback.load_state_dict)
        silent = [
            each
            for each in trainer.callbacks
            if each is not self
            and not type(each).__module__.startswith("lightning.")
            and (type(each).state_dict, type(each).load_state_dict) == own
        ]

        def of_loop() -> list[Any]:
            module = trainer.lightning_module
            tensors = [*module.parameters(), *module.buffers()]
            schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
            parts = [*module.modules(), *tensors, *trainer.optimizers, *schedulers]
            others = [trainer.strategy, trainer.strategy.model, trainer.datamodule, *self._parts]
            return [self._tracker.run, trainer, *trainer.callbacks, *others, *parts]

        return CallbackStates(callback_states.named(silent), of_loop, silent=True)

    def _changes_of(self, trainer: Any, module: Any) -> ModelChanges:
        """Return what training changes in the module beside its state."""

        def of_loop() -> list[Any]:
            schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
            parts = [trainer.strategy, trainer.datamodule, *trainer.loggers, *schedulers]
            return [self._tracker.run, trainer, *trainer.callbacks, *trainer.optimizers, *parts]

        return ModelChanges(module, trainer.optimizers, of_loop, without=_OF_MODULES)

    def _beside(self, trainer: Any) -> list[Any]:
        """Return what belongs to the loop, and what of the data is compared elsewhere."""
        return [*_of_loop(trainer), trainer.datamodule, *self._parts]

    def _drawing(self, trainer: Any) -> dict[str, Any]:
        """Return what may have generators of its own, by the names that messages have."""
        module, data = trainer.lightning_module, trainer.datamodule
        found = {type(module).__name__: module}
        if data is not None and not _tells(data):
            found[type(data).__name__] = data
        for each in self._parts[:1]:
            if not is_kept(each):
                found.setdefault(type(each).__name__, each)
        for changes in (self._collating, self._validating):
            found |= changes.things if changes is not None else {}
        return found

    def _compare_validation(self, trainer: Any, loader: Any) -> None:
        """Note what only a loader of validation has, as it is when the loader is made."""
        assert self._validating is not None
        moment = (trainer.current_epoch, trainer.global_step)
        if moment != self._moment:
            self._moment, self._validation_loaders = moment, 0
        place = f"validation[{self._validation_loaders}]"
        self._validation_loaders += 1
        found = dict(loader_changes.of_validation(place, loader))
        self._validating.look(found.items())
        if getattr(loader, "num_workers", 0) and loader.persistent_workers:
            self._in_workers |= found

    def _compare_data(self, trainer: Any, loader: Any, parts: list[Any]) -> None:
        """Note the data set, and the module that makes it, as they are before the first hook."""
        aside = functools.partial(_of_loop, trainer)
        model = trainer.lightning_module
        made, self._parts = self._parts[:1], parts
        assert self._collating is not None
        found = dict(loader_changes.of_collate("collate_fn", loader.collate_fn))
        self._collating.look(found.items())
        if loader.num_workers:
            self._in_workers |= found
            if not is_kept(parts[0]):
                self._in_workers[type(parts[0]).__name__] = parts[0]
        if self._data_changes is None or made[0] is not parts[0]:
            self._data_changes = DataChanges(
                parts[0], lambda: [*aside(), *self._parts[1:]], model=model
            )
        module = trainer.datamodule
        if module is not None and self._module_changes is None and not _tells(module):
            assert module.hparams is not None  # makes them, as they are when first looked at
            self._module_changes = ObjectChanges(
                {"datamodule": module},
                lambda: [*aside(), *self._parts],
                model=model,
                without=_OF_DATA_MODULES,
                remade=(Dataset, DataLoader),
            )

    def _set_around(self, trainer: Any, folder: Path) -> None:
        """Set again what has changed around the model; of the data set, as an epoch begins."""
        self._kept = model_changes.read(folder)
        for name, (before, now) in self._kept.get("settings", {}).items():
            if self._settings[name] == before:
                setattr(trainer, name, now)
        if self._module_changes is not None:
            self._module_changes.set(self._kept.get("datamodule", ()))
        if not self._tracker.progress.batch_in_epoch:
            self._forward_data()

    def _data_open(self) -> None:
        """Set the data set to what it was when the epoch began; its order may depend on that."""
        assert self._data_changes is not None
        assert self._collating is not None
        self._data_changes.set(self._kept.get("data_at_start", ()))
        self._data_changes.begin_epoch()
        self._collating.set(self._kept.get("collate_at_start", {}))
        self._collating.begin_epoch()

    def _forward_data(self) -> None:
        """Set the data set to what it was at the checkpoint."""
        kept, self._kept = self._kept, {}
        if self._data_changes is not None:
            self._data_changes.set(kept.get("data", ()))
        if self._collating is not None and self._validating is not None:
            self._collating.set(kept.get("collate", {}))
            self._validating.set(kept.get("validation", {}))

    def _changed(self, trainer: Any) -> dict[str, Any]:
        """Return what has changed beside the states.

        Raises:
            NotResumable: a change cannot be stored, or not be set again.
        """
        assert self._changes is not None
        demand_same(self._made, _parts_of(trainer))
        found = self._changes.capture(apart=self._parts)
        module, data = self._module_changes, self._data_changes
        collating, validating = self._collating, self._validating
        within = self._tracker.progress.batch_in_epoch > 0
        more: dict[str, Any] = {
            "settings": {
                name: [made, getattr(trainer, name)]
                for name, made in self._settings.items()
                if getattr(trainer, name) != made
            },
            "datamodule": module.capture() if module is not None else [],
            "data": data.capture() if data is not None else [],
            "data_at_start": data.at_start if data is not None and within else [],
            "collate": collating.capture() if collating is not None else {},
            "collate_at_start": collating.at_start if collating is not None and within else {},
            "validation": validating.capture() if validating is not None else {},
        }
        return found | {name: value for name, value in more.items() if value}

    def _search(self) -> None:
        if self._searched:
            return
        self._searched = True
        with self._tracker.found() as found:
            if found is not None:
                folder, own = found
                self._path, self._weights = (folder / FILE, None) if own else (None, folder / FILE)

    def _loader_of(self, trainer: Any, process: Callable[[Any], Any], loader: Any) -> Any:
        """Return what Lightning reads from in place of a loader of the script."""
        loader = process(loader)
        if not _is_fitting(trainer) or isinstance(loader, ResumableLoader):
            return loader
        if trainer.training:
            if self._loader is not None and not self._loader.opened:
                raise NotResumable(
                    "the training data given to Trainer.fit are several loaders, whose position "
                    "cannot be kept: give one torch DataLoader; for several data sets at once, "
                    "one over a data set that holds them (torch.utils.data.StackDataset)"
                )
            arrive = functools.partial(self._arrive, trainer)
            self._loader = ResumableLoader(loader, self._tracker, self._data_open, arrive)
            self._compare_data(trainer, loader, self._loader.parts)
            return self._loader
        self._compare_validation(trainer, loader)
        return loader if self._validation is None else self._validation.own(loader)

    def _arrive(self, trainer: Any) -> None:
        self._forward_data()
        gradients.give_back(trainer.lightning_module, self._gradients)
        self._gradients = {}
        self._set_generators()

    def _set_generators(self) -> None:
        if self._generators is not None:
            rng.restore(self._generators)
            self._generators = None
        if self._own_generators is not None and self._own_states:
            states, self._own_states = self._own_states, {}
            self._own_generators.set(states)

    def _metrics(self, trainer: Any) -> dict[str, Any]:
        """Return what was logged in the batch, or in the validation."""
        if self._exact is not None:
            return self._exact.logged(trainer)
        return self._logged.found(trainer)

    def _batch_done(self, trainer: Any, validations: EpochValidations, batch_idx: int) -> None:
        """Do what is due behind a batch; behind an epoch's last one, that is left to its end."""
        tracker, last = self._tracker, trainer.is_last_batch
        if last:
            tracker.epoch_done()
        elif (batch_idx + 1) % trainer.accumulate_grad_batches and not tracker.complete:
            return  # gradients that no step has taken up would be lost
        if tracker.validation_due:
            validations.demand(batch_idx)
        if not last and not validations.follows(batch_idx):
            self._keep_and_leave(trainer)

    def _keep_and_leave(self, trainer: Any) -> None:
        """Store and leave, where Lightning has nothing else to do at this moment but its hooks."""
        leaving = self._tracker.leaving
        if leaving or self._tracker.checkpoint_due:
            self._save(trainer)
        if leaving:
            self._leave(trainer)

    def _leave(self, trainer: Any) -> None:
        """Have Lightning end; what it does until then is not reported."""
        self._left = True
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
        trainer.should_stop = True

    def _save(self, trainer: Any) -> None:
        changes = self._changed(trainer)
        self._storing = True
        try:
            self._tracker.store(functools.partial(self._write, trainer, changes))
        finally:
            self._storing = False

    def _write(self, trainer: Any, changes: dict[str, Any], folder: Path) -> None:
        trainer.save_checkpoint(folder / FILE)
        if self._ranks.is_chief:
            model_changes.write(changes, folder)
            best_checkpoints.keep(trainer, folder)
            if self._states is not None:
                self._states.write(folder / callback_states.FILE)


def _add_on(tracker: ProgressTracker) -> "ExactTraining | None":
    if not exact(tracker.run):
        return None
    from rung.lightning.exact import ExactTraining  # noqa: PLC0415 - checks what it needs

    return ExactTraining(tracker)


def _of_loop(trainer: Any) -> list[Any]:
    """Return what belongs to the loop, beside the data."""
    return [*_around(trainer), *trainer.lightning_module.modules()]


def _around(trainer: Any) -> list[Any]:
    """Return what belongs to the loop, beside the data and the model."""
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    parts = [trainer.strategy, *trainer.loggers, *schedulers]
    return [trainer, *trainer.callbacks, *trainer.optimizers, *parts]


def _set_up_validation(trainer: Any) -> None:
    """Make the loaders of validation before training may change what they read, as a check does.

    Lightning itself does so, but where the first validation is not due in the first epoch.
    """
    if trainer.enable_validation and trainer.val_dataloaders is None:
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.setup_data()
        trainer.training = True


def _parts_of(trainer: Any) -> dict[str, list[Any]]:
    return {
        "callbacks": [*trainer.callbacks],
        "optimizers": [*trainer.optimizers],
        "learning rate schedules": [config.scheduler for config in trainer.lr_scheduler_configs],
    }


def _copied(trainer: Any, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return what Lightning loads: the state that the module has by now, and the others'."""
    found = {name: checkpoint[name] for name in ("optimizer_states", "lr_schedulers", "callbacks")}
    return copy.deepcopy(found | {"state_dict": trainer.strategy.lightning_module_state_dict()})


def _refuse_exchanges(trainer: Any) -> None:
    """Refuse a callback of Lightning's that exchanges what is trained by, before the first batch.

    Raises:
        NotResumable: the trainer has one.
    """
    if any(isinstance(each, StochasticWeightAveraging) for each in trainer.callbacks):
        raise NotResumable(
            "StochasticWeightAveraging puts a learning rate schedule of its own in the place of "
            "the trainer's, which a run that resumes would not have: use Lightning's "
            "WeightAveraging (should_update says in which epochs it averages) or "
            "EMAWeightAveraging, and return a schedule such as torch.optim.swa_utils.SWALR from "
            "configure_optimizers"
        )


def _tells(module: Any) -> bool:
    """Return whether a data module tells its state, which Lightning then keeps."""
    return type(module).state_dict is not lightning.LightningDataModule.state_dict


def _is_fitting(trainer: Any) -> bool:
    """Return whether this is `fit`, not a script's own `validate`, which is its own affair."""
    return bool(trainer.state.fn == "fit")

"""The callback: a trial in Keras' own `fit`.

A moment's order is: train the batch, report, validate, checkpoint. At the end of an epoch Keras
validates between its last batch and `on_epoch_end`, so what is due at the last batch waits for
that; and other callbacks act there (a learning rate is reduced), so this one must come last. A
run that finds itself at its length was killed on its way out: it reports its last validation once
more and trains nothing.

Keras calls the hooks of a beginning in every run: `on_train_begin`, and `on_epoch_begin` also for
an epoch that goes on in its middle. What they do was done before the checkpoint. So weights,
optimizer and the states of callbacks are set behind the last of those hooks; those of an epoch
that does begin run on what the checkpoint holds. Batches that were trained before are shown to no
other callback.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import keras

from rung import core
from rung.keras import determinism, state
from rung.keras.collectives import exchange_of
from rung.keras.data_parallel import DataParallel, layers_of, learned, without_writers
from rung.keras.layer_settings import LayerSettings
from rung.training import batch_size as batch_sizes
from rung.training import rng
from rung.training.errors import NotResumable
from rung.training.introspection.seams import exact
from rung.training.progress import ProgressTracker, begin_training
from rung.training.states import callback_states
from rung.training.states.callback_states import CallbackStates

if TYPE_CHECKING:
    from rung.keras.exact import ExactFit

_NEVER: Final = 1 << 40
_NO_STATE: Final = ("params", "validation_data", "monitor_op", "min_delta")
"""Attributes of callbacks that are no state: what `fit` gives them, and a direction with its sign,
which they determine again at the first validation."""
_VALIDATION_DATA: Final = "validation_data.npz"
"""Of a checkpoint, with the attributes of validation data that have changed."""
_REPORTERS: Final = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)
"""Callbacks of Keras' own that have nothing but files and connections."""


class Heartbeat(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """A heartbeat from every batch of an evaluation, which may take longer than `hang_timeout`."""

    def __init__(self, run: core.Context) -> None:
        super().__init__()
        self._run = run

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """One more batch."""
        self._run.train.heartbeat()


class Callback(Heartbeat):
    """Reports, checkpoints, resumes, and leaves when asked to.

    Args:
        run: what `init` returned.
        validation_data: what to validate with where a validation is due within an epoch
            (`min_validation_period`, a rung or the length in batches); Keras validates at the end
            of an epoch by itself.
        batch_size: how many records a batch holds; `global_batch_size` of the hyperparameters
            by default. Only counts of records need it.
        keep: what else is to be part of checkpoints, by names of your choice, such as an object in
            a global variable. Kept is what its `state_dict` returns, or
            else its attributes. The states of the callbacks given to `fit` are kept by themselves,
            but with `reproducibility: {exact: false}` only of those named here.
    """

    def __init__(
        self,
        run: core.Context,
        *,
        validation_data: Any = None,
        batch_size: int | None = None,
        keep: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(run)
        backend = keras.backend.backend()
        if backend not in {"tensorflow", "torch"}:
            raise NotResumable(f"KERAS_BACKEND={backend}: set it to tensorflow or torch")
        self._tensorflow = backend == "tensorflow"
        self._exact = _add_on(run)
        self._parallel: DataParallel | None = None
        self._tracker = ProgressTracker(
            run, f"keras-{keras.__version__}-{backend}", determinism.machine, each_epoch=False
        )
        self._validation_data = validation_data
        self._batch_size = batch_size or batch_sizes.wanted_by(run.hparams) or 0
        if self._tracker.counts_records and not self._batch_size:
            raise NotResumable(
                "Keras does not say how many records a batch holds: give Callback(run, "
                "batch_size=…) or the hyperparameter global_batch_size to count in records"
            )
        self._keep = dict(keep or {})
        self._found: tuple[Path, bool] | None = None
        self._asked = self._within = self._stopped = False
        self._states: CallbackStates | None = None
        self._data_states: CallbackStates | None = None
        """Of validation data."""
        self._resumed: state.Resumed | None = None
        self._begun: rng.Generators | None = None
        self._settings: LayerSettings | None = None
        self._epoch_open = False
        self._left = False

    def initial_epoch(self) -> int:
        """Return at which epoch `fit(…, initial_epoch=…)` is to begin: where the trial is.

        It fetches the trial's newest checkpoint, so all ranks must call it. Only
        `reproducibility: {exact: false}` needs it.
        """
        self._find()
        return _NEVER if self._over else self._tracker.progress.epochs

    def set_model(self, model: Any) -> None:
        """Take the model, and see to it that no other callback comes later."""
        super().set_model(model)
        if self._exact is None:
            self._states = self._states or self._states_of([])
            return
        listed = self._exact.take_callbacks(self)
        own = (keras.callbacks.History, keras.callbacks.ProgbarLogger)
        after = listed[listed.index(self) + 1 :]
        late = [type(other).__name__ for other in after if not isinstance(other, own)]
        if late:
            raise NotResumable(
                f"callbacks=[…]: put Rung's callback last, behind {', '.join(late)}; what "
                "they do at the end of an epoch is part of the checkpoint that it makes there"
            )
        others = [other for other in listed if other is not self]
        if self._states is None:
            self._states = self._states_of(others)
        if not self._run.distributed.is_chief:
            others = without_writers(others)
        self._exact.show([*others, self])

    def on_train_begin(self, logs: Any = None) -> None:
        """Resume from the trial's newest checkpoint, if there is one."""
        self._left = False
        begin_training(self._run, "fit()")
        if self._exact is None and not self._asked:
            raise NotResumable(
                "with reproducibility: {exact: false} a run that resumes must tell fit() its "
                "epoch: write fit(…, initial_epoch=rung.initial_epoch(), callbacks=[…, rung]), "
                "where rung is Rung's callback"
            )
        determinism.tell(self._run)
        self._stand_before_training()
        self._data_states = self._states_of_data()
        self._tell_batch_size()
        self._settings = LayerSettings(self.model, self._of_loop)
        for states in (self._states, self._data_states):
            if states is not None:
                states.demand_complete()
        self._find()
        self._resume()
        if self._parallel is not None:
            self._parallel.share_weights()
        if self._resumed is None:
            batches = self._tracker.progress.batches
            state.new_seeds(self._run, self.model, self._shared, batches)
        elif self._over or not self._within:
            self._set_moment(self._resumed, within=False)
            self._resumed = None
        if self._over:
            self._tracker.report_validation_again()
            self._leave()
            if self._exact is not None:
                self._exact.resume(self.model, None, _NEVER, within=False)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remember the generators for a checkpoint; go on in the middle of an epoch."""
        resumed, self._resumed = self._resumed, None
        progress, skip = self._tracker.progress, self._tracker.progress.batch_in_epoch
        self._epoch_open = True
        if resumed is None:
            self._begun = state.same_generators(self._run.distributed)
            if self._exact is not None:
                self._exact.begin_epoch(progress.epochs, epoch, 0, _nothing, dict)
            return
        self._within = False
        self._set()
        self._begun = resumed.begun
        state.set_generators(self._begun)
        if self._exact is None:  # the epoch is begun again
            self._set_moment(resumed, within=False)
            state.set_generators(self._begun)
            return

        def arrive() -> None:
            assert self._exact is not None
            self._set_moment(resumed, within=True)
            self._exact.arrived()

        answer = self.model.get_metrics_result
        self._exact.show_only(self)
        self._exact.begin_epoch(progress.epochs, epoch, skip, arrive, answer)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report, validate, checkpoint and leave, as is due."""
        exact_fit = self._exact
        if exact_fit is not None and exact_fit.passing:
            self._tracker.alive()
            if exact_fit.passed() and self._stopped:
                self.model.stop_training = True  # the epoch's end is still to come
            return
        if self._left:
            self._tracker.alive()
            return
        self._agree()
        tracker = self._tracker
        count = batch + 1 - tracker.progress.batch_in_epoch
        tracker.batch_done(count, count * self._batch_size)
        if tracker.report_due:
            tracker.report(_numbers(logs))
        if batch + 1 == self.params.get("steps"):
            return
        if tracker.validation_due:
            self._validate()
        self._keep_and_leave()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report the epoch's validation, checkpoint and leave, as is due."""
        tracker = self._tracker
        self._epoch_open = False
        if self._left:
            if self._exact is not None:
                self._exact.show_all()
            return
        self._agree()
        tracker.epoch_done()
        validation = {k: v for k, v in (logs or {}).items() if k.startswith("val_")}
        if validation:
            tracker.validated(_numbers(validation))
        elif tracker.validation_due:
            self._validate()
        self._keep_and_leave()

    def on_train_end(self, logs: Any = None) -> None:
        """Step aside; a script that ends by itself leaves a checkpoint too."""
        if not self._left:
            self._store()
        if self._exact is not None:
            self._exact.end(self.model)
        self.model.__dict__.pop("evaluate", None)
        if self._parallel is not None:
            self._parallel.leave()
            self._parallel = None

    def _keep_and_leave(self) -> None:
        leaving = self._tracker.leaving
        if leaving or self._tracker.checkpoint_due:
            self._store()
        if leaving:
            self._leave()

    def _leave(self) -> None:
        """Have Keras end, within an epoch without its end.

        Left out are the validation, and what other callbacks do at the end of an epoch.
        """
        self._left = True
        if self._exact is not None and self._epoch_open:
            self._exact.show_only(self)
        self.model.stop_training = True

    @property
    def _over(self) -> bool:
        """Whether nothing is left to train: the length is reached, or a callback has said so."""
        return self._tracker.complete or (self._stopped and not self._within)

    @property
    def _shared(self) -> Any:
        """The state of the generator that all unseeded draws share; None: it is not known."""
        return None if self._exact is None else self._exact.shared_seeds(self._run)

    def _stand_before_training(self) -> None:
        """Take the place of what `fit` trains and validates with."""
        model = self.model
        exchange = exchange_of(self._run)
        if exchange is not None:
            own = learned if self._exact is None else self._exact.learned
            self._parallel = DataParallel(self._run.distributed, exchange, model, own)
            model.train_function = self._parallel.guarded(model.train_function)
        if self._exact is not None:
            self._exact.begin(model, self.params.get("steps"))
        model.__dict__["evaluate"] = self._evaluation(model.evaluate)

    def _tell_batch_size(self) -> None:
        """Log the batch size: what `fit` has, or else what was said.

        Raises:
            InvalidPlan: it is not `global_batch_size`.
        """
        found = None if self._exact is None else self._exact.batch_size
        field = "Callback(batch_size=…)" if found is None else "fit(batch_size=…)"
        size = found or self._batch_size
        if size:
            batch_sizes.batch_size(self._run, size, field, batch_sizes.Given.TOGETHER)
        else:
            batch_sizes.log(self._run, None)

    def _resume(self) -> None:
        """Take the weights of the checkpoint, and its position where it is this trial's."""
        if self._found is None:
            return
        folder, same_trial = self._found
        if same_trial:
            self._resumed = state.Resumed(folder)
        self._set()
        if self._exact is not None:
            progress = self._tracker.progress
            at, within = folder if same_trial else None, progress.batch_in_epoch > 0
            self._exact.resume(self.model, at, progress.epochs, within=within)

    def _set(self) -> None:
        """Set weights and optimizer, and of this trial's checkpoint the states of callbacks."""
        if self._found is None:
            return
        folder, same_trial = self._found
        state.load_weights(folder, self.model)
        if same_trial and self._states is not None:
            self._states.read(folder / callback_states.FILE)
        if same_trial and self._data_states is not None:
            self._data_states.read(folder / _VALIDATION_DATA)

    def _set_moment(self, resumed: state.Resumed, *, within: bool) -> None:
        """Set what belongs to the moment: the generators, and what layers draw from."""
        own = resumed.of_rank(self._run.distributed)
        state.set_moment(self.model, self._shared, resumed, within=within)
        ahead = self._exact is not None and self._exact.ahead
        state.set_generators(None if ahead else own.now, own.tensorflow)
        if own.seeds is None:
            state.new_seeds(self._run, self.model, self._shared, self._tracker.progress.batches)
        else:
            state.set_seeds(self.model, self._shared, own.seeds)

    def _states_of(self, callbacks: list[Any]) -> CallbackStates:
        """Return the states of callbacks, and of what else is to be kept."""
        kept = {f"keep[{name!r}]": each for name, each in self._keep.items()}
        others = [
            each
            for each in callbacks
            if not isinstance(each, _REPORTERS)
            and not any(each is other for other in self._keep.values())
        ]
        found = callback_states.named(others)
        own = [name for name, each in found.items() if type(each).__module__.startswith("keras.")]

        def foreign() -> list[Any]:
            return [*callbacks, *self._of_loop()]

        return CallbackStates(found | kept, foreign, left_out=_NO_STATE, resources=own)

    def _states_of_data(self) -> CallbackStates | None:
        """Return the states of validation data; None: they are not kept."""
        if self._exact is None:
            return None
        given = {
            "fit(validation_data=…)": self._exact.validation_data,
            "Callback(validation_data=…)": self._validation_data,
        }
        found: dict[str, Any] = {}
        for place, data in given.items():
            data = self._exact.with_attributes(data)  # noqa: PLW2901 - what of it has a state
            known = [*found.values(), *self._keep.values(), *self._exact.data]
            if data is not None and not any(data is each for each in known):
                found[place] = data
        caches = {
            name for each in found.values() for name in vars(each) if "cache" in name.lower()
        }
        return CallbackStates(found, self._of_loop, left_out=caches)

    def _of_loop(self) -> list[Any]:
        """Return what checkpoints hold by itself, or what is no state."""
        model = self.model
        data = [] if self._exact is None else self._exact.data
        parts = [model, *layers_of(model), *model.metrics, *data]
        optimizer = [] if model.optimizer is None else [model.optimizer]
        weights = [*model.variables, *(each for it in optimizer for each in it.variables)]
        return [self._run, self, *parts, *optimizer, *weights, *(it.value for it in weights)]

    def _find(self) -> None:
        """Fetch the trial's newest checkpoint, once."""
        if self._asked:
            return
        self._asked = True
        with self._tracker.found() as self._found:
            pass
        progress = self._tracker.progress
        self._within = progress.batch_in_epoch > 0
        if self._found is not None and self._found[1]:
            self._stopped = state.Resumed(self._found[0]).stopped
        if self._exact is None:  # the epoch is begun again
            progress.batch_in_epoch = progress.records_in_epoch = 0

    def _evaluation(self, inner: Any) -> Any:
        """Return an `evaluate` that `fit` gets nothing from where the run leaves an epoch."""

        def evaluate(*given: Any, **named: Any) -> Any:
            around = named.get("callbacks")
            of_fit = isinstance(around, keras.callbacks.CallbackList) and self in around.callbacks
            if not of_fit:
                return inner(*given, **named)
            if self._left and self._epoch_open:
                return {}
            if self._parallel is None:
                return inner(*given, **named)
            return self._parallel.validated(*given, **named)

        return evaluate

    def _store(self) -> None:
        begun, ranks = self._begun, self._run.distributed
        if begun is None:
            return
        assert self._settings is not None
        self._settings.demand_unchanged()
        if self._exact is not None:
            self._exact.demand_unchanged()

        def write(folder: Any) -> None:
            together = state.of_ranks(ranks, self.model, self._shared)
            if ranks.is_chief:
                state.write(
                    folder,
                    self.model,
                    self._shared,
                    begun=begun,
                    stopped=bool(self.model.stop_training),
                    ranks=together,
                )
                if self._states is not None:
                    self._states.write(folder / callback_states.FILE)
                if self._data_states is not None:
                    self._data_states.write(folder / _VALIDATION_DATA)
                if self._exact is not None:
                    self._exact.save(folder)

        self._tracker.store(write)

    def _validate(self) -> None:
        """Validate by ourselves, and leave no trace of it in the epoch's metrics."""
        if self._validation_data is None:
            if self._tracker.complete:
                raise NotResumable(
                    "the run's length ends where Keras does not validate: give "
                    "Callback(run, validation_data=...), or fit(validation_data=...) with "
                    "searcher.time_metric: epochs"
                )
            return
        model = self.model
        running = state.metric_values(model)
        data = self._validation_data
        pair = data if isinstance(data, tuple) else (data,)
        quietly: dict[str, Any] = {"verbose": 0, "callbacks": [Heartbeat(self._run)]}
        if self._parallel is not None:
            found = self._parallel.validated(*pair, **quietly)
        else:
            found = model.evaluate(*pair, return_dict=True, **quietly)
        if not self._tensorflow:
            model.train()
        state.set_metric_values(model, running)
        self._tracker.validated(_numbers({f"val_{name}": value for name, value in found.items()}))

    def _agree(self) -> None:
        if self._parallel is not None:
            self._parallel.agree()


def _numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    return {name: float(value) for name, value in (logs or {}).items()}


def _nothing() -> None:
    """Nothing is to be set."""


def _add_on(run: core.Context) -> "ExactFit | None":
    """Return what resumes within an epoch and bit for bit; None: the run is to do without.

    Raises:
        SeamMissing: this version of Keras does not have what that needs.
    """
    if not exact(run):
        return None
    from rung.keras.exact import ExactFit  # noqa: PLC0415 - checks Keras when it is imported

    return ExactFit(run)

"""What a callback sees and sets of Keras' `fit` by private names, all of which are in `seams`."""

import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Final

import keras
from keras.src.random import seed_generator  # no public name makes or finds it

from rung import core
from rung.keras.exact.data_position import Answer, Arrive, Feed, TensorFlowFeed
from rung.keras.exact.dataset_hooks import DatasetHooks, with_attributes
from rung.keras.exact.steps_per_epoch import refuse_pieces
from rung.training.errors import NotResumable
from rung.training.introspection.library_code import codes_of
from rung.training.rng import isolated
from rung.training.seeds import Domain, derive

_OUTSIDE: Final = (
    "Rung's callback was not called by fit() of Keras' own, so its position in the training data "
    "is unknown: call super().fit() in a fit() of your own, or set reproducibility: "
    "{exact: false} in the experiment file to resume at the beginning of an epoch"
)


class ExactFit:
    """One `fit`: its position in the training data, and what draws besides the model's layers."""

    def __init__(self, run: core.Context) -> None:
        self._run: Final = run
        self._feed: Feed | None = None
        self._hooks: DatasetHooks | None = None
        self._listed: Any = None
        self._shown: list[Any] = []
        self.validation_data: Any = None
        """Those that `fit` validates with."""
        self.batch_size: int | None = None
        """How many records `fit` has in a batch; None: Keras does not know."""

    @property
    def passing(self) -> bool:
        """Whether the batch at hand was trained by an earlier run."""
        return self._feed is not None and self._feed.skipping

    @property
    def data(self) -> list[Any]:
        """What is read that has attributes of its own: whoever refers to it, it is no state."""
        return [] if self._hooks is None or self._hooks.data is None else [self._hooks.data]

    @property
    def ahead(self) -> bool:
        """Whether a thread reads the data again, ahead of training."""
        return self._feed is not None and self._feed.ahead

    def begin(self, model: Any, steps: int | None) -> None:
        """Stand before what trains; call this in `on_train_begin`.

        Args:
            model: the model.
            steps: how many batches `fit` takes for an epoch, where that is known.

        Raises:
            NotResumable: epochs or validations are pieces of the data, or the hook was not called
                by `fit`.
        """
        tensorflow = keras.backend.backend() == "tensorflow"
        data = _local(codes_of(keras.Model.fit), "epoch_iterator")
        refuse_pieces(data, tensorflow=tensorflow)
        given = _local(codes_of(keras.Model.fit), "x")
        self._hooks = DatasetHooks(data.data_adapter, given, self._run.seed)
        self.validation_data = _local(codes_of(keras.Model.fit), "validation_data")
        if isinstance(self.validation_data, types.GeneratorType):
            raise NotResumable(
                "fit(validation_data=…) is a generator, and a run that resumes would not find its"
                " place in it: give data that each validation reads from their beginning, such as"
                " arrays or a PyDataset"
            )
        self.batch_size = data.data_adapter.batch_size
        self.shared_seeds(self._run)  # the script may have let go of it
        inner = model.train_function
        inner = inner.inner if isinstance(inner, Feed) else inner

        def build(batch: Any) -> None:
            model._symbolic_build(data_batch=batch)

        if tensorflow:
            self._feed = TensorFlowFeed(inner, model.steps_per_execution, steps, build)
        else:
            self._feed = Feed(inner, 1)
        model.train_function = self._feed

    def resume(self, model: Any, folder: Path | None, epochs: int, *, within: bool) -> None:
        """Have `fit` begin at an epoch, with its data where a checkpoint left them.

        Args:
            model: the model.
            folder: of a checkpoint of this trial; None: of another one.
            epochs: how many are over.
            within: whether some batches of the next one are trained, too.
        """
        assert self._feed is not None
        assert self._hooks is not None
        if folder is not None:
            self._feed.load(folder, within=within)
            self._hooks.repeat(epochs)
        model._initial_epoch = epochs

    def begin_epoch(
        self, epochs: int, epoch: int, skip: int, arrive: Arrive, answer: Answer
    ) -> None:
        """Begin an epoch.

        Args:
            epochs: how many are over.
            epoch: its number, from 0.
            skip: how many of its batches are trained already.
            arrive: is called when the position is reached.
            answer: what to answer for them.
        """
        assert self._feed is not None
        assert self._hooks is not None
        self._hooks.epoch = epochs
        self._feed.begin(epoch, skip, arrive, answer)
        if skip == 0:
            self._feed.ahead = False

    def arrived(self) -> None:
        """Note that the position is reached."""
        if self._feed is not None:
            self._feed.ahead = False

    def take_callbacks(self, owner: Any) -> list[Any]:
        """Return the callbacks among which one is; call this in `set_model`.

        Raises:
            NotResumable: it is in no list.
        """
        self._listed = self.callbacks_around(owner)
        return list(self._listed.callbacks)

    def show(self, callbacks: list[Any]) -> None:
        """Have these callbacks called, in this order, from the next hook on."""
        self._shown = callbacks
        self.show_all()

    def show_only(self, owner: Any) -> None:
        """Have no hook called but of one callback: the others have seen what happens, or must not.

        So it is for batches that were trained before, and on the way out of an epoch that has not
        ended.
        """
        self._listed.callbacks = [owner]

    def show_all(self) -> None:
        """Have all callbacks called again, from the next hook on."""
        self._listed.callbacks = self._shown

    def passed(self) -> bool:
        """Have all callbacks called again if no other batch goes by, and return whether so."""
        assert self._feed is not None
        if self._feed.arrived:
            self.show_all()
        return self._feed.arrived

    def demand_unchanged(self) -> None:
        """Check that the data are what a run that resumes will have.

        Raises:
            NotResumable: they are not.
        """
        assert self._hooks is not None
        self._hooks.demand_unchanged()

    def save(self, folder: Path) -> None:
        """Write the position into a folder."""
        assert self._feed is not None
        self._feed.save(folder)

    def end(self, model: Any) -> None:
        """Step aside."""
        if self._feed is not None:
            model.train_function = self._feed.inner
        model._initial_epoch = 0

    @staticmethod
    def shared_seeds(run: core.Context) -> Any:
        """Return the state of the generator that `keras.random` draws from without a seed.

        Keras makes it at its first use, which may be in the first step; then it is not yet there
        when a run resumes from a checkpoint that holds its state. So it is made here, unless it is
        there; Keras asks Python's own generator for its seed.
        """
        with isolated(derive(run.seed, Domain.KERAS)):
            return seed_generator.global_seed_generator().state

    @staticmethod
    def with_attributes(data: Any) -> Any:
        """Return what of data may have a state; None: nothing has."""
        return with_attributes(data)

    @staticmethod
    def callbacks_around(callback: Any) -> Any:
        """Return the `CallbackList` that a callback is in; call it in `set_model`.

        Raises:
            NotResumable: it is in none.
        """
        found = _local(codes_of(keras.callbacks.CallbackList.set_model), "self")
        assert callback in found.callbacks
        return found

    @staticmethod
    def learned(model: Any) -> Iterator[Any]:
        """Yield what layers learn without gradients, such as running means."""
        for layer in model._flatten_layers():
            yield from layer._non_trainable_variables


def _local(codes: Iterator[CodeType], name: str) -> Any:
    """Return a local variable of the nearest function on the call stack that has this code."""
    wanted = next(codes)
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not wanted:
        frame = frame.f_back
    if frame is None:
        raise NotResumable(_OUTSIDE)
    return frame.f_locals[name]

"""The callback: a trial in Keras' own `fit`.

A moment's order is: train the batch, report, validate, checkpoint. At the end of an epoch Keras
validates between its last batch and `on_epoch_end`, so what is due at the last batch waits for
that; and other callbacks act there (a learning rate is reduced), so this one must come last. A
run that finds itself at its length was killed on its way out: it reports its last validation once
more and trains nothing.
"""

import sys
from collections.abc import Mapping
from typing import Any

import keras

from rung import core
from rung.keras import exactness, state
from rung.keras.alive import Alive
from rung.keras.between import Between
from rung.keras.exchange import exchange_of
from rung.keras.feed import Feed, TensorFlowFeed
from rung.keras.pieces import read_by_fit, refuse_pieces
from rung.keras.together import Together, without_writers
from rung.loop import Course, keras_seeds, once
from rung.loop.errors import CannotFollow
from rung.torch import rng

_NEVER = 1 << 40


class Callback(Alive):
    """Reports, checkpoints, resumes, and leaves when asked to.

    Args:
        run: what `init` returned.
        validation_data: what to validate with where a validation is due within an epoch
            (`min_validation_period`, a rung or the length in batches); Keras validates at the end
            of an epoch by itself.
        batch_size: how many records a batch holds; `global_batch_size` of the hyperparameters
            by default. Only counts of records need it.
        keep: other callbacks whose state is to be part of checkpoints, by names of your choice:
            `{"patience": early_stopping}`. Kept is what their `state_dict` returns, or else
            their plain attributes.
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
            raise CannotFollow(f"KERAS_BACKEND={backend}: set it to tensorflow or torch")
        self._tensorflow = backend == "tensorflow"
        self._together: Together | None = None
        self._course = Course(run, f"keras-{keras.__version__}-{backend}", exactness.machine)
        self._validation_data = validation_data
        self._batch_size = batch_size or int(run.hparams.get("global_batch_size") or 0)
        if self._course.counts_records and not self._batch_size:
            raise CannotFollow(
                "Keras does not say how many records a batch holds: give Callback(run, "
                "batch_size=…) or the hyperparameter global_batch_size to count in records"
            )
        self._keep = dict(keep or {})
        self._feed: Feed | None = None
        self._between: Between | None = None
        self._resumed: state.Resumed | None = None
        self._begun: rng.Generators | None = None
        self._epoch_open = False
        self._left = False

    @property
    def passing(self) -> bool:
        """Whether the batch at hand was trained by an earlier run and only goes by.

        An epoch that goes on in its middle shows all its batches to callbacks, so that they
        count as they would have; what must not happen twice can ask here.
        """
        return self._feed is not None and self._feed.skipping

    def set_model(self, model: Any) -> None:
        """Take the model, and see to it that no other callback comes later."""
        super().set_model(model)
        listed = sys._getframe(1).f_locals.get("self")
        if isinstance(listed, keras.callbacks.CallbackList):
            own = (keras.callbacks.History, keras.callbacks.ProgbarLogger)
            after = listed.callbacks[listed.callbacks.index(self) + 1 :]
            late = [type(other).__name__ for other in after if not isinstance(other, own)]
            if late:
                raise CannotFollow(
                    f"callbacks=[…]: put Rung's callback last, behind {', '.join(late)}; what "
                    "they do at the end of an epoch is part of the checkpoint that it makes there"
                )
            if not self._run.distributed.is_chief:
                listed.callbacks = without_writers(listed.callbacks)

    def on_train_begin(self, logs: Any = None) -> None:
        """Go on from the trial's newest checkpoint, if there is one."""
        self._left = False
        once.begin(self._run, "fit()")
        data = read_by_fit()
        refuse_pieces(data, tensorflow=self._tensorflow)
        self._between = Between(getattr(data, "data_adapter", None), self._run.seed)
        exactness.tell(self._run)
        keras_seeds.make(self._run.seed)  # the script may have let go of it
        exchange = exchange_of(self._run)
        if exchange is not None:
            self._together = Together(self._run.distributed, exchange, self.model)
        self._feed = self._stand_before(self.model.train_function)
        with self._course.found() as found:
            if found is not None:
                folder, own = found
                state.load_weights(folder, self.model)
                if own:
                    self._resumed = state.Resumed(folder)
                    within = self._course.progress.batch_in_epoch > 0
                    self._feed.load(folder, within=within)
                    self._between.repeat(self._course.progress.epochs)
        if self._together is not None:
            self._together.share_weights()
        if self._resumed is None:
            state.new_seeds(self._run, self.model, self._course.progress.batches)
        if self._course.complete:
            self._course.validated_again()
            if self._resumed is not None:
                state.set_generators(self._resumed.now, self._resumed.tensorflow)
            self._leave()
            self.model._initial_epoch = _NEVER
        elif found is not None:
            self.model._initial_epoch = self._course.progress.epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set what a checkpoint kept, or remember the generators for one."""
        resumed, feed = self._resumed, self._feed
        assert feed is not None
        assert self._between is not None
        self._between.epoch = self._course.progress.epochs
        self._resumed = None
        self._epoch_open = True
        if resumed is None:
            self._begun = state.same_generators(self._run.distributed)
            feed.begin(epoch, 0, _nothing, dict)
            return
        state.set_callbacks(self._keep, resumed)
        skip = self._course.progress.batch_in_epoch
        self._begun = resumed.begun if skip else resumed.now
        own = resumed.of_rank(self._run.distributed)
        now = own.now if skip else resumed.now
        state.set_generators(self._begun)

        def arrive() -> None:
            state.set_moment(self.model, resumed, within=skip > 0)
            state.set_generators(None if feed.ahead else now, own.tensorflow)
            if own.seeds is None:
                state.new_seeds(self._run, self.model, self._course.progress.batches)
            else:
                state.set_seeds(self.model, own.seeds)
            feed.ahead = False

        feed.begin(epoch, skip, arrive, self.model.get_metrics_result)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report, validate, checkpoint and leave, as is due."""
        assert self._feed is not None
        if self._feed.skipping or self._left:
            self._course.alive()
            return
        self._agree()
        course = self._course
        count = batch + 1 - course.progress.batch_in_epoch
        course.batch_done(count, count * self._batch_size)
        if course.report_due:
            course.report(_numbers(logs))
        if batch + 1 == self.params.get("steps"):
            return
        if course.validation_due:
            self._validate()
        self._keep_and_leave()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report the epoch's validation, checkpoint and leave, as is due."""
        course = self._course
        self._epoch_open = False
        if self._left:
            return
        self._agree()
        course.epoch_done()
        validation = {k: v for k, v in (logs or {}).items() if k.startswith("val_")}
        if validation:
            course.validated(_numbers(validation))
        elif course.validation_due:
            self._validate()
        self._keep_and_leave()

    def on_train_end(self, logs: Any = None) -> None:
        """Step aside; a script that ends by itself leaves a checkpoint too."""
        if not self._left:
            self._store()
        if self._feed is not None:
            self.model.train_function = self._feed.inner
        if self._together is not None:
            self._together.leave()
            self._together = None
        self.model._initial_epoch = 0
        self.model.__dict__.pop("_should_eval", None)

    def _keep_and_leave(self) -> None:
        leaving = self._course.leaving
        if leaving or self._course.checkpoint_due:
            self._store()
        if leaving:
            self._leave()

    def _leave(self) -> None:
        """Have Keras end; the validation that would follow within an epoch is left out."""
        self._left = True
        self.model.stop_training = True
        if self._epoch_open:
            self.model.__dict__["_should_eval"] = _never

    def _store(self) -> None:
        feed, begun = self._feed, self._begun
        if feed is None or begun is None:
            return

        ranks = self._run.distributed

        def write(folder: Any) -> None:
            together = state.of_ranks(ranks, self.model)
            if ranks.is_chief:
                state.write(folder, self.model, begun, self._keep, together)
                feed.save(folder)

        self._course.store(write)

    def _validate(self) -> None:
        """Validate by ourselves, and leave no trace of it in the epoch's metrics."""
        if self._validation_data is None:
            if self._course.complete:
                raise CannotFollow(
                    "the run's length ends where Keras does not validate: give "
                    "Callback(run, validation_data=...), or fit(validation_data=...) with "
                    "searcher.time_metric: epochs"
                )
            return
        model = self.model
        running = state.metric_values(model)
        data = self._validation_data
        pair = data if isinstance(data, tuple) else (data,)
        quietly: dict[str, Any] = {"verbose": 0, "callbacks": [Alive(self._run)]}
        if self._together is not None:
            found = self._together.validated(*pair, **quietly)
        else:
            found = model.evaluate(*pair, return_dict=True, **quietly)
        if not self._tensorflow:
            model.train()
        state.set_metric_values(model, running)
        self._course.validated(_numbers({f"val_{name}": value for name, value in found.items()}))

    def _agree(self) -> None:
        if self._together is not None:
            self._together.agree()

    def _build(self, batch: Any) -> None:
        self.model._symbolic_build(data_batch=batch)

    def _stand_before(self, function: Any) -> Feed:
        inner = function.inner if isinstance(function, Feed) else function
        if self._together is not None:
            inner = self._together.guarded(inner)
        if self._tensorflow:
            steps = self.params.get("steps")
            per_call = self.model.steps_per_execution
            feed: Feed = TensorFlowFeed(inner, per_call, steps, self._build)
        else:
            feed = Feed(inner, 1)
        self.model.train_function = feed
        return feed


def _numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    return {name: float(value) for name, value in (logs or {}).items()}


def _nothing() -> None:
    """Nothing is to be set."""


def _never(_epoch: int, _frequency: Any) -> bool:
    """Do not validate."""
    return False

"""A Keras model that several ranks train as one process would.

Every rank reads the same batches and trains with its part of each, so batches, order and position
are those of one slot. What it does to a model while `fit` runs:

    train_step       gets this rank's part; afterwards all ranks hold the same metrics
    optimizer.apply  gets the mean of the gradients over the records of the whole batch, whoever
                     had them: before it clips, unscales, accumulates or decays
    evaluate         deals out the validation's batches, and adds up the metrics

So after each step all ranks hold the same weights and the same logs, and callbacks that decide by
them decide alike. Of what a layer learns without gradients (running means of batch normalisation)
the chief's counts. The sums of an epoch's metrics lie with the chief while the next batch is
trained and are nothing elsewhere, so adding them up counts each record once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import keras

from rung import core
from rung.keras import batch_split
from rung.keras.collectives import DIFFERENT_BATCHES, NEARLY, Exchange, Span
from rung.keras.optimizers import optimizers_of, strangers_refused
from rung.keras.sharded_evaluation import SeenBatches, evaluated
from rung.training.errors import NotResumable

_WRITERS: Final = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)
"""Callbacks that only tell or write: of several ranks, the chief's are enough."""


class DataParallel:
    """One rank's way of training a model with the others."""

    def __init__(
        self,
        ranks: core.DistributedContext,
        exchange: Exchange,
        model: Any,
        learned: Callable[[Any], Iterable[Any]],
    ) -> None:
        """Change a model so that it trains with the other ranks, until `leave`.

        Args:
            ranks: those that share the work.
            exchange: how they add up.
            model: the model, compiled.
            learned: returns what layers learn without gradients.

        Raises:
            NotResumable: it was compiled in a way that does not go in parts.
        """
        _refuse(model)
        self._ranks: Final = ranks
        self._exchange: Final = exchange
        self._model: Final = model
        self._share: Any = None
        self._learned: Final = learned
        self._jit: Final = model.jit_compile
        self._mine: Final = [float(rank == ranks.rank) for rank in range(ranks.size)]
        self._inner_step: Final = model.train_step
        self._evaluate: Final = model.evaluate
        self._optimizers: Final = optimizers_of(model)
        model.__dict__["train_step"] = self._step
        own_test = type(model).test_step is not keras.Model.test_step
        self._seen: Final = None if own_test else SeenBatches(model, ranks)
        for optimizer in self._optimizers:
            optimizer.__dict__["apply"] = self._averaging(optimizer.apply)
        model.jit_compile = False  # collectives do not go into what XLA compiles
        model.make_train_function(force=True)
        model.test_function = None

    def leave(self) -> None:
        """Give the model back as it was; its functions are made again when they are needed."""
        model = self._model
        model.__dict__.pop("train_step", None)
        model.__dict__.pop("test_step", None)
        for optimizer in self._optimizers:
            optimizer.__dict__.pop("apply", None)
        model.jit_compile = self._jit
        model.train_function = model.test_function = None

    def guarded(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a train function that leaves sums to the chief and names what ranks differ in."""

        def train(source: Any) -> Any:
            others = [] if self._ranks.is_chief else list(self._model.metrics_variables)
            kept = [keras.ops.copy(variable) for variable in others]
            for variable in others:
                variable.assign(keras.ops.zeros_like(variable))
            try:
                return function(source)
            except Exception as error:
                for variable, value in zip(others, kept, strict=True):
                    variable.assign(value)  # there was no other batch
                if self._exchange.refused(error):
                    raise NotResumable(DIFFERENT_BATCHES) from None
                raise

        return train

    def share_weights(self) -> None:
        """Give every rank the chief's weights, as far as there are some already."""
        weights = [weight for weight in self._model.weights if _is_float(weight)]
        if weights:
            sums = self._exchange.sum(self._of_chief(weights))
            for weight, value in zip(weights, sums, strict=True):
                weight.assign(value)

    def agree(self) -> None:
        """End `fit` where the chief ends it."""
        model = self._model
        model.stop_training = self._ranks.broadcast(bool(model.stop_training))

    def validated(self, *given: Any, **named: Any) -> dict[str, float]:
        """Return what `evaluate` finds, done by all ranks together."""

        def whole() -> Any:
            return self._evaluate(*given, **{**named, "return_dict": True})

        return evaluated(self._model, self._ranks, self._exchange, whole, self._seen)

    def _step(self, data: Any) -> Any:
        """Train with this rank's part of a batch; return the logs of all parts."""
        span = self._exchange.span(batch_split.leaves(data)[0])
        self._share = span.share
        try:
            with strangers_refused(lambda: self._share is not None):
                logs = self._inner_step(batch_split.cut(data, span))
        finally:
            self._share = None
        _refuse_metrics(self._model)
        return self._together(logs, span, batch_split.told(data))

    def _together(self, logs: Any, span: Span, fingerprint: Any) -> Any:
        """Bring the metrics of all ranks together; return the logs that they make."""
        model, ops = self._model, keras.ops
        variables = list(model.metrics_variables)
        nothing = ops.equal(span.share, 0.0)
        own = [ops.where(nothing, ops.zeros_like(each), each) for each in variables]
        words = _own_words(model, logs)
        chiefs = [flag * self._mine[0] for _, flag in words.values()]
        parts = [ops.cast(value, "float32") * span.share for value, _ in words.values()]
        prints = fingerprint * ops.convert_to_tensor(self._mine, "float32")
        sums = self._exchange.sum([*own, *parts, *chiefs, prints])
        self._hold_against(sums[-1])
        for variable, value in zip(variables, sums, strict=False):
            variable.assign(value)
        if not isinstance(logs, Mapping):
            return logs
        found = model.get_metrics_result()
        means = sums[len(variables) :]
        for index, name in enumerate(words):
            mean, of_metric = means[index], means[index + len(words)]
            found[name] = ops.where(of_metric > 0, found[name], mean) if name in found else mean
        return {name: found[name] for name in logs}

    def _hold_against(self, prints: Any) -> None:
        """Fail the step unless all ranks read the same batch."""
        ops = keras.ops
        apart = ops.max(prints) - ops.min(prints)
        self._exchange.insist(apart <= NEARLY * (1.0 + ops.max(ops.absolute(prints))))

    def _averaging(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Return an optimizer's `apply` that is given the mean over all ranks."""

        def apply(grads: Any, trainable_variables: Any = None) -> Any:
            grads, share = list(grads), self._share
            if share is None:
                return inner(grads, trainable_variables)
            held = [index for index, gradient in enumerate(grads) if gradient is not None]
            learned = [each for each in self._learned(self._model) if _is_float(each)]
            parts = [_weighted(grads[index], share) for index in held]
            sums = self._exchange.sum([*parts, *self._of_chief(learned)])
            for index, value in zip(held, sums, strict=False):
                grads[index] = value
            for variable, value in zip(learned, sums[len(held) :], strict=True):
                variable.assign(value)
            self._share = None  # an optimizer within this one gets what is averaged
            try:
                return inner(grads, trainable_variables)
            finally:
                self._share = share

        return apply

    def _of_chief(self, variables: list[Any]) -> list[Any]:
        """Return values that add up to the chief's."""
        if self._ranks.is_chief:
            return [keras.ops.convert_to_tensor(variable) for variable in variables]
        return [keras.ops.zeros_like(variable) for variable in variables]


def without_writers(callbacks: list[Any]) -> list[Any]:
    """Return callbacks without those that write what the chief's write already."""
    return [callback for callback in callbacks if type(callback) not in _WRITERS]


def _refuse(model: Any) -> None:
    if model.steps_per_execution > 1:
        raise NotResumable(
            f"compile(steps_per_execution={model.steps_per_execution}): what several slots say to "
            "each other does not go into TensorFlow's loops; leave it out, or set "
            "slots_per_trial: 1"
        )
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in {"mean", "sum_over_batch_size"}:
            raise NotResumable(
                f"the loss {loss.name} has reduction={reduction!r}; what several slots find can "
                "be put together where a loss is a mean over records: use "
                "reduction='sum_over_batch_size', or set slots_per_trial: 1"
            )


def _refuse_metrics(model: Any) -> None:
    for metric in model.metrics:
        for variable in metric.variables:
            if variable.aggregation != "sum":
                raise NotResumable(
                    f"the metric {metric.name} keeps a number with aggregation="
                    f"{variable.aggregation!r}; what several slots find can be put together where "
                    "it is a sum: give add_variable() aggregation='sum', or set "
                    "slots_per_trial: 1"
                )


def _own_words(model: Any, logs: Any) -> dict[str, tuple[Any, Any]]:
    """Return what a step of the script's own says, and whether that is a metric's result.

    What is none is a mean over this rank's part.
    """
    if type(model).train_step is keras.Model.train_step or not isinstance(logs, Mapping):
        return {}
    known = model.get_metrics_result()
    never = keras.ops.zeros((), "float32")
    return {
        name: (value, _same(value, known[name]) if name in known else never)
        for name, value in logs.items()
    }


def _same(value: Any, other: Any) -> Any:
    ops = keras.ops
    return ops.cast(ops.equal(ops.cast(value, "float32"), ops.cast(other, "float32")), "float32")


def learned(model: Any) -> Iterator[Any]:
    """Yield what layers that are not frozen learn without gradients, such as running means."""
    frozen = {
        id(weight) for layer in layers_of(model) if not layer.trainable for weight in layer.weights
    }
    yield from (each for each in model.non_trainable_weights if id(each) not in frozen)


def layers_of(model: Any) -> Iterator[Any]:
    """Yield a model's layers, those of models within it, too."""
    for layer in model.layers:
        yield layer
        if isinstance(layer, keras.Model):
            yield from layers_of(layer)


def _weighted(gradient: Any, share: Any) -> Any:
    dense = keras.ops.convert_to_tensor(gradient)
    return dense * keras.ops.cast(share, dense.dtype)


def _is_float(variable: Any) -> bool:
    return "float" in keras.backend.standardize_dtype(variable.dtype)

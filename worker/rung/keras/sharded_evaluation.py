"""Validation that ranks share: its batches are dealt out whole, what they found is added up."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from rung import core
from rung.keras.collectives import Exchange


def evaluated(
    model: Any, ranks: core.DistributedContext, exchange: Exchange, evaluate: Callable[[], Any]
) -> dict[str, float]:
    """Return a validation's metrics, the same on all ranks, each batch counted once.

    A model with a `test_step` of its own is evaluated whole by each rank, and what the chief
    found counts.

    Args:
        model: the model, compiled.
        ranks: those that share the work.
        exchange: how they add up.
        evaluate: evaluates what it is given of all batches, and returns metrics by name.
    """
    if type(model).test_step is not keras.Model.test_step:
        found: dict[str, float] = ranks.broadcast(_numbers(evaluate()))
        return found
    model.make_test_function()
    whole = model.test_function
    model.test_function = Dealt(whole, ranks, model)
    try:
        evaluate()
    finally:
        model.test_function = whole
    variables = list(model.metrics_variables)
    own = [keras.ops.convert_to_tensor(variable) for variable in variables]
    for variable, value in zip(variables, exchange.sum(own), strict=True):
        variable.assign(value)
    return _numbers(model.get_metrics_result())


class Dealt:
    """A test function that is given every batch and evaluates those that fall to its rank."""

    def __init__(
        self, inner: Callable[[Any], Any], ranks: core.DistributedContext, model: Any
    ) -> None:
        self._inner = inner
        self._ranks = ranks
        self._model = model
        self._number = 0

    def __call__(self, source: Any) -> Any:
        """Evaluate the next batch, or pass it by."""
        mine = self._number % self._ranks.size == self._ranks.rank
        self._number += 1
        if mine:
            return self._inner(source)
        if not isinstance(source, list):  # torch's loop has read the batch already
            next(source)
        return self._model.get_metrics_result()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}

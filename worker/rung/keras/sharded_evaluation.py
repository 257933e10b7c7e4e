"""Validation that ranks share: its batches are dealt out whole, what they found is added up.

Each rank reads all batches, those that another evaluates, too. So each knows a number that tells
the batches of a rank from others, and data that differ from rank to rank are refused.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import keras

from rung import core
from rung.keras import batch_split
from rung.keras.collectives import DIFFERENT_BATCHES, NEARLY, Exchange
from rung.training.errors import NotResumable


class SeenBatches:
    """What a rank saw of a validation's batches: a number for those of each rank."""

    def __init__(self, model: Any, ranks: core.DistributedContext) -> None:
        """Stand before a model's `test_step`, which evaluates the rank's own batches.

        Args:
            model: the model, compiled.
            ranks: those that share the work.
        """
        self._ranks: Final = ranks
        self._inner: Final = model.test_step
        self._own: Final = keras.Variable(0.0, trainable=False, dtype="float32")
        self._others: list[float] = []
        model.__dict__["test_step"] = self._step

    def begin(self) -> None:
        """Begin a validation."""
        self._own.assign(0.0)
        self._others = [0.0] * self._ranks.size

    def pass_by(self, rank: int, data: Any) -> None:
        """Take a batch that another rank evaluates."""
        self._others[rank] += float(batch_split.told(data))

    def compare(self) -> None:
        """Compare what all ranks saw.

        Raises:
            NotResumable: they read different batches.
        """
        mine = list(self._others)
        mine[self._ranks.rank] = float(self._own)
        said = self._ranks.allgather(mine)
        for each in zip(*said, strict=True):
            if not max(each) - min(each) <= NEARLY * (1.0 + max(map(abs, each))):
                raise NotResumable(DIFFERENT_BATCHES)

    def _step(self, data: Any) -> Any:
        self._own.assign_add(batch_split.told(data))
        return self._inner(data)


def evaluated(
    model: Any,
    ranks: core.DistributedContext,
    exchange: Exchange,
    evaluate: Callable[[], Any],
    seen: SeenBatches | None,
) -> dict[str, float]:
    """Return a validation's metrics, the same on all ranks, each batch counted once.

    A model with a `test_step` of its own is evaluated whole by each rank, and what the chief
    found counts.

    Args:
        model: the model, compiled.
        ranks: those that share the work.
        exchange: how they add up.
        evaluate: evaluates what it is given of all batches, and returns metrics by name.
        seen: of the model; None: it has a `test_step` of its own.

    Raises:
        NotResumable: the ranks read different batches.
    """
    if seen is None:
        found: dict[str, float] = ranks.broadcast(_numbers(evaluate()))
        return found
    model.make_test_function()
    whole = model.test_function
    model.test_function = Dealt(whole, ranks, model, seen)
    seen.begin()
    try:
        evaluate()
    finally:
        model.test_function = whole
    seen.compare()
    variables = list(model.metrics_variables)
    own = [keras.ops.convert_to_tensor(variable) for variable in variables]
    for variable, value in zip(variables, exchange.sum(own), strict=True):
        variable.assign(value)
    return _numbers(model.get_metrics_result())


class Dealt:
    """A test function that is given every batch and evaluates those that fall to its rank."""

    def __init__(
        self,
        inner: Callable[[Any], Any],
        ranks: core.DistributedContext,
        model: Any,
        seen: SeenBatches,
    ) -> None:
        self._inner = inner
        self._ranks = ranks
        self._model = model
        self._seen = seen
        self._number = 0

    def __call__(self, source: Any) -> Any:
        """Evaluate the next batch, or pass it by."""
        owner = self._number % self._ranks.size
        self._number += 1
        if owner == self._ranks.rank:
            return self._inner(source)
        # torch's loop has read the batch already
        self._seen.pass_by(owner, source[0] if isinstance(source, list) else next(source))
        return self._model.get_metrics_result()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}

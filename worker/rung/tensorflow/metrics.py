"""Metrics of many batches, and of all ranks, as one number each."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from rung import core
from rung.core._train import wire_values
from rung.tensorflow.batch_split import fingerprint, records_of, refuse_apart
from rung.training.averages import Reducer, TrainingAverages, ValidationResult


class Means:
    """Means over the batches since the last report.

    Tensors are kept as they are until they are read, so that adding one waits for no GPU.
    """

    def __init__(self) -> None:
        self._averages = TrainingAverages()
        self._waiting: list[tuple[dict[str, Any], float]] = []

    def add(self, metrics: Mapping[str, Any], share: float) -> None:
        """Take the metrics of a part of a batch that is so large a share of it."""
        self._waiting.append((dict(metrics), share))

    def take(self, ranks: core.DistributedContext) -> dict[str, float]:
        """Return the means and start over; the chief gets those of all ranks, others nothing."""
        self._settle()
        return self._averages.take(ranks)

    def state(self) -> dict[str, Any]:
        """Return what was added since the last report."""
        self._settle()
        return self._averages.state_dict()

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._averages.load_state_dict(dict(state))

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, []
        for metrics, share in waiting:
            self._averages.add(numbers(metrics), share)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as numbers, whether they are tensors, Keras metrics, arrays or numbers.

    Raises:
        ReportRefused: one is no single number.
    """
    return {name: float(wire_values({name: _plain(each)})[name]) for name, each in metrics.items()}


def evaluated(
    data: Iterable[Any],
    evaluate: Callable[..., Mapping[str, Any]],
    ranks: core.DistributedContext,
) -> dict[str, float]:
    """Return means over the records of all batches, on every rank.

    Whole batches are dealt to the ranks in turn. They are added up in their order, so that any
    number of ranks comes to the same bits.

    Raises:
        NotResumable: the ranks read different batches.
    """
    read: list[float] = []
    own: list[tuple[int, int, dict[str, float]]] = []
    for number, batch in enumerate(data):
        if ranks.size > 1:
            read.append(fingerprint(batch))
        if number % ranks.size == ranks.rank:
            found = evaluate(*batch) if isinstance(batch, tuple) else evaluate(batch)
            own.append((number, records_of(batch), numbers(found)))
    result = ValidationResult(Reducer.AVG)
    said = ranks.allgather((own, read))
    refuse_apart([each for _, each in said], "validation")
    together = [each for part, _ in said for each in part]
    for _, records, metrics in sorted(together, key=lambda each: each[0]):
        result.add(metrics, records)
    return result.reduced()


def _plain(value: Any) -> Any:
    if callable(getattr(value, "result", None)):  # a Keras metric
        value = value.result()
    return value.numpy() if isinstance(value, tf.Tensor | tf.Variable) else value

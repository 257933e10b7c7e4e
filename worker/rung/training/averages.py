"""Averages: reduces the metrics of many batches to one number each."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from rung import core
from rung.core._train import wire_values


class Reducer(enum.Enum):
    """How the validation metrics of all batches are reduced to one number."""

    AVG = "avg"
    """The mean over records: batches are weighted by their size."""
    SUM = "sum"
    MIN = "min"
    MAX = "max"


class TrainingAverages:
    """Means over the batches since the last report.

    A batch is weighted by the shares of the ranks that reported its metric. Torch tensors on a GPU
    are kept until `take`, so that `add` does not wait for the GPU; they are summed in the order of
    the calls, so the result does not depend on when it is asked for.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        self._waiting: list[tuple[str, Any, float]] = []
        self.each = False
        """Whether to keep the metrics of each batch, too, for `batches`."""
        self._batches: list[dict[str, Any]] = []

    def add(self, metrics: Mapping[str, Any], share: float = 1.0) -> None:
        """Add the metrics of a batch, or of a rank's part, which is the given share of it."""
        if self.each:
            self._batches.append({name: _held(value) for name, value in metrics.items()})
        for name, value in metrics.items():
            if getattr(value, "is_cuda", False):
                self._waiting.append((name, _held(value), share))
            else:
                self._add(name, value, share)

    def take(self, ranks: core.DistributedContext | None = None) -> dict[str, float]:
        """Return the means and start again.

        Args:
            ranks: that share the batches; the chief gets the means, others an empty dict.
        """
        self._settle()
        if ranks is not None and ranks.size > 1:
            together = ranks.gather({"sums": self._sums, "counts": self._counts})
            whole = merged(together) if together else {"sums": {}, "counts": {}}
            self._sums, self._counts = whole["sums"], whole["counts"]
        counts = self._counts
        means = {name: total / counts[name] for name, total in self._sums.items() if counts[name]}
        self._sums, self._counts = {}, {}
        return means

    def batches(self) -> list[dict[str, float]]:
        """Return the metrics of each batch since the last report, and start again."""
        batches, self._batches = self._batches, []
        return [_numbers(metrics) for metrics in batches]

    def state_dict(self) -> dict[str, Any]:
        """Return what was added since the last report."""
        self._settle()
        state: dict[str, Any] = {"sums": dict(self._sums), "counts": dict(self._counts)}
        if self.each:
            state["batches"] = [_numbers(metrics) for metrics in self._batches]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self._batches = list(state.get("batches", []))

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, []
        for name, value, share in waiting:
            self._add(name, value, share)

    def _add(self, name: str, value: Any, share: float) -> None:
        number = float(wire_values({name: value})[name])
        if share != 1.0:
            number = number * share if share else 0.0
        self._sums[name] = self._sums.get(name, 0.0) + number
        self._counts[name] = self._counts.get(name, 0.0) + share


def merged(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the merged states of all ranks, in their order."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for state in states:
        for name, total in state["sums"].items():
            sums[name] = sums.get(name, 0.0) + total
            counts[name] = counts.get(name, 0.0) + state["counts"][name]
    return {"sums": sums, "counts": counts}


def _held(value: Any) -> Any:
    """Return a copy that later steps do not change, without waiting for a GPU."""
    return value.detach().clone() if hasattr(value, "detach") else value


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in wire_values(metrics).items()}


def named(metrics: Any) -> Mapping[str, Any]:
    """Return the result of `train_batch` as metrics by name; a single number is the loss."""
    if metrics is None:
        return {}
    return metrics if isinstance(metrics, Mapping) else {"loss": metrics}


class ValidationResult:
    """Reduces the metrics of the validation batches."""

    def __init__(self, reducers: Reducer | Mapping[str, Reducer]) -> None:
        self._reducers = reducers
        self._values: dict[str, float] = {}
        self._weights: dict[str, int] = {}

    def add(self, metrics: Mapping[str, Any], records: int) -> None:
        """Add the metrics of a batch with a number of records."""
        for name, wire in wire_values(metrics).items():
            value = float(wire)
            reducer = self._reducer(name)
            if reducer is Reducer.AVG:
                value *= records
            if name not in self._values:
                self._values[name], self._weights[name] = value, records
            else:
                self._values[name] = _join(reducer, self._values[name], value)
                self._weights[name] += records

    def reduced(self) -> dict[str, float]:
        """Return one number for each metric."""
        return {
            name: value / self._weights[name] if self._reducer(name) is Reducer.AVG else value
            for name, value in self._values.items()
        }

    def _reducer(self, name: str) -> Reducer:
        if isinstance(self._reducers, Reducer):
            return self._reducers
        return self._reducers.get(name, Reducer.AVG)


def _join(reducer: Reducer, left: float, right: float) -> float:
    match reducer:
        case Reducer.AVG | Reducer.SUM:
            return left + right
        case Reducer.MIN:
            return min(left, right)
        case Reducer.MAX:
            return max(left, right)

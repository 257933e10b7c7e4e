"""Reducers: metrics that are not means of batches, such as an F1 score.

    self.f1 = context.wrap_reducer(f1_of_pairs, name="f1", for_training=False)
    …
    self.f1.update((predictions, labels))           # in evaluate_batch or train_batch

A function gets all values passed to `update` on all ranks since the last report, or in this
validation. For more, define a `MetricReducer`, with its own `update`. Both get tensors on the CPU.
Calls of `update` are ignored where a rank computes a batch only because others do. Values that are
not reported yet are part of checkpoints; those of a `MetricReducer` if it has `state_dict` and
`load_state_dict`.
"""

import abc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from rung import core
from rung.torch.determinism import Kept, is_kept, log_fewer_ranks, log_stateless_reducer
from rung.torch.pytree import mapped
from rung.training.units import InvalidPlan

_EACH: Final = "of each rank"


class MetricReducer(abc.ABC):
    """Computes one metric, or several by name, from values that the trial passes to it."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Clear the values: a report was made, or a validation begins."""

    @abc.abstractmethod
    def per_slot_reduce(self) -> Any:
        """Return this process's values: tensors, numbers, text, and lists and dicts of them."""

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the metric of all processes' values; without a name, a dict of metrics."""


class Collected(MetricReducer):
    """Collects values for a function."""

    def __init__(self, reduce: Callable[[list[Any]], Any], ranks: core.DistributedContext) -> None:
        self._reduce = reduce
        self._ranks = ranks
        self._given: list[Any] = []

    def update(self, value: Any) -> None:
        """Add a value."""
        self._given.append(mapped(value, lambda tensor: tensor.detach().clone()))

    def reset(self) -> None:
        """Forget all values."""
        self._given = []

    def per_slot_reduce(self) -> list[Any]:
        """Return this process's values."""
        return self._given

    def cross_slot_reduce(self, per_slot_metrics: list[list[Any]]) -> Any:
        """Return the function of all values; None without any."""
        together = [value for values in per_slot_metrics for value in values]
        return self._reduce(together) if together else None

    def state_dict(self) -> dict[str, Any]:
        """Return the values of each process; all of them must call this."""
        return {"ranks": gathered(self._ranks, self._given)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the values; with another number of processes, all of them on the first."""
        given: list[list[Any]] = state["ranks"]
        if len(given) == self._ranks.size:
            self._given = list(given[self._ranks.rank])
        elif self._ranks.is_chief:
            self._given = [value for values in given for value in values]


class OfEachRank:
    """The states of a reducer: each process restores its own."""

    def __init__(self, reducer: Any, ranks: core.DistributedContext) -> None:
        self._reducer = reducer
        self._ranks = ranks

    def state_dict(self) -> Any:
        """Return the state of each process; all of them must call this."""
        state = self._reducer.state_dict()
        return state if self._ranks.size == 1 else {_EACH: gathered(self._ranks, state)}

    def load_state_dict(self, state: Any) -> None:
        """Restore this process's state; log if there are fewer processes than before."""
        each = state[_EACH] if isinstance(state, Mapping) and [*state] == [_EACH] else [state]
        if self._ranks.rank < len(each):
            self._reducer.load_state_dict(each[self._ranks.rank])
        if self._ranks.is_chief and len(each) > self._ranks.size:
            log_fewer_ranks(self._reducer, len(each), self._ranks.size)


class _Wrapped(NamedTuple):
    reducer: MetricReducer
    name: str | None
    for_training: bool
    for_validation: bool


class Reducers:
    """The reducers of a trial."""

    def __init__(self, ranks: core.DistributedContext) -> None:
        self._ranks = ranks
        self._all: list[_Wrapped] = []

    def __len__(self) -> int:
        return len(self._all)

    def wrap(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None,
        *,
        training: bool,
        validation: bool,
    ) -> Any:
        """Add a reducer, or one for a function, and return it.

        Raises:
            InvalidPlan: the name is taken.
        """
        if name is not None and any(it.name == name for it in self._all):
            raise InvalidPlan(f"wrap_reducer: there is a metric {name!r} already; rename one")
        if not isinstance(reducer, MetricReducer):
            reducer = Collected(reducer, self._ranks)
        elif training and not is_kept(reducer):
            log_stateless_reducer(reducer)
        self._all.append(_Wrapped(reducer, name, training, validation))
        return reducer

    def kept(self, reducer: Any) -> Kept | None:
        """Return the object to keep in checkpoints for a reducer; None where it has no state."""
        if not is_kept(reducer):
            return None
        return reducer if isinstance(reducer, Collected) else OfEachRank(reducer, self._ranks)

    def reset(self, *, training: bool) -> None:
        """Begin a report, or a validation."""
        for wrapped in self._of(training=training):
            wrapped.reducer.reset()

    @contextmanager
    def paused(self, *, when: bool = True) -> Iterator[None]:
        """Ignore calls of `update` in the block."""
        reducers = [vars(it.reducer) for it in self._all] if when else []
        before = [each.get("update") for each in reducers]
        for each in reducers:
            each["update"] = _ignored
        try:
            yield
        finally:
            for each, update in zip(reducers, before, strict=True):
                each["update"] = update
                if update is None:
                    del each["update"]

    def reduced(self, *, training: bool) -> dict[str, Any]:
        """Return the metrics of a report, or of a validation; all ranks must call this."""
        found: dict[str, Any] = {}
        for reducer, name, *_ in self._of(training=training):
            value = reducer.cross_slot_reduce(gathered(self._ranks, reducer.per_slot_reduce()))
            if value is None:
                continue
            if name is not None:
                found[name] = value
            elif isinstance(value, Mapping):
                found |= value
            else:
                raise InvalidPlan(
                    f"wrap_reducer: {type(reducer).__name__} has no name, so it must return a dict"
                    f" of metrics, not {type(value).__name__}; or give it a name"
                )
        return found

    def _of(self, *, training: bool) -> Iterator[_Wrapped]:
        return (it for it in self._all if (it.for_training if training else it.for_validation))


def _ignored(*_given: Any, **_more: Any) -> None:
    """Ignore a value."""


def gathered(ranks: core.DistributedContext, value: Any) -> list[Any]:
    """Return the values of all ranks on every rank, with tensors on the CPU.

    Restored values are on the CPU as well, so both can be combined.
    """
    return ranks.allgather(mapped(value, lambda tensor: tensor.detach().cpu()))

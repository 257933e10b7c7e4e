"""The optimizers of a model, and others that a step of its own may use."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from rung.training.errors import NotResumable


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizers in a model's attributes, each once; in lists and dicts, too."""
    found = _within([model.optimizer, *vars(model).values()], set())
    return list({id(each): each for each in found}.values())


@contextlib.contextmanager
def strangers_refused(bare: Callable[[], bool]) -> Iterator[None]:
    """For the length of a block, refuse optimizers whose gradients are not averaged.

    Each rank would go its own way with them.

    Args:
        bare: returns whether gradients that come to an optimizer now are of one rank alone.
    """
    kind = keras.optimizers.Optimizer
    inner, own = kind.apply, vars(kind).get("apply")

    def apply(optimizer: Any, *given: Any, **named: Any) -> Any:
        if bare():
            raise NotResumable(
                f"train_step: the optimizer {optimizer.name} is not among the model's attributes, "
                "so several slots would not average its gradients: make it one before fit() "
                "(self.name = optimizer, or a list or dict of them), or set slots_per_trial: 1"
            )
        return inner(optimizer, *given, **named)

    kind.apply = apply
    try:
        yield
    finally:
        if own is None:
            del kind.apply
        else:
            kind.apply = own


def _within(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the optimizers in a value."""
    if isinstance(value, keras.optimizers.Optimizer):
        yield value
    elif isinstance(value, Mapping | list | tuple | set) and id(value) not in seen:
        seen.add(id(value))
        for each in list(value.values()) if isinstance(value, Mapping) else list(value):
            yield from _within(each, seen)

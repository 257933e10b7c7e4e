"""The search space: how a trial's hyperparameters are drawn.

A space is the experiment file's `hyperparameters`: a map of parameters and of nested groups. It
is flattened into leaves in sorted order of their paths. Sampling draws each leaf by its path
(`draw`); a grid is the product of the leaves' values, the last leaf changing fastest.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from rung.events.errors import InvalidConfig
from rung.methods.rng import integer_below, power, uniform


class Const(Struct, tag_field="type", tag="const"):
    """Always the same value."""

    val: Any


class Int(Struct, tag_field="type", tag="int"):
    """A whole number; both ends may be drawn."""

    minval: int
    maxval: int
    count: int | None = None


class Double(Struct, tag_field="type", tag="double"):
    """A number, uniform between its ends."""

    minval: float
    maxval: float
    count: int | None = None


class Log(Struct, tag_field="type", tag="log"):
    """A power of `base`, its exponent uniform between the ends."""

    minval: float
    maxval: float
    base: float = 10.0
    count: int | None = None


class Categorical(Struct, tag_field="type", tag="categorical"):
    """One of the values, all of them equally likely."""

    vals: list[Any]


Parameter = Const | Int | Double | Log | Categorical


class Leaf(Struct):
    """A parameter and the names of the groups that it lies in, its own last."""

    path: list[str]
    parameter: Parameter


_PURPOSE: Final = "hparam"


def flatten(hyperparameters: dict[str, Any]) -> list[Leaf]:
    """Return the leaves of a search space in sorted order of their paths.

    A map without a `type` is a group; an empty one and a bare value are constants.

    Raises:
        InvalidConfig: a parameter is not of the shape that its type asks for.
    """
    return _flatten(hyperparameters, [])


def _flatten(group: dict[str, Any], path: list[str]) -> list[Leaf]:
    leaves: list[Leaf] = []
    for name in sorted(group):
        here, value = [*path, name], group[name]
        if isinstance(value, dict) and value and "type" not in value:
            leaves += _flatten(value, here)
        else:
            leaves.append(Leaf(here, _parameter(value, here)))
    return leaves


def _parameter(value: Any, path: Sequence[str]) -> Parameter:
    if not isinstance(value, dict) or not value:
        return Const(value)
    try:
        parameter: Parameter = msgspec.convert(value, Parameter)
    except msgspec.ValidationError as error:
        raise InvalidConfig([(".".join(("hyperparameters", *path)), str(error))]) from error
    return parameter


def sample(space: Sequence[Leaf], seed: int, index: int) -> dict[str, Any]:
    """Return the hyperparameters of a trial of a search that draws them."""
    return _nest(space, [_draw(leaf, seed, index) for leaf in space])


def _draw(leaf: Leaf, seed: int, index: int) -> Any:
    match leaf.parameter:
        case Const(val):
            return val
        case Int(low, high):
            return low + integer_below(high - low + 1, seed, _PURPOSE, index, leaf.path)
        case Double(low, high):
            return _between(low, high, uniform(seed, _PURPOSE, index, leaf.path))
        case Log(low, high, base):
            exponent = _between(low, high, uniform(seed, _PURPOSE, index, leaf.path))
            return power(base, exponent)
        case Categorical(vals):
            return vals[integer_below(len(vals), seed, _PURPOSE, index, leaf.path)]


def grid_steps(parameter: Parameter) -> int | None:
    """Return how many values of a parameter a grid has, None where `count` is missing."""
    match parameter:
        case Const():
            return 1
        case Categorical(vals):
            return len(vals)
        case Int(low, high, count):
            return count and min(count, high - low + 1)
        case Double() | Log():
            return parameter.count


def grid_size(space: Sequence[Leaf]) -> int:
    """Return how many points a grid over the space has.

    Raises:
        InvalidConfig: a range has no `count`.
    """
    return math.prod(_steps(leaf) for leaf in space)


def grid_point(space: Sequence[Leaf], index: int) -> dict[str, Any]:
    """Return the hyperparameters of a grid's point, points counted from 0."""
    values: list[Any] = []
    for leaf in reversed(space):
        steps = _steps(leaf)
        index, step = divmod(index, steps)
        values.append(_on_axis(leaf.parameter, step, steps))
    return _nest(space, values[::-1])


def _on_axis(parameter: Parameter, step: int, steps: int) -> Any:
    """Return one of the values of a parameter in a grid; of a range with `count` 1, its middle."""
    match parameter:
        case Const(val):
            return val
        case Categorical(vals):
            return vals[step]
        case Int(low, high):
            return _whole_step(low, high, step, steps)
        case Double(low, high):
            return _between(low, high, _fraction(step, steps))
        case Log(low, high, base):
            return power(base, _between(low, high, _fraction(step, steps)))


def _steps(leaf: Leaf) -> int:
    steps = grid_steps(leaf.parameter)
    if steps is None:
        path = ".".join(("hyperparameters", *leaf.path, "count"))
        raise InvalidConfig([(path, "a grid search needs it: how many values to try")])
    return steps


def _whole_step(low: int, high: int, step: int, steps: int) -> int:
    """Return a step between whole numbers, halves rounded away from zero; exact."""
    over, under = (step, steps - 1) if steps > 1 else (1, 2)
    twice = 2 * (low * under + (high - low) * over)
    rounded = (abs(twice) + under) // (2 * under)
    return rounded if twice >= 0 else -rounded


def _fraction(step: int, steps: int) -> float:
    return step / (steps - 1) if steps > 1 else 0.5


def _between(low: float, high: float, fraction: float) -> float:
    """Return the point between two ends, never outside them, also where they lie far apart."""
    if fraction >= 1.0:
        return high
    return min(max(low * (1.0 - fraction) + high * fraction, low), high)


def _nest(space: Sequence[Leaf], values: Sequence[Any]) -> dict[str, Any]:
    hparams: dict[str, Any] = {}
    for leaf, value in zip(space, values, strict=True):
        group = hparams
        for name in leaf.path[:-1]:
            group = group.setdefault(name, {})
        group[leaf.path[-1]] = value
    return hparams

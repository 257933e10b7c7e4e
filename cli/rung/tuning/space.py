"""The search space of `rung.tune`: plain Python, turned into the experiment file's maps."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rung.config.space_spelling import misspelling
from rung.events import RungError

_KINDS: Final = ("const", "int", "double", "log", "categorical")


class InvalidSpace(RungError):
    """A search space that is refused; the message names the parameter and what to write."""


def uniform(low: float, high: float, *, count: int | None = None) -> dict[str, Any]:
    """Return a number between two others.

    Args:
        low: the smallest value.
        high: the largest value.
        count: how many values a grid search tries.
    """
    _check("uniform", low, high)
    return _counted({"type": "double", "minval": float(low), "maxval": float(high)}, count)


def loguniform(low: float, high: float, *, count: int | None = None) -> dict[str, Any]:
    """Return a number between two others whose logarithm is uniform, such as a learning rate.

    Args:
        low: the smallest value, above 0: the value itself, not its exponent.
        high: the largest value.
        count: how many values a grid search tries.
    """
    _check("loguniform", low, high)
    if low <= 0:
        raise InvalidSpace(
            f"rung.loguniform({low!r}, {high!r}): give values above 0, not their exponents; for"
            f" exponents of 10 that is rung.loguniform(1e{low:g}, 1e{high:g})"
        )
    ends = {"minval": math.log10(low), "maxval": math.log10(high)}
    return _counted({"type": "log", "base": 10.0, **ends}, count)


def randint(low: int, high: int, *, count: int | None = None) -> dict[str, Any]:
    """Return a whole number; both ends may be drawn, as by Python's `random.randint`.

    Args:
        low: the smallest value.
        high: the largest value.
        count: how many values a grid search tries.
    """
    _check("randint", low, high)
    if int(low) != low or int(high) != high:
        raise InvalidSpace(f"rung.randint({low!r}, {high!r}): give whole numbers")
    return _counted({"type": "int", "minval": int(low), "maxval": int(high)}, count)


def choice(values: Sequence[Any]) -> dict[str, Any]:
    """Return one of several values, all equally likely."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise InvalidSpace(f"rung.choice({values!r}): give a list of at least one value")
    return {"type": "categorical", "vals": [_plain(value, "rung.choice") for value in values]}


def hyperparameters(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space as the experiment file's `hyperparameters`.

    Raises:
        InvalidSpace: something in it is neither a parameter nor a value.
    """
    if not isinstance(space, Mapping):
        raise InvalidSpace(
            f"space={space!r}: give a dict of parameters, such as"
            ' {"lr": rung.loguniform(1e-4, 1e-1), "layers": [2, 3, 4]}'
        )
    return _group(space, "")


def _group(space: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in space.items():
        if not isinstance(name, str):
            raise InvalidSpace(f"space: {name!r} is no name of a parameter; names are strings")
        found[name] = _parameter(value, f"{prefix}{name}")
    return found


def _parameter(value: Any, name: str) -> Any:
    match value:
        case {"type": kind} if kind in _KINDS:
            return dict(value)
        case {"type": kind}:
            raise InvalidSpace(
                f"space: {name} has the type {kind!r}; the types are {', '.join(_KINDS)}"
            )
        case Mapping():
            wrong = misspelling(dict(value))
            if wrong is not None:
                raise InvalidSpace(
                    f"space: {name} {wrong}; in Python that is a list for a choice,"
                    " rung.uniform(low, high) for a range"
                )
            return _group(value, f"{name}.")
        case list():
            if not value:
                raise InvalidSpace(f"space: {name} is an empty list; give values to choose from")
            return {"type": "categorical", "vals": [_plain(item, name) for item in value]}
        case tuple() | range() | set() | frozenset():
            raise InvalidSpace(f"space: {name}={value!r}: {_instead(value)}")
        case _:
            return {"type": "const", "val": _plain(value, name)}


def _instead(value: Any) -> str:
    """Return what to write for a range that may be meant in several ways."""
    match value:
        case (int() as low, int() as high):
            return f"write rung.randint({low}, {high}) for a range, [{low}, {high}] for a choice"
        case (int() | float() as low, int() | float() as high):
            logarithmic = f" or rung.loguniform({low}, {high})" if low > 0 else ""
            return (
                f"write rung.uniform({low}, {high}){logarithmic} for a range, [{low}, {high}] for"
                " a choice"
            )
        case range() if value and value.step == 1:
            return f"write rung.randint({value[0]}, {value[-1]})"
        case _:
            return f"write {list(value)!r} for a choice"


def _plain(value: Any, name: str) -> Any:
    """Return a value as JSON has it.

    Raises:
        InvalidSpace: JSON does not have it.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_plain(item, name) for item in value]
        case Mapping() if all(isinstance(key, str) for key in value):
            return {key: _plain(item, name) for key, item in value.items()}
        case _ if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            return _plain(value.item(), name)
        case _ if type(value).__module__.partition(".")[0] in {"optuna", "ray", "scipy"}:
            raise InvalidSpace(
                f"space: {name} is a {type(value).__module__}.{type(value).__name__}; write"
                " rung.uniform(low, high), rung.loguniform(low, high), rung.randint(low, high) or"
                " rung.choice([…])"
            )
        case _:
            raise InvalidSpace(
                f"space: {name} has the value {value!r}, which is no number, text, truth value,"
                " list or dict: give a name for it, and look it up in the function"
            )


def _check(name: str, low: float, high: float) -> None:
    if not all(isinstance(end, int | float) or hasattr(end, "item") for end in (low, high)):
        raise InvalidSpace(f"rung.{name}({low!r}, {high!r}): give two numbers")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidSpace(
            f"rung.{name}({low!r}, {high!r}): give a smaller and a larger number; for one value"
            " write the value alone"
        )


def _counted(parameter: dict[str, Any], count: int | None) -> dict[str, Any]:
    return parameter if count is None else {**parameter, "count": int(count)}

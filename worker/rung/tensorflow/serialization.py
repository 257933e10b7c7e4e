"""Values as JSON and arrays, and back: what a script keeps by two methods is never unpickled."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rung.training.errors import NotResumable

_ARRAY: Final = "__array__"
_TUPLE: Final = "__tuple__"
_SCALARS: Final = (str, int, float, bool, type(None))


def packed(value: Any, place: str, arrays: dict[str, Any]) -> Any:
    """Return a value as JSON holds it; what arrays are in it go to `arrays`.

    Args:
        value: numbers, text, arrays, and lists, tuples and dicts of them.
        place: where it was found, for the names of arrays and for messages.
        arrays: takes the arrays, by names of their own.

    Raises:
        NotResumable: something in it is none of these; the message says where.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, np.generic):
        return packed(value.item(), place, arrays)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        arrays[place] = value
        return {_ARRAY: place}
    if type(value) in {list, tuple}:
        items = [packed(item, f"{place}[{index}]", arrays) for index, item in enumerate(value)]
        return items if type(value) is list else {_TUPLE: items}
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: packed(item, f"{place}.{key}", arrays) for key, item in value.items()}
    raise NotResumable(
        f"{place}: a checkpoint holds numbers, text, arrays, lists, tuples, and dicts whose keys "
        f"are text; this is a {type(value).__module__}.{type(value).__name__}. Variables belong "
        "into keep={…} themselves"
    )


def unpacked(value: Any, arrays: Mapping[str, Any]) -> Any:
    """Return what `packed` was given."""
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return arrays[value[_ARRAY]]
        if set(value) == {_TUPLE}:
            return tuple(unpacked(item, arrays) for item in value[_TUPLE])
        return {key: unpacked(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [unpacked(item, arrays) for item in value]
    return value

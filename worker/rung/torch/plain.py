"""What may lie in a checkpoint: tensors and plain values, so that loading runs no code."""

from collections import Counter, OrderedDict
from typing import Any, Final

import numpy as np
import torch

from rung.events import RungError

_SCALARS: Final = (str, int, float, bool, bytes, type(None))
_CONTAINERS: Final = (dict, OrderedDict, Counter)


class NotPlain(RungError):
    """A state that cannot be kept; the message names the place and what would be right."""


def plain(value: Any, place: str) -> Any:
    """Return the value with NumPy's scalars as Python's.

    Raises:
        NotPlain: something in it is neither a tensor nor a plain value; the message says where.
    """
    if type(value) in _SCALARS or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.generic) and isinstance(value.item(), int | float):
        return value.item()
    if type(value) in _CONTAINERS:
        kind = type(value)
        items = [(_key(key, place), plain(item, f"{place}.{key}")) for key, item in value.items()]
        return kind(dict(items)) if kind is Counter else kind(items)
    if type(value) in {list, tuple}:
        items = [plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
        return items if type(value) is list else tuple(items)
    hint = "; use torch.from_numpy" if isinstance(value, np.ndarray) else ""
    raise NotPlain(
        f"{place}: a checkpoint holds tensors, numbers, text, lists and dicts, so that loading "
        f"one runs no code; this is a {type(value).__module__}.{type(value).__name__}{hint}"
    )


def _key(key: Any, place: str) -> Any:
    if not isinstance(key, str | int | float | tuple | type(None)):
        raise NotPlain(f"{place}: keys are text or numbers, not {type(key).__name__}")
    return key

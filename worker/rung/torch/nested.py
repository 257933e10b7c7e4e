"""Tensors in lists, tuples and dicts, as batches and metrics have them."""

from collections.abc import Callable
from typing import Any

import torch


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value with each of its tensors changed; what is no tensor stays as it is."""
    match value:
        case torch.Tensor():
            return change(value)
        case dict():
            return {key: mapped(item, change) for key, item in value.items()}
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*(mapped(item, change) for item in value))
        case list() | tuple():
            return type(value)(mapped(item, change) for item in value)
        case _:
            return value

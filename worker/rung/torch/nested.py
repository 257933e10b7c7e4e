"""Tensors in what holds them: lists, tuples, mappings, dataclasses, as batches and metrics do."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value with each of its tensors changed; what is no tensor stays as it is."""
    match value:
        case torch.Tensor():
            return change(value)
        case _:
            return _rebuilt(value, lambda item: mapped(item, change))


def moved(value: Any, device: torch.device) -> Any:
    """Return a value with each of its tensors on a device.

    What has a `to` of its own (packed sequences, graphs, the batches of tokenizers) moves itself.
    """
    match value:
        case torch.Tensor():
            return value.to(device, non_blocking=True)
        case _ if not isinstance(value, type) and callable(getattr(value, "to", None)):
            there = value.to(device)
            return value if there is None else there
        case _:
            return _rebuilt(value, lambda item: moved(item, device))


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a container of the same kind with each item changed; what is none stays as it is."""
    match value:
        case Mapping():
            return _mapping(value, {key: change(item) for key, item in value.items()})
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*(change(item) for item in value))
        case list() | tuple():
            return type(value)(change(item) for item in value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            made = copy.copy(value)
            for field in dataclasses.fields(value):
                if hasattr(value, field.name):
                    object.__setattr__(made, field.name, change(getattr(value, field.name)))
            return made
        case _:
            return value


def _mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return a mapping like another; a dict in place of one that cannot be copied or written."""
    if type(value) is dict:
        return items
    try:
        made: Any = copy.copy(value)
        for key, item in items.items():
            made[key] = item
    except TypeError:
        return items
    return made

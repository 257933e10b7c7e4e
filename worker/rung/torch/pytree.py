"""Tensors in nested containers, such as batches: lists, tuples, mappings, dataclasses."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

_PLAIN = (str, bytes, int, float)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value with a function applied to each of its tensors."""
    match value:
        case torch.Tensor():
            return change(value)
        case _:
            return _rebuilt(value, lambda item: mapped(item, change))


def moved(value: Any, device: torch.device) -> Any:
    """Return a value with each of its tensors on a device.

    Objects with a `to` method (packed sequences, graphs, batches of tokenizers) are moved by that.
    """
    match value:
        case torch.Tensor():
            return value.to(device, non_blocking=True)
        case _ if not isinstance(value, type) and callable(getattr(value, "to", None)):
            there = value.to(device)
            return value if there is None else there
        case _:
            return _rebuilt(value, lambda item: moved(item, device))


def cut(value: Any, part: slice, records: int) -> Any:
    """Return a part of a batch: of each tensor, and each list of plain values, with its records.

    Args:
        value: the batch.
        part: of its records.
        records: how many it has.

    Raises:
        ValueError: a tensor has another number of records.
    """
    match value:
        case torch.Tensor():
            if value.ndim and value.shape[0] != records:
                raise ValueError(
                    f"a batch of {records} records has a tensor of shape {tuple(value.shape)}, so"
                    " it cannot be shared between slots: the first dimension of each tensor must"
                    " be that of the records"
                )
            return value[part] if value.ndim else value
        case list() if len(value) == records and all(isinstance(it, _PLAIN) for it in value):
            return value[part]
        case _:
            return _rebuilt(value, lambda item: cut(item, part, records))


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a container of the same type with each item changed; other values unchanged."""
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
    """Return a mapping of the same type; a dict if that cannot be copied or written."""
    if type(value) is dict:
        return items
    try:
        made: Any = copy.copy(value)
        for key, item in items.items():
            made[key] = item
    except TypeError:
        return items
    return made


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested mappings, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    for item in _items(value):
        yield from tensors_in(item)


def named_tensors_in(value: Any, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested mappings, lists and tuples, each with its place."""
    match value:
        case torch.Tensor():
            yield place, value
        case Mapping():
            for key, item in value.items():
                yield from named_tensors_in(item, f"{place}.{key}")
        case list() | tuple():
            for index, item in enumerate(value):
                yield from named_tensors_in(item, f"{place}[{index}]")
        case _:
            pass


def is_strided(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements lie in one storage, by strides."""
    return tensor.layout is torch.strided and not tensor.is_nested


def mappings_in(value: Any) -> Iterator[Mapping[Any, Any]]:
    """Yield the mappings in nested mappings, lists and tuples; the outer ones first."""
    if isinstance(value, Mapping):
        yield value
    for item in _items(value):
        yield from mappings_in(item)


def _items(value: Any) -> Iterable[Any]:
    """Return the items of a mapping, list or tuple; none of anything else."""
    match value:
        case Mapping():
            return value.values()
        case list() | tuple():
            return value
        case _:
            return ()

"""Tensors and plain values as a file of `torch.save`, written and read without a copy of them.

Written without the CRC-32, which is slower than the disk: the manifest has a digest of every byte,
and `torch.load` does not look at the CRC-32. Where tensors are large, each begins at a boundary of
the disk, so that it is written from where it lies in memory (`rung.storage.durable_file`).

Read mapped: tensors are the file's pages. They are there as long as the file is, which on a shared
file system may be deleted by others, so what keeps them copies them (`owned`).
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

import torch
from torch.optim import Optimizer
from torch.utils.serialization import config

from rung.storage.checkpoint.writer import Sink
from rung.storage.durable_file import ALIGNMENT

_PADDING_MAX: Final = 100
"""Boundaries are kept where they cost at most one byte in so many."""


def save(value: Any, sink: Sink) -> None:
    """Write a value."""
    crc32 = torch.serialization.get_crc32_options()
    alignment = getattr(config.save, "storage_alignment", None)  # older ones know none
    torch.serialization.set_crc32_options(False)
    if alignment is not None and has_boundaries(value):
        config.save.storage_alignment = ALIGNMENT
    try:
        torch.save(value, cast("IO[bytes]", sink))
    finally:
        torch.serialization.set_crc32_options(crc32)
        if alignment is not None:
            config.save.storage_alignment = alignment


def load(path: Path) -> Any:
    """Return a value, mapped; nothing but tensors and plain values is ever made of it."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def has_boundaries(value: Any) -> bool:
    """Return whether the tensors of a value begin at boundaries of the disk in its file."""
    sizes = [tensor.nbytes for tensor in _tensors_of(value)]
    return sum(sizes) >= _PADDING_MAX * ALIGNMENT * max(1, len(sizes))


def owned(value: Any) -> Any:
    """Return a value with its tensors copied; what shared memory shares it in the copy."""
    return copy.deepcopy(value)


def is_taken_in_whole(optimizer: Optimizer) -> bool:
    """Whether an optimizer copies what it loads, as one on GPUs does, or keeps it.

    One with a way of its own to load may keep it wherever it likes.
    """
    own_way = type(optimizer).load_state_dict is not Optimizer.load_state_dict
    parameters = (it for group in optimizer.param_groups for it in group["params"])
    return not own_way and all(parameter.device.type != "cpu" for parameter in parameters)


def own_the_rest(optimizer: Optimizer) -> None:
    """Copy what an optimizer on GPUs kept of a state in main memory, such as a count of steps."""
    for parameter, held in optimizer.state.items():
        optimizer.state[parameter] = _owned_on_cpu(held)
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name != "params":
                group[name] = _owned_on_cpu(value)


def _owned_on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone() if value.device.type == "cpu" else value
    if isinstance(value, dict):
        return type(value)((key, _owned_on_cpu(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value)(_owned_on_cpu(item) for item in value)
    return value


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_of(item)

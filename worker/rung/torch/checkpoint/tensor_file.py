"""Tensor files: tensors and plain values in `torch.save`'s format, without intermediate copies.

A checkpoint contains nothing else (`plain`), so that loading one runs no code.

Written without CRC-32, which is slower than the disk: the manifest has a digest of every file, and
`torch.load` does not verify the CRC-32. Large tensors are aligned to disk blocks, so that they are
written directly from memory (`rung.storage.durable_file`).

Read by memory mapping: tensors are pages of the file, which others may delete on a shared file
system; so tensors that are kept must be copied (`owned`).
"""

import copy
import io
import warnings
from collections import Counter, OrderedDict
from enum import Enum
from pathlib import Path, PurePath
from typing import IO, Any, Final, cast

import numpy as np
import torch
from torch.optim import Optimizer
from torch.utils.serialization import config

from rung.events import RungError
from rung.storage.checkpoint.writer import Sink
from rung.storage.durable_file import ALIGNMENT
from rung.torch.checkpoint.sharded_tensors import is_shard
from rung.torch.pytree import is_strided, named_tensors_in, tensors_in

_USUAL: Final = (torch.Tensor, torch.nn.Parameter)
_PADDING_MAX: Final = 100
"""Tensors are aligned where the padding is at most this fraction (1/100) of the file."""
_SCALARS: Final = (str, int, float, bool, bytes, type(None))
_CONTAINERS: Final = (dict, OrderedDict, Counter)
_HINTS: Final = (
    (np.ndarray, "; use torch.from_numpy"),
    (set | frozenset, "; use a sorted list"),
    (PurePath, "; use its str"),
    (Enum, "; use its name"),
)


class NotPlain(RungError):
    """A state that a checkpoint cannot contain; the message names the place and the fix."""


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
    hint = next((hint for kind, hint in _HINTS if isinstance(value, kind)), "")
    raise NotPlain(
        f"{place}: a checkpoint holds tensors, numbers, text, lists and dicts, so that loading "
        f"one runs no code; this is a {type(value).__module__}.{type(value).__name__}{hint}"
    )


def demand_storable(value: Any, place: str) -> None:
    """Check that a value can be written, and read again without running code.

    Tensors of unusual kinds, such as sparse and nested ones, are written and read for that.

    Raises:
        NotPlain: something in it cannot; the message says where.
    """
    plain(value, place)
    for name, tensor in named_tensors_in(value, place):
        if (type(tensor) in _USUAL and is_strided(tensor)) or is_shard(tensor):
            continue
        written = io.BytesIO()
        try:
            torch.save(tensor, written)
            written.seek(0)
            _load(written)
        except Exception as error:
            kind = "nested" if tensor.is_nested else f"{type(tensor).__name__}, {tensor.layout}"
            raise NotPlain(
                f"{name}: a checkpoint cannot hold this tensor ({kind}), because torch does not"
                " read one without running code; keep the plain tensors that it is made of"
            ) from error


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
    """Return a memory-mapped value; only tensors and plain values are ever unpickled."""
    return _load(path, mmap=True)


def _load(file: Any, **options: Any) -> Any:
    with warnings.catch_warnings():  # torch's own affair: that it checks sparse tensors
        warnings.filterwarnings("ignore", message="Validating sparse tensor")
        return torch.load(file, map_location="cpu", weights_only=True, **options)


def has_boundaries(value: Any) -> bool:
    """Return whether the tensors of a value are aligned to disk blocks in its file."""
    sizes = [tensor.nbytes if is_strided(tensor) else 0 for tensor in tensors_in(value)]
    return sum(sizes) >= _PADDING_MAX * ALIGNMENT * max(1, len(sizes))


def owned(value: Any) -> Any:
    """Return a value with its tensors copied; shared memory is shared in the copy, too."""
    return copy.deepcopy(value)


def is_taken_in_whole(optimizer: Optimizer) -> bool:
    """Return whether an optimizer copies the tensors that it loads, as one on GPUs does.

    One that overrides `load_state_dict` may keep references to them.
    """
    own_way = type(optimizer).load_state_dict is not Optimizer.load_state_dict
    parameters = (it for group in optimizer.param_groups for it in group["params"])
    return not own_way and all(parameter.device.type != "cpu" for parameter in parameters)


def own_the_rest(optimizer: Optimizer) -> None:
    """Copy CPU tensors to which an optimizer on GPUs keeps references, such as step counts."""
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


def _key(key: Any, place: str) -> Any:
    if not isinstance(key, str | int | float | tuple | type(None)):
        raise NotPlain(f"{place}: keys are text or numbers, not {type(key).__name__}")
    return key

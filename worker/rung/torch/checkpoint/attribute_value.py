"""Attribute values: their fingerprints, by which a change is noticed, and how they are stored.

A fingerprint costs little, however large the value is: of containers over 1,000 items and arrays
over 256 MiB it is that of samples, evenly spaced, of such a set its length. So a change of a few
elements of these can go unnoticed. A tensor counts its changes; those through `data` show in
samples.
"""

import hashlib
import itertools
import weakref
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from rung.torch.checkpoint.sharded_tensors import is_shard
from rung.torch.pytree import is_strided
from rung.training.states.state_tree import (
    Lost,
    Reader,
    Resource,
    TooLarge,
    Writer,
    is_frame,
)

_BYTES_MAX: Final = 1 << 20
_SUMMED_MAX: Final = 256 << 20
_SAMPLES: Final = 4096
_ITEMS_MAX: Final = 1000
_TEXT_MAX: Final = 100


class NotStorable(Exception):
    """A value that a checkpoint cannot contain; the message says why."""


def fingerprint(value: Any) -> str:
    """Return a text that differs for different values, and is the same in every process."""
    if isinstance(value, str | int | float | complex | bool | None):
        text = f"{value!r}"
        if len(text) <= _TEXT_MAX:
            return text
    found = hashlib.blake2b(digest_size=16)
    for part in _parts(value):
        found.update(part)
    return f"{type(value).__name__} {found.hexdigest()}"


def has_arrays(value: Any) -> bool:
    """Return whether there are arrays or tensors in a value: what is computed, and no setting."""
    if isinstance(value, np.ndarray | torch.Tensor) or is_frame(value):
        return True
    if isinstance(value, Mapping):
        return any(map(has_arrays, itertools.islice(value.values(), _ITEMS_MAX)))
    if isinstance(value, list | tuple):
        return any(map(has_arrays, itertools.islice(value, _ITEMS_MAX)))
    return False


def _parts(value: Any) -> Iterable[bytes]:
    """Yield bytes that stand for a value."""
    yield type(value).__name__.encode()
    match value:
        case np.ndarray() | torch.Tensor():
            yield from _parts_of_array(value)
        case _ if is_frame(value):
            yield from _parts_of_frame(value)
        case Enum():
            yield value.name.encode()
        case set() | frozenset():
            yield str(len(value)).encode()
            if len(value) <= _ITEMS_MAX:  # a sample would be another one in each process
                yield b"|".join(sorted(b"".join(_parts(item)) for item in value))
        case Mapping():
            yield str(len(value)).encode()
            for key, item in _sampled(value.items(), len(value)):
                yield from _parts(key)
                yield from _parts(item)
        case _ if hasattr(value, "__len__") and not isinstance(value, str | bytes):
            yield str(len(value)).encode()
            for item in _sampled(value, len(value)):
                yield from _parts(item)
        case _:
            yield f"{value!r}".encode("utf-8", "surrogatepass")


def _parts_of_array(value: Any) -> Iterable[bytes]:
    yield f"{value.dtype} {tuple(value.shape)}".encode()
    match value:
        case np.memmap():
            yield f"{value.filename} {value.offset}".encode()
        case np.ndarray():
            yield _array_bytes(value)
        case _:
            yield sample(value)


def _parts_of_frame(frame: Any) -> Iterable[bytes]:
    yield f"{frame.shape} {[*frame.columns]} {[*map(str, frame.dtypes)]}".encode()
    for column in (frame.index, *(frame.iloc[:, number] for number in range(frame.shape[1]))):
        plain = isinstance(column.dtype, np.dtype) and not column.dtype.hasobject
        yield from _parts(column.to_numpy() if plain else column.tolist())


def _sampled(items: Iterable[Any], length: int) -> Iterable[Any]:
    """Return at most about so many items of a container, evenly spaced, and the last of them."""
    if length <= _ITEMS_MAX:
        return items
    last = itertools.islice(items, length - 1, None)
    return itertools.chain(itertools.islice(items, 0, None, length // _ITEMS_MAX), last)


def _array_bytes(array: Any) -> bytes:
    if array.nbytes <= _BYTES_MAX:
        return bytes(np.ascontiguousarray(array).tobytes())
    steps = tuple(slice(None, None, max(1, it // _side(array))) for it in array.shape)
    return bytes(np.ascontiguousarray(array[steps]).tobytes()) + _sums(array)


def _sums(array: Any) -> bytes:
    """Return sums over all of an array, in which a change of any element shows."""
    if not array.flags.c_contiguous or not array.flags.writeable or array.nbytes > _SUMMED_MAX:
        return b""
    flat = array.reshape(-1).view(np.uint8)
    words = flat[: flat.size // 8 * 8].view(np.uint64)
    sums = np.add.reduce(words), np.bitwise_xor.reduce(words)
    return f"{sums}".encode() + bytes(flat[words.nbytes :].tobytes())


def _side(array: Any) -> int:
    """Return how many samples of each dimension make up those of an array."""
    return max(2, int(_SAMPLES ** (1 / max(1, array.ndim))))


def sample(tensor: torch.Tensor) -> bytes:
    """Return the bytes of some elements of a tensor, or of all of a small one."""
    if is_shard(tensor) or not is_strided(tensor) or tensor.is_quantized or tensor.is_meta:
        return b""
    with torch.no_grad():
        size = tensor.numel()
        if size > _SAMPLES:
            stored = tensor.untyped_storage().nbytes() // tensor.element_size()
            step = max(1, (stored - tensor.storage_offset()) // _SAMPLES)
            count = min(_SAMPLES, (stored - tensor.storage_offset()) // step)
            tensor = tensor.as_strided((count,), (step,), tensor.storage_offset())
        flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        return bytes(flat.view(torch.uint8).numpy().tobytes())


class TensorMark(NamedTuple):
    """By what a tensor is known again, unchanged."""

    itself: "weakref.ref[torch.Tensor]"
    version: int | None
    place: int
    sample: bytes

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorMark":
        """Remember a tensor."""
        return cls(weakref.ref(tensor), _version(tensor), _place(tensor), sample(tensor))

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Return whether this is the tensor, and it has not changed.

        Changes through `data`, which a tensor does not count, show in the sample.
        """
        return (
            self.itself() is tensor
            and self.version == _version(tensor)
            and self.place == _place(tensor)
            and self.sample == sample(tensor)
        )


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch's, documented


def _place(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if is_strided(tensor) and not is_shard(tensor) else 0


def stored(value: Any) -> dict[str, Any]:
    """Return what a checkpoint holds of a value.

    Raises:
        NotStorable: it cannot hold the value.
    """
    writer = Writer(())
    try:
        tree = writer.tree(value, ())
    except TooLarge:
        raise NotStorable("has too many values now: keep them in an array or a tensor") from None
    except Resource:
        raise NotStorable("has objects in it now that a checkpoint cannot hold") from None
    except Lost as error:
        raise NotStorable(f"is {error} now") from None
    return {"tree": tree, "arrays": {name: _packed(it) for name, it in writer.arrays.items()}}


def value_of(kept: Mapping[str, Any], current: Any, place: str) -> Any:
    """Return the value that `stored` was given; containers that are there are filled.

    Raises:
        NotResumable: an object that it belongs to is not there.
    """
    arrays = {name: _unpacked(it) for name, it in kept["arrays"].items()}
    return Reader(arrays, place).value(kept["tree"], current)


def _packed(array: Any) -> dict[str, Any]:
    array = np.asarray(array)
    if np.dtype(array.dtype.str) != array.dtype:
        raise NotStorable("has an array of records now: keep its fields in arrays of their own")
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return {
        "bytes": torch.from_numpy(flat.copy()),
        "dtype": array.dtype.str,
        "shape": list(array.shape),
    }


def _unpacked(kept: Mapping[str, Any]) -> Any:
    flat = kept["bytes"].numpy().copy()
    return flat.view(np.dtype(kept["dtype"])).reshape(kept["shape"])

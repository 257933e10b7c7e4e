"""Snapshot: a copy of tensors in main memory, so that training can go on.

The buffers are reused: consecutive checkpoints have the same tensors, so only the first one
allocates memory. On a machine with GPUs they are pinned, so that copies from a GPU are
asynchronous and at the bus's full speed. Large ones are aligned to pages, so that they can be
written without another copy.

Storages are copied whole and once each: tensors that shared memory share it in the copy. A buffer
is reused only after `release`.
"""

import mmap
from collections import Counter, OrderedDict
from typing import Any

import torch

from rung.storage.durable_file import IN_PLACE_MIN
from rung.torch.determinism import cuda_in_use
from rung.torch.pytree import is_strided


class Snapshot:
    """Copies tensors into buffers of its own."""

    def __init__(self) -> None:
        self._free: dict[int, list[torch.UntypedStorage]] = {}
        self._used: list[torch.UntypedStorage] = []
        self._copies: dict[tuple[torch.device, int], torch.UntypedStorage] = {}
        self._originals: list[torch.Tensor] = []

    @property
    def size_bytes(self) -> int:
        """The size of its buffers."""
        free = sum(size * len(buffers) for size, buffers in self._free.items())
        return free + sum(buffer.nbytes() for buffer in self._used)

    def take(self, value: Any) -> Any:
        """Return a value of plain containers with its tensors copied; `settle` completes them."""
        if isinstance(value, torch.Tensor):
            return self._copy(value)
        if isinstance(value, Counter):
            return Counter(value)
        if isinstance(value, dict):
            copied = type(value)((key, self.take(item)) for key, item in value.items())
            if isinstance(value, OrderedDict):
                vars(copied).update(vars(value))  # a model's has its modules' versions there
            return copied
        if isinstance(value, list):
            return [self.take(item) for item in value]
        if isinstance(value, tuple):
            return tuple(self.take(item) for item in value)
        return value

    def settle(self) -> None:
        """Return when all copies are complete, and free unused buffers."""
        if any(device.type == "cuda" for device, _ in self._copies):
            torch.cuda.synchronize()
        self._copies, self._originals, self._free = {}, [], {}

    def release(self) -> None:
        """Let the buffers be reused, which invalidates the copies."""
        self._free = {}
        for buffer in self._used:
            self._free.setdefault(buffer.nbytes(), []).append(buffer)
        self._used = []

    def _copy(self, tensor: torch.Tensor) -> Any:
        tensor = tensor.detach()
        if tensor.is_meta:
            return tensor
        if not _is_view(tensor):
            return tensor.cpu().clone()
        storage = tensor.untyped_storage()
        copied: Any = torch.empty(0, dtype=tensor.dtype)
        offset, shape, stride = tensor.storage_offset(), tensor.shape, tensor.stride()
        return copied.set_(self._storage(tensor, storage), offset, shape, stride)

    def _storage(
        self, tensor: torch.Tensor, storage: torch.UntypedStorage
    ) -> torch.UntypedStorage:
        key = (storage.device, storage.data_ptr())
        if storage.nbytes() == 0 or key not in self._copies:
            buffer = self._buffer(storage.nbytes())
            _words(buffer).copy_(_words(storage), non_blocking=True)
            if storage.nbytes() == 0:
                return buffer
            self._copies[key] = buffer
            self._originals.append(tensor)  # so that its memory is not freed meanwhile
        return self._copies[key]

    def _buffer(self, size: int) -> torch.UntypedStorage:
        free = self._free.get(size)
        buffer = free.pop() if free else _new_buffer(size)
        self._used.append(buffer)
        return buffer


def _new_buffer(size: int) -> torch.UntypedStorage:
    if cuda_in_use():
        return torch.empty(size, dtype=torch.uint8, pin_memory=True).untyped_storage()
    if size < IN_PLACE_MIN:
        return torch.empty(size, dtype=torch.uint8).untyped_storage()
    # Shared mappings: filling them again does not copy pages for workers forked meanwhile.
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).untyped_storage()


def _words(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a storage's bytes as a tensor of 64-bit numbers, which are copied fastest."""
    size, width = storage.nbytes(), 8 if storage.nbytes() % 8 == 0 else 1
    dtype = torch.int64 if width == 8 else torch.uint8
    words: Any = torch.empty(0, dtype=dtype, device=storage.device)
    return words.set_(storage, 0, (size // width,), (1,))  # type: ignore[no-any-return]  # torch's


def _is_view(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a plain view of a storage."""
    if type(tensor) is not torch.Tensor or not is_strided(tensor):
        return False
    return not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())

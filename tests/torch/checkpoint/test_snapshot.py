"""Copies of tensors that stay as they are: exact, shared as before, in buffers used again."""

import mmap
from collections import OrderedDict
from typing import Any

import torch

from rung.storage.durable_file import IN_PLACE_MIN
from rung.torch.checkpoint.snapshot import Snapshot


def taken(value: Any) -> Any:
    """Return the copy of a value by a new snapshot."""
    snapshot = Snapshot()
    copy = snapshot.take(value)
    snapshot.settle()
    return copy


def test_a_copy_stays_when_the_original_changes() -> None:
    """Numbers, shapes, strides and types are the original's of that moment."""
    for tensor in (
        torch.arange(12).reshape(3, 4).t(),
        torch.randn(5, dtype=torch.float64)[1:4],
        torch.randn(3).to(torch.bfloat16),
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.ones(2, dtype=torch.bool),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
    ):
        before = tensor.clone()
        copy = taken({"it": [tensor, (tensor,)]})
        for found in (copy["it"][0], copy["it"][1][0]):
            assert found.dtype == tensor.dtype
            assert torch.equal(found.to_dense(), before.to_dense())
        if tensor.layout is torch.strided and tensor.numel() and not tensor.is_conj():
            assert copy["it"][0].stride() == tensor.stride()
            tensor.copy_(torch.full_like(tensor, 7))
            assert torch.equal(copy["it"][0], before)


def test_what_shared_memory_shares_it() -> None:
    """Views of one storage are views of one copy, whose bytes are there once."""
    whole = torch.arange(10.0)
    copy = taken([whole, whole[2:4]])
    copy[0][2] = -1
    assert copy[1][0] == -1
    assert whole[2] == 2


def test_containers_keep_their_kind() -> None:
    """A model's state keeps the versions of its modules, which `load_state_dict` looks at."""
    state = torch.nn.BatchNorm1d(3).state_dict()
    copy = taken(state)
    assert type(copy) is OrderedDict
    assert copy._metadata == state._metadata  # type: ignore[attr-defined]  # torch's
    assert list(copy) == list(state)
    assert taken((1, "a", None, [2.0])) == (1, "a", None, [2.0])


def test_buffers_are_used_again() -> None:
    """The same state takes no more memory the second time, and a smaller one gives some back."""
    snapshot = Snapshot()
    state = [torch.randn(1000) for _ in range(4)]
    first = snapshot.take(state)
    snapshot.settle()
    places = {tensor.data_ptr() for tensor in first}
    snapshot.release()
    second = snapshot.take([tensor + 1 for tensor in state])
    snapshot.settle()
    assert {tensor.data_ptr() for tensor in second} == places
    assert snapshot.size_bytes == 16_000
    snapshot.release()
    snapshot.take(state[:1])
    snapshot.settle()
    assert snapshot.size_bytes == 4_000


def test_large_buffers_begin_at_a_page() -> None:
    """So that the disk takes them from where they lie; their bytes are the original's."""
    large = torch.randn(IN_PLACE_MIN // 4 + 1)
    odd = torch.arange(IN_PLACE_MIN + 3).to(torch.uint8)
    for tensor in (large, odd):
        copy = taken(tensor)
        assert copy.data_ptr() % mmap.PAGESIZE == 0
        assert torch.equal(copy, tensor)

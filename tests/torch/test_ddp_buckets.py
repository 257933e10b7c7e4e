"""Laying out buckets of gradients leaves all else as it was; on many ranks see test_parallel."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from rung.torch.ddp_buckets import settle


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Make a process group of this process alone."""
    meeting = f"file://{tmp_path / 'meeting'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Words(nn.Module):
    """Has sparse gradients, buffers, and a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4, sparse=True)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 1)
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return a number for each word."""
        numbers: torch.Tensor = self.out(self.norm(self.table(words)))
        return self.fixed * numbers


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("find_unused", [False, True])
def test_nothing_but_the_layout_changes(*, find_unused: bool) -> None:
    """Gradients, weights and buffers are left alone, and a step is that of the bare model."""
    model = Words()
    bare = copy.deepcopy(model)
    replica = DistributedDataParallel(model, find_unused_parameters=find_unused)
    model.out.bias.grad = gradient = torch.full((1,), 3.0)
    settle(replica)
    assert replica.module is model
    assert model.out.bias.grad is gradient
    assert torch.equal(gradient, torch.full((1,), 3.0))
    assert [name for name, each in model.named_parameters() if each.grad is not None] == [
        "out.bias"
    ]
    assert all(torch.equal(*each) for each in zip(model.buffers(), bare.buffers(), strict=True))
    model.out.bias.grad = None
    words = torch.tensor([0, 3, 3, 1])
    for each in (replica, bare):
        each(words).square().sum().backward()
    for ours, theirs in zip(model.parameters(), bare.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None and theirs.grad is not None:
            assert ours.grad.is_sparse == theirs.grad.is_sparse
            assert torch.equal(ours.grad.to_dense(), theirs.grad.to_dense())

"""The training data of several ranks: what each gets of every batch, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    TensorDataset,
)

from core.test_distributed import on_agents, ranked
from rung.core import DistributedContext
from rung.torch import InvalidPlan
from rung.torch.data import TrainingData

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital'")  # of torchdata's own constructor
SEED = 11
NUMBERS = TensorDataset(torch.arange(16))


def on_ranks(size: int, work: Callable[[DistributedContext], Any]) -> list[Any]:
    """Do some work on so many ranks at once; return what came of it by rank."""
    return ranked(on_agents(size), work)


def of_numbers(
    build: Callable[[DistributedContext], DataLoader[Any]], wanted: int | None = None
) -> list[list[Any]]:
    """Return what each of two ranks gets in an epoch of a loader over NUMBERS."""

    def work(ranks: DistributedContext) -> list[Any]:
        data = TrainingData(build(ranks), SEED, ranks, wanted)
        data.start(0, None)
        assert data.length is not None
        return [data.next()[0].tolist() for _ in range(data.length)]

    return on_ranks(2, work)


def sampler_of_a_rank(replicas: int) -> Callable[[DistributedContext], Any]:
    """Return what a script makes for a process of so many."""
    return lambda ranks: DistributedSampler(NUMBERS, replicas, ranks.rank % replicas)


@pytest.mark.parametrize("batched", [False, True])
def test_a_sampler_that_gives_each_rank_its_records_is_refused(*, batched: bool) -> None:
    """A part of a part would leave records out; the message says what to do."""

    def build(ranks: DistributedContext) -> DataLoader[Any]:
        sampler = sampler_of_a_rank(2)(ranks)
        if batched:
            return DataLoader(NUMBERS, batch_sampler=BatchSampler(sampler, 4, drop_last=False))
        return DataLoader(NUMBERS, batch_size=4, sampler=sampler)

    with pytest.raises(InvalidPlan, match=r"training .* DistributedSampler .* leave it out"):
        of_numbers(build)


def test_a_sampler_of_all_records_is_shared() -> None:
    """With a single replica it is like any other sampler."""
    found = of_numbers(
        lambda ranks: DataLoader(NUMBERS, batch_size=4, sampler=sampler_of_a_rank(1)(ranks))
    )
    assert [len(batch) for batches in found for batch in batches] == [2] * 8
    assert sorted(it for batches in found for batch in batches for it in batch) == [*range(16)]

"""Validation data, shared between ranks."""

import itertools
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from rung.core import DistributedContext
from rung.torch import InvalidPlan, stream
from rung.torch.data.validation_sharding import (
    Dealt,
    Entries,
    is_indexed,
    shared_batches,
    with_batches,
)
from rung.training.shares import Part
from support.ranked import forked, on_agents

DATA = TensorDataset(torch.arange(11))


def _of_rank(loader: DataLoader[Any], rank: int, moment: int, limit: int = 100) -> list[list[int]]:
    entries = Entries(loader, seed=3, moment=lambda: moment)
    batches = Dealt(entries, Part(rank, 2), lambda length: min(length, limit))
    own = with_batches(loader, batches)
    assert len(own) == len(list(own))
    return [batch[0].tolist() for batch in own]


def test_what_a_sampler_draws_is_the_same_on_all_ranks() -> None:
    """Each record is seen once, in an order that follows from the seed and the moment."""
    loader = DataLoader(DATA, batch_size=2, shuffle=True)
    assert is_indexed(loader)
    parts = [_of_rank(loader, rank, moment=4) for rank in (0, 1)]
    assert sorted(number for part in parts for batch in part for number in batch) == list(
        range(11)
    )
    assert parts == [_of_rank(loader, rank, moment=4) for rank in (0, 1)]
    assert parts[0] != _of_rank(loader, 0, moment=5)


def test_a_limit_is_one_of_all_ranks_together() -> None:
    """Three batches are two of the first rank and one of the second."""
    loader = DataLoader(DATA, batch_size=2)
    assert _of_rank(loader, 0, moment=0, limit=3) == [[0, 1], [4, 5]]
    assert _of_rank(loader, 1, moment=0, limit=3) == [[2, 3]]


class Numbers(IterableDataset[int]):
    """A stream in an order of its own; of each n-th number, if it shards itself."""

    def __init__(self, first: int = 0, step: int = 1) -> None:
        self.numbers = range(first, 12, step)

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(self.numbers, len(self.numbers)))


class Doubling(DataLoader[Any]):
    """A loader of a script's own class."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield 2 * batch


def _evaluated(build: Any, *, sharded: bool = False) -> list[list[list[int]]]:
    """Return the batches that count, of each of two ranks."""

    def work(ranks: DistributedContext) -> list[list[int]]:
        context: Any = SimpleNamespace(
            distributed=ranks,
            parallel=SimpleNamespace(sharded=sharded),
            core=SimpleNamespace(seed=3),
            batches=4,
        )
        shared = shared_batches(build(ranks), context)
        found = list(shared.batches)
        if sharded:
            counts = ranks.allgather(len(found))
            assert len(set(counts)) == 1
        return [batch.tolist() for number, batch in found if number < shared.length]

    return forked(on_agents(2), work)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_stream_that_shards_itself_is_validated_by_each_rank(*, sharded: bool) -> None:
    """Each record counts once, also where all ranks must have as many batches."""

    def build(ranks: DistributedContext) -> DataLoader[Any]:
        own = stream(Numbers(4 * ranks.rank, ranks.rank + 1), shards_itself=True)
        return DataLoader(own, batch_size=2)

    found = _evaluated(build, sharded=sharded)
    assert [sorted(itertools.chain(*batches)) for batches in found] == [
        list(range(12)),
        [4, 6, 8, 10],
    ]


def test_a_stream_that_is_the_same_everywhere_is_dealt_out() -> None:
    """Whatever it draws: each record counts once."""
    data = stream(Numbers(), shards_itself=False)
    found = _evaluated(lambda _: DataLoader(data, batch_size=2))
    assert sorted(itertools.chain(*itertools.chain(*found))) == list(range(12))


def test_a_stream_is_refused_until_the_script_says_who_shards_it() -> None:
    """The message has the line to write."""
    with pytest.raises(InvalidPlan, match=r"validation .*\(Numbers\).* rung\.torch\.stream\("):
        _evaluated(lambda _: DataLoader(Numbers(), batch_size=2))


@pytest.mark.parametrize("size", [None, 1])
def test_a_loaders_own_class_validates_its_part(size: int | None) -> None:
    """Its `__iter__` sees each batch; without a batch size, too."""
    data: Any = torch.arange(6)
    found = _evaluated(lambda _: Doubling(data, batch_size=size, shuffle=True))
    flat = [torch.tensor(batch).flatten() for batches in found for batch in batches]
    assert sorted(torch.cat(flat).tolist()) == [0, 2, 4, 6, 8, 10]

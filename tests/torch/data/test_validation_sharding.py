"""Validation data, shared between ranks."""

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from rung.torch.data.validation_sharding import Dealt, Entries, is_indexed, with_batches
from rung.training.shares import Part

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

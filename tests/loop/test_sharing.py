"""Validation data, shared between ranks."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from rung.loop.sharing import Dealt, Entries, dealt, is_indexed, read_whole
from rung.torch.order import Part
from rung.torch.sharing import with_batches

DATA = TensorDataset(torch.arange(11))


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([2, 2, 2, 1], [[[0, 1], [4, 5]], [[2, 3], [6]]]),
        ([5], [[[0, 1, 2]], [[3, 4]]]),
        ([1], [[[0]], [[0]]]),
    ],
)
def test_every_rank_has_a_batch(lengths: list[int], found: list[list[list[int]]]) -> None:
    """Whole batches in turn; parts of them where they are few; all where there is one record."""
    numbers = iter(range(sum(lengths)))
    entries = [[next(numbers) for _ in range(length)] for length in lengths]
    assert [dealt(entries, Part(rank, 2)) for rank in (0, 1)] == found
    assert read_whole(entries, Part(0, 2)) == (found[0] == found[1])


def test_a_rank_without_a_part_of_a_batch_leaves_it_out() -> None:
    """It has others."""
    entries = [[0, 1, 2, 3], [4]]
    assert [dealt(entries, Part(rank, 3)) for rank in range(3)] == [
        [[0, 1], [4]],
        [[2]],
        [[3]],
    ]


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

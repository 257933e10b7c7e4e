"""The parts of batches that fall to ranks."""

import pytest
from torch.utils.data import BatchSampler, SequentialSampler

from rung.torch.order import EpochOrder, Part


@pytest.mark.parametrize("length", [0, 1, 5, 6, 8, 23])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_parts_are_even_disjoint_and_whole(length: int, size: int) -> None:
    """Together the parts are the batch, in its order; their sizes differ by one at most."""
    records = list(range(length))
    parts = [records[Part(rank, size).of(length)] for rank in range(size)]
    assert [record for part in parts for record in part] == records
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [Part(rank, size).count(length) for rank in range(size)] == [*map(len, parts)]


def test_each_rank_draws_its_part_of_every_batch() -> None:
    """All ranks know the batches' lengths; who has no part gets a record to stand in."""
    inner = BatchSampler(SequentialSampler(range(7)), 3, drop_last=False)
    orders = [EpochOrder(inner, 5, tagged=False, part=Part(rank, 2)) for rank in range(2)]
    assert [list(order) for order in orders] == [[[0, 1], [3, 4], [6]], [[2], [5], [6]]]
    assert [order.lengths for order in orders] == [{0: 3, 1: 3, 2: 1}] * 2


def test_workers_of_another_rank_draw_otherwise() -> None:
    """Augmentation differs between ranks, and on rank 0 is that of a single process."""
    inner = BatchSampler(SequentialSampler(range(8)), 4, drop_last=False)

    def seeds(part: Part) -> list[int]:
        return [drawn.seed for drawn in EpochOrder(inner, 5, tagged=True, part=part)]

    assert seeds(Part(0, 2)) == seeds(Part(0, 1))
    assert not set(seeds(Part(0, 2))) & set(seeds(Part(1, 2)))

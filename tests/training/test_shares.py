"""Shares of ranks in batches."""

import pytest

from rung.training.shares import Part, dealt, replicated


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
    assert replicated(entries, Part(0, 2)) == (found[0] == found[1])


def test_a_rank_without_a_part_of_a_batch_leaves_it_out() -> None:
    """It has others."""
    entries = [[0, 1, 2, 3], [4]]
    assert [dealt(entries, Part(rank, 3)) for rank in range(3)] == [
        [[0, 1], [4]],
        [[2]],
        [[3]],
    ]

"""Which rank keeps the others waiting."""

import pytest

from rung.training.straggler import straggler


def test_the_slowest_is_named_with_numbers() -> None:
    """A rank that takes much longer than the others is said to, by how much."""
    words = straggler([0.08, 0.21, 0.08, 0.07])
    assert words is not None
    assert "rank 1 is slow: 0.210 s per step" in words
    assert "the others 0.080 s" in words


@pytest.mark.parametrize("means", [[0.1, 0.14], [0.001, 0.004, 0.001], [0.1, 0.1, 0.1, 0.11]])
def test_small_differences_are_not_worth_a_word(means: list[float]) -> None:
    """Neither half as much again, nor what is too short to be noticed."""
    assert straggler(means) is None

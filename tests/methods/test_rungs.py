"""Places in a rung, and lengths of rungs."""

import pytest

from rung.methods.rungs import Rung, rung_lengths, rungs_within


def test_ties_are_broken_by_index() -> None:
    """Of two equal results the earlier trial's comes first, whenever it arrived."""
    rung = Rung()
    assert [rung.add(0.5, 3), rung.add(0.5, 1), rung.add(0.1, 9)] == [0, 0, 0]
    assert rung.entries == [(0.1, 9), (0.5, 1), (0.5, 3)]


@pytest.mark.parametrize(
    ("rungs", "divisor", "max_time", "lengths"),
    [
        (4, 3, 81, [3, 9, 27, 81]),
        (5, 4, 256, [1, 4, 16, 64, 256]),
        (5, 4, 100, [1, 1, 6, 25, 100]),
        (3, 4, 900, [56, 225, 900]),
        (3, 2.5, 100, [16, 40, 100]),
        (1, 4, 7, [7]),
        (3, 10, 5, [1, 1, 5]),
    ],
)
def test_lengths(rungs: int, divisor: float, max_time: int, lengths: list[int]) -> None:
    """Rung k of K lies at max_time / divisor**(K-1-k), rounded down, at least 1."""
    assert rung_lengths(rungs, divisor, max_time) == lengths


@pytest.mark.parametrize(
    ("units", "divisor", "most", "rungs"),
    [(243, 3, 9, 6), (242, 3, 9, 5), (1000, 10, 9, 4), (1, 4, 9, 1), (10**9, 4, 5, 5)],
)
def test_rungs_within(units: int, divisor: float, most: int, rungs: int) -> None:
    """Powers are counted exactly, where a floating-point logarithm is one off."""
    assert rungs_within(units, divisor, most) == rungs

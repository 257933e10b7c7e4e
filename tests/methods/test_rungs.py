"""Places in a rung, and lengths of rungs."""

from bisect import bisect_left, insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.methods import rungs as module
from rung.methods.rungs import Entry, Rung, rung_lengths, rungs_within


def test_ties_are_broken_by_index() -> None:
    """Of two equal results the earlier trial's comes first, whenever it arrived."""
    rung = Rung()
    assert [rung.add(0.5, 3), rung.add(0.5, 1), rung.add(0.1, 9)] == [0, 0, 0]
    assert list(rung) == [(0.1, 9), (0.5, 1), (0.5, 3)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 30)), max_size=200))
def test_a_rung_is_a_sorted_list(steps: list[tuple[bool, int, int]]) -> None:
    """However entries come and go, places, order and counts are those of one sorted list."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", 4)
        patch.setattr(module, "_BLOCK", 2)
        rung = Rung()
        expected: list[Entry] = []
        for adds, cost, index in steps:
            entry = (cost / 4, index)
            assert rung.place(entry) == bisect_left(expected, entry)
            if not adds:
                rung.remove(entry)
                expected = [kept for kept in expected if kept != entry]
            elif entry not in expected:
                insort(expected, entry)
                assert rung.add(*entry) == expected.index(entry)
            assert (list(rung), rung.count) == (expected, len(expected))
            assert all(rung.chunks), "a chunk is empty"


def test_no_insertion_moves_more_than_a_chunk() -> None:
    """However many results a rung has, no list of it grows beyond a bound."""
    rung = Rung()
    for index in range(20_000):
        rung.add(-float(index * 7_919 % 20_011), index)
    assert max(map(len, rung.chunks)) <= 2_048
    assert len(rung.sums) == -(-len(rung.chunks) // 64)


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

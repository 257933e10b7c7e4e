"""Lengths of rungs, and which of them a run goes past."""

from typing import Any

import pytest

from rung.config.rungs import rung_lengths, rungs_passed, rungs_within

ASHA: dict[str, Any] = {"name": "async_halving", "max_time": 16, "max_trials": 48, "num_rungs": 3}
ADAPTIVE: dict[str, Any] = {"name": "adaptive_asha", "max_time": 16, "max_trials": 48}


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


@pytest.mark.parametrize(
    ("searcher", "passed"),
    [
        (ASHA, [1, 4, 16]),
        (ASHA | {"name": "asha", "divisor": 2.0}, [4, 8, 16]),
        (ASHA | {"num_rungs": 5}, [1, 4, 16]),
        (ADAPTIVE, [1, 4, 16]),
        (ADAPTIVE | {"divisor": 2.0, "max_rungs": None}, [1, 2, 4, 8, 16]),
        (ADAPTIVE | {"divisor": 2.0, "max_rungs": 3}, [4, 8, 16]),
        (ADAPTIVE | {"max_trials": 3}, [16]),
        (ADAPTIVE | {"bracket_rungs": [1, 2]}, [4, 16]),
    ],
)
def test_a_run_of_asha_goes_past_rungs(searcher: dict[str, Any], passed: list[int]) -> None:
    """Those of the largest bracket; the last is the length."""
    assert rungs_passed(searcher) == passed


@pytest.mark.parametrize(
    "searcher",
    [
        ASHA | {"stop_once": False},
        ADAPTIVE | {"stop_once": False},
        {"name": "hyperband", "max_time": 81},
        {"name": "random", "max_time": 16, "max_trials": 4},
        {"name": "async_halving", "max_time": 16},
        {"name": "adaptive_asha"},
        {},
    ],
)
def test_other_runs_go_past_none(searcher: dict[str, Any]) -> None:
    """Where trials rest at each rung, or are not compared on their way, or nothing is known."""
    assert rungs_passed(searcher) == []

"""A search in memory."""

from collections import Counter
from typing import Any

import pytest

from rung.searcher.simulate import simulate
from searcher.world import curve
from support.searcher.scenario import config


def metric(index: int, hparams: dict[str, Any], time: float) -> float:
    """Return what a trial reports."""
    assert "lr" in hparams
    return curve(index, time)


def test_hyperband_costs_what_its_table_says() -> None:
    """As many trials reach each length as the brackets have there."""
    search = simulate(config("hyperband", max_time=81, divisor=3.0), metric, slots=8)
    assert search.ended is not None
    assert search.ended.state == "completed"
    reached = [sum(time >= length for time in search.trained.values()) for length in (1, 3, 9, 27)]
    assert reached == [143, 27 + 62, 9 + 11 + 28, 3 + 3 + 5 + 13]
    assert Counter(search.trained.values())[81] == 1 + 1 + 1 + 2 + 5


@pytest.mark.parametrize("name", ["single", "random", "grid"])
def test_full_training_costs_all(name: str) -> None:
    """Without comparison every trial trains to the end; time shrinks with the slots."""
    space = {"lr": {"type": "categorical", "vals": list(range(6))}}
    trials = 1 if name == "single" else 6
    search = simulate(config(name, space=space, max_trials=6), metric, slots=3)
    assert (search.units, search.elapsed) == (16 * trials, 16 * -(-trials // 3))


def test_asha_costs_a_fraction() -> None:
    """ASHA trains all trials a little and few in full, and finds one of the best."""
    search = simulate(
        config("adaptive_asha", max_trials=64, max_time=64, divisor=4.0), metric, slots=4
    )
    assert len(search.trained) == 64
    assert search.units < 0.4 * 64 * 64
    best = min(range(64), key=lambda index: curve(index, 64))
    ranked = sorted(range(64), key=lambda index: curve(index, 64))
    full = [index for index, time in search.trained.items() if time == 64]
    assert best in full or min(ranked.index(index) for index in full) < 6


def test_a_simulation_is_the_same_every_time() -> None:
    """The same metric in, the same history out."""
    settings = config("async_halving", max_trials=20, num_rungs=3, divisor=2.0)
    one, other = (simulate(settings, metric, slots=4) for _ in range(2))
    assert one.history == other.history

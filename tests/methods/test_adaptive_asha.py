"""A tournament of brackets: Determined's numbers."""

from typing import Any

import pytest

from rung.methods.adaptive_asha import (
    Options,
    bracket_concurrency,
    bracket_trials,
)
from rung.methods.table import rungs_passed
from rung.searcher.state import read_settings
from support.searcher.scenario import Scenario, config


def rungs(**search: Any) -> list[int]:
    """Return the brackets that a configuration asks for."""
    options = read_settings(config("adaptive_asha", **search)).search
    assert isinstance(options, Options)
    return options.all_rungs()


@pytest.mark.parametrize(
    ("mode", "max_rungs", "max_time", "max_trials", "expected"),
    [
        ("aggressive", 5, 256, 1000, [5]),
        ("standard", 5, 256, 1000, [5, 4, 3]),
        ("standard", 4, 256, 1000, [4, 3, 2]),
        ("conservative", 5, 256, 1000, [5, 4, 3, 2, 1]),
        ("standard", 5, 64, 1000, [4, 3, 2]),
        ("standard", 5, 63, 1000, [3, 2]),
        ("standard", 5, 256, 40, [3, 2]),
        ("standard", 5, 256, 16, [3, 2]),
        ("standard", 5, 256, 3, [1]),
        ("conservative", 2, 256, 1000, [2, 1]),
        ("standard", 1, 256, 1000, [1]),
        ("standard", 5, 1, 1000, [1]),
    ],
)
def test_bracket_choice(
    mode: str, max_rungs: int, max_time: int, max_trials: int, expected: list[int]
) -> None:
    """Modes choose brackets out of the rungs that time and trials allow, most rungs first."""
    fields = {"mode": mode, "max_rungs": max_rungs, "max_time": max_time, "divisor": 4.0}
    assert rungs(max_trials=max_trials, **fields) == expected


def test_explicit_brackets_are_sorted() -> None:
    """`bracket_rungs` overrides the mode."""
    assert rungs(max_trials=9, bracket_rungs=[1, 3, 2]) == [3, 2, 1]


@pytest.mark.parametrize(
    "search",
    [
        {"name": "async_halving", "num_rungs": 4, "max_trials": 10},
        {"max_trials": 48},
        {"max_trials": 3, "mode": "conservative"},
        {"max_trials": 1000, "mode": "conservative", "divisor": 3.0, "max_time": 243},
        {"max_trials": 1000, "mode": "aggressive", "divisor": 2.5, "max_time": 100},
        {"max_trials": 2, "bracket_rungs": [1, 2, 4]},
        {"max_trials": 9, "max_time": 1, "max_rungs": 2},
    ],
)
def test_runs_know_all_rungs(search: dict[str, Any]) -> None:
    """What a run reads in its configuration are the rungs of the search's plan."""
    configured = config(**({"name": "adaptive_asha"} | search))
    settings = read_settings(configured)
    brackets = settings.search.plan(settings.space).brackets()
    planned = {length for bracket in brackets for length in bracket.lengths}
    assert rungs_passed(configured["searcher"]) == sorted(planned)


@pytest.mark.parametrize(
    ("brackets", "divisor", "max_trials", "expected"),
    [
        ([5], 4.0, 100, [100]),
        ([5, 4, 3], 4.0, 100, [71, 22, 7]),
        ([3, 2], 4.0, 40, [30, 10]),
        ([3, 2, 1], 4.0, 25, [16, 6, 3]),
        ([2, 1], 3.0, 5, [3, 2]),
        ([2, 1], 4.0, 4, [3, 1]),
        ([3, 2, 1], 4.0, 2, [1, 1]),
        ([3, 2, 1], 4.0, 1, [1]),
    ],
)
def test_bracket_budgets(
    brackets: list[int], divisor: float, max_trials: int, expected: list[int]
) -> None:
    """Shares are d**(k-1) / k, at least one, the rest to the first, never more than asked for."""
    assert bracket_trials(brackets, divisor, max_trials) == expected


@pytest.mark.parametrize(
    ("brackets", "concurrent", "expected"),
    [(3, 16, [6, 5, 5]), (3, 2, [1, 1, 1]), (1, 16, [16]), (2, 0, [0, 0]), (4, 6, [2, 2, 1, 1])],
)
def test_concurrency(brackets: int, concurrent: int, expected: list[int]) -> None:
    """Split evenly, the rest from the first on, at least one each."""
    assert bracket_concurrency(brackets, concurrent) == expected


def test_brackets_side_by_side() -> None:
    """Each bracket starts its share with its own rungs, all numbered in one sequence."""
    settings = config("adaptive_asha", max_trials=40, divisor=4.0, max_concurrent_trials=7)
    scenario = Scenario(settings)
    assert [plan.lengths for plan in scenario.experiment.plan] == [[1, 4, 16], [4, 16]]
    assert [plan.trials for plan in scenario.experiment.plan] == [30, 10]
    assert [trial.bracket for trial in scenario.experiment.trials] == [0] * 4 + [1] * 3


def test_brackets_never_take_more_than_may_train() -> None:
    """With more brackets than trials at once, the later ones wait."""
    settings = config("adaptive_asha", max_trials=40, divisor=4.0, max_concurrent_trials=1)
    scenario = Scenario(settings)
    assert [trial.bracket for trial in scenario.experiment.trials] == [0]


def test_brackets_do_not_compare_across() -> None:
    """A result in one bracket stops nobody in another."""
    settings = config("adaptive_asha", max_trials=40, divisor=4.0, max_concurrent_trials=2)
    scenario = Scenario(settings)
    assert scenario.report(0, 4, 0.1) == []
    assert scenario.report(1, 4, 0.9) == []

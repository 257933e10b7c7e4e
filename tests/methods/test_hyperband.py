"""Hyperband as published."""

from typing import Any

import pytest

from rung.events.trial import TrialPromoted, TrialStopped
from rung.methods.hyperband import Hyperband
from rung.searcher.state import read_settings
from support.searcher.scenario import Scenario, config, kinds


def table(max_time: int, eta: float) -> list[list[tuple[int, int]]]:
    """Return n_i and r_i of every bracket."""
    settings = read_settings(config("hyperband", max_time=max_time, divisor=eta))
    method = settings.search.plan(settings.space)
    assert isinstance(method, Hyperband)
    members = method.members
    return [list(zip(member.sizes, member.lengths, strict=True)) for member in members]


def test_the_papers_table() -> None:
    """R = 81, eta = 3: table 1 of the paper, with n by the formula of its algorithm 1.

    The table prints 27, 9 and 6 for the brackets s = 3, 2 and 1.
    """
    assert table(81, 3) == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


@pytest.mark.parametrize(
    ("max_time", "eta", "expected"),
    [
        (1, 3, [[(1, 1)]]),
        (16, 4, [[(16, 1), (4, 4), (1, 16)], [(6, 4), (1, 16)], [(3, 16)]]),
        (10, 3, [[(9, 1), (3, 3), (1, 10)], [(5, 3), (1, 10)], [(3, 10)]]),
        (2, 3, [[(1, 2)]]),
    ],
)
def test_other_budgets(max_time: int, eta: float, expected: list[Any]) -> None:
    """Lengths that do not divide are rounded down; a small budget has a single rung."""
    assert table(max_time, eta) == expected


def search(**fields: Any) -> Scenario:
    """Return a search with the brackets 4@1 2@2 1@4, 3@2 1@4 and 3@4."""
    settings = {"max_time": 4, "divisor": 2.0, "max_concurrent_trials": 0} | fields
    return Scenario(config("hyperband", **settings))


def test_trials_are_numbered_bracket_by_bracket() -> None:
    """The index of a trial follows from the plan, not from the course of the search."""
    scenario = search(max_concurrent_trials=3)
    assert [plan.trials for plan in scenario.experiment.plan] == [4, 3, 3]
    scenario.train(2, 0.1)
    scenario.train(0, 0.2)
    assert [trial.bracket for trial in scenario.experiment.trials] == [0, 0, 0, 0, 1]


def test_a_rung_is_judged_when_its_last_result_is_in() -> None:
    """Nobody is promoted or stopped before; then the best half goes on, by results alone."""
    scenario = search()
    assert [scenario.train(index, loss) for index, loss in ((3, 0.1), (0, 0.4), (2, 0.2))] == [
        []
    ] * 3
    decisions = scenario.train(1, 0.3)
    assert kinds(decisions) == [
        *["TrialStopped", "TrialClosed"] * 2,
        *["TrialPromoted", "RunRequested"] * 2,
    ]
    promoted = [event for event in decisions if isinstance(event, TrialPromoted)]
    assert [(event.trial_id, event.length) for event in promoted] == [
        ("k3v9x2ab.3", 2),
        ("k3v9x2ab.2", 2),
    ]
    stopped = [event for event in decisions if isinstance(event, TrialStopped)]
    assert [event.reason for event in stopped] == [
        "place 3 of 4 at length 1; 2 train on",
        "place 4 of 4 at length 1; 2 train on",
    ]


def test_ties_are_broken_by_index() -> None:
    """Of equal results those of the earlier trials go on."""
    scenario = search()
    decisions = [scenario.train(index, 0.5) for index in (3, 2, 1, 0)][-1]
    promoted = [event.trial_id for event in decisions if isinstance(event, TrialPromoted)]
    assert promoted == ["k3v9x2ab.0", "k3v9x2ab.1"]


def test_failures_do_not_stall_a_bracket() -> None:
    """Trials that failed for good are the worst; when they must be kept, others train on alone."""
    scenario = search(max_restarts=0)
    for index in (0, 1, 2):
        scenario.exit(index, "failed")
    decisions = scenario.train(3, 0.9)
    assert kinds(decisions) == ["TrialPromoted", "RunRequested"]
    assert kinds(scenario.train(3, 0.9)) == ["TrialPromoted", "RunRequested"]
    assert kinds(scenario.train(3, 0.9)) == ["TrialClosed"]


def test_a_bracket_of_failures_ends() -> None:
    """A search in which every trial fails is errored, and ends."""
    scenario = search(max_restarts=0)
    for index in range(10):
        scenario.exit(index, "failed")
    assert scenario.state.phase == "ended"
    assert scenario.history[-1][1][-1].state == "errored"  # type: ignore[union-attr]


def test_a_trial_that_ended_early_keeps_its_place() -> None:
    """It counts with its last value at every rung above, and is not trained on."""
    scenario = search()
    scenario.report(0, 0.5, 0.05)
    scenario.exit(0)
    for index, loss in ((1, 0.2), (2, 0.3)):
        scenario.train(index, loss)
    decisions = scenario.train(3, 0.4)
    promoted = [event.trial_id for event in decisions if isinstance(event, TrialPromoted)]
    assert promoted == ["k3v9x2ab.1"]
    decisions = scenario.train(1, 0.1)
    assert kinds(decisions) == ["TrialStopped", "TrialClosed"]
    assert decisions[0].reason == "place 2 of 2 at length 2; 1 train on"  # type: ignore[union-attr]


def test_promotions_go_before_new_trials() -> None:
    """Room goes to the promoted first, and is never exceeded."""
    scenario = search(max_concurrent_trials=2)
    decisions = []
    for index in range(4):
        decisions = scenario.train(index, index / 10)
    assert kinds(decisions) == [
        *["TrialStopped", "TrialClosed"] * 2,
        "TrialPromoted",
        "RunRequested",
    ]
    assert kinds(scenario.train(0, 0.0)) == ["TrialPromoted", "RunRequested"]

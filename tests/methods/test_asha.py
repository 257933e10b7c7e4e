"""ASHA, stopping and promoting."""

from typing import Any

import pytest

from rung.events import Payload
from rung.events.trial import RunWithdrawn, TrialPromoted, TrialStopped
from rung.methods.asha import PromotionAsha, StoppingAsha
from support.searcher.scenario import Scenario, config, kinds


def stopping(**search: Any) -> Scenario:
    """Return a search that stops; rungs at 4, 8, 16, one in two goes on."""
    fields = {"max_trials": 6, "num_rungs": 3, "divisor": 2.0, "max_concurrent_trials": 0}
    return Scenario(config("async_halving", **(fields | search)))


def promotion(**search: Any) -> Scenario:
    """Return a search that promotes; rungs at 4, 8, 16, one in two goes on."""
    return stopping(**({"stop_once": False} | search))


def stopped(decisions: list[Payload]) -> tuple[int | None, str]:
    """Return the rung and the reason of the stop among decisions."""
    [stop] = [decision for decision in decisions if isinstance(decision, TrialStopped)]
    return stop.rung, stop.reason


def test_stopping_sets_out_for_the_full_length() -> None:
    """Every run goes to max_time; the plan has the rungs."""
    scenario = stopping()
    assert scenario.experiment.plan[0].lengths == [4, 8, 16]
    assert [spec.length for spec in scenario.specs.values()] == [16] * 6


@pytest.mark.parametrize(
    ("losses", "goes_on"),
    [
        ([0.5], [True]),
        ([0.5, 0.6], [True, False]),
        ([0.5, 0.4], [True, True]),
        ([0.5, 0.4, 0.45], [True, True, False]),
        ([0.5, 0.4, 0.6, 0.45], [True, True, False, True]),
        ([0.1, 0.2, 0.3, 0.15, 0.4], [True, False, False, True, False]),
        (["NaN", 0.2, "NaN"], [True, True, False]),
        ([0.5, 0.5], [True, False]),
    ],
)
def test_a_trial_goes_on_among_the_best_so_far(losses: list[Any], goes_on: list[bool]) -> None:
    """Of n results at a rung, the best max(floor(n / divisor), 1) go on as they arrive."""
    scenario = stopping()
    decisions = [scenario.report(index, 4, loss) for index, loss in enumerate(losses)]
    assert [not decided for decided in decisions] == goes_on


def test_hyperparameters_are_drawn_once_for_each_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports draw nothing, also of a paused search, and do not ask what to train next."""
    drawn: list[int] = []

    def draw(_: Any, __: int, index: int) -> dict[str, Any]:
        drawn.append(index)
        return {}

    monkeypatch.setattr("rung.methods.method.sample", draw)
    scenario = stopping(max_concurrent_trials=2)
    drawn.clear()
    moves = StoppingAsha.moves
    asked: list[int] = []

    def noted(self: StoppingAsha, chance: Any, free: int) -> Any:
        asked.append(free)
        return moves(self, chance, free)

    monkeypatch.setattr(StoppingAsha, "moves", noted)
    scenario.report(0, 2, 0.5)
    scenario.report(0, 4, 0.5)
    assert (drawn, asked) == ([], [])
    scenario.pause()
    scenario.report(1, 3, 0.5)
    assert drawn == []


def test_a_stop_names_its_evidence_and_withdraws_the_run() -> None:
    """The reason says where the trial stood; the close follows the exit."""
    scenario = stopping(max_trials=2)
    scenario.report(0, 4, 0.5)
    decisions = scenario.report(1, 5, 0.6)
    assert kinds(decisions) == ["TrialStopped", "RunWithdrawn"]
    assert stopped(decisions) == (0, "place 2 of 2 at length 4; 1 train on")
    withdrawn = decisions[1]
    assert isinstance(withdrawn, RunWithdrawn)
    assert (withdrawn.run, withdrawn.how) == (1, "preempt")
    assert scenario.report(1, 8, 0.0) == []
    [closed] = scenario.exit(1, "preempted")
    assert closed.state == "stopped"  # type: ignore[union-attr]


@pytest.mark.parametrize("outcome", ["finished", "preempted", "failed", "killed"])
def test_a_stopped_trial_is_closed_however_its_run_ends(outcome: Any) -> None:
    """No restart follows a failure on the way out."""
    scenario = stopping(max_trials=2)
    scenario.report(0, 4, 0.5)
    scenario.report(1, 4, 0.6)
    [closed] = scenario.exit(1, outcome)
    assert closed.state == "stopped"  # type: ignore[union-attr]


def test_one_report_reaches_several_rungs() -> None:
    """Rungs are judged from the lowest, up to the first that stops the trial."""
    scenario = stopping()
    scenario.report(0, 4, 0.1)
    scenario.report(1, 4, 0.9)
    assert scenario.report(2, 9, 0.01) == []
    scenario.report(3, 5, 0.05)
    scenario.report(4, 5, 0.04)
    assert stopped(scenario.report(5, 16, 0.045)) == (1, "place 2 of 2 at length 8; 1 train on")


def test_the_top_rung_completes() -> None:
    """A trial that validated at max_time is left to finish by itself."""
    scenario = stopping(max_trials=2)
    assert scenario.report(0, 16, 0.5) == []
    assert kinds(scenario.exit(0)) == ["TrialClosed"]


def test_a_run_past_its_length_is_withdrawn_and_counts() -> None:
    """The second report at or past the length is one too many; the exit counts as trained."""
    scenario = stopping(max_trials=2)
    assert scenario.report(0, 16, 0.5) == []
    assert kinds(scenario.report(0, 17, 0.5)) == ["RunWithdrawn"]
    assert scenario.report(0, 18, 0.5) == []
    [closed] = scenario.exit(0, "killed")
    assert closed.state == "completed"  # type: ignore[union-attr]


def test_each_end_starts_a_trial_until_max_trials() -> None:
    """The number of trials that train stays at its limit until all were started."""
    scenario = stopping(max_concurrent_trials=2)
    scenario.report(0, 4, 0.5)
    assert kinds(scenario.report(1, 4, 0.6)) == ["TrialStopped", "RunWithdrawn"]
    assert kinds(scenario.exit(1, "preempted")) == [
        "TrialClosed",
        "TrialRequested",
        "RunRequested",
    ]
    assert sorted(scenario.specs) == [0, 1, 2]


def test_a_repeated_report_counts_once() -> None:
    """What a restarted run reports again is no new result of its rung."""
    scenario = stopping(max_restarts=5)
    scenario.report(0, 4, 0.5)
    scenario.exit(0, "failed")
    scenario.report(0, 4, 0.5)
    scenario.report(0, 4, 0.1)
    assert scenario.report(1, 4, 0.4) == []
    assert stopped(scenario.report(2, 4, 0.45))[1] == "place 2 of 3 at length 4; 1 train on"


def test_a_trial_that_failed_counts_as_the_worst_where_it_was_due() -> None:
    """A failure makes room among the best as any worse result would."""
    scenario = stopping(max_restarts=0)
    scenario.report(0, 4, 0.1)
    scenario.exit(1, "failed")
    scenario.exit(2, "failed")
    assert scenario.report(3, 4, 0.2) == []


def test_a_trial_that_ended_early_counts_with_its_last_value() -> None:
    """It is completed, and stands in the rung that it was due for."""
    scenario = stopping()
    scenario.report(0, 3, 0.1)
    [closed] = scenario.exit(0)
    assert closed.state == "completed"  # type: ignore[union-attr]
    assert closed.reason == "the script ended by itself at 3 of 16"  # type: ignore[union-attr]
    assert stopped(scenario.report(1, 4, 0.2))[1] == "place 2 of 2 at length 4; 1 train on"


def test_refused_hyperparameters_leave_no_trace() -> None:
    """A refused trial's results are taken out, and another takes its place."""
    scenario = stopping()
    scenario.report(0, 4, 0.1)
    decisions = scenario.exit(0, "invalid_hp")
    assert kinds(decisions) == ["TrialClosed", "TrialRequested", "RunRequested"]
    assert scenario.report(1, 4, 0.9) == []


def test_promotion_rests_at_each_rung() -> None:
    """Runs go to the next rung alone; promotions come from the top down, then new trials."""
    scenario = promotion(max_concurrent_trials=1)
    assert [spec.length for spec in scenario.specs.values()] == [4]
    assert kinds(scenario.train(0, 0.5)) == ["TrialRequested", "RunRequested"]
    decisions = scenario.train(1, 0.4)
    assert kinds(decisions) == ["TrialPromoted", "RunRequested"]
    promoted = decisions[0]
    assert isinstance(promoted, TrialPromoted)
    assert (promoted.trial_id, promoted.rung, promoted.length) == ("k3v9x2ab.1", 1, 8)
    assert promoted.reason == "place 1 of 2 at length 4; 1 train on"
    assert (scenario.specs[1].run, scenario.specs[1].length) == (2, 8)


def test_promotion_waits_for_the_end_of_the_run() -> None:
    """A result at a rung counts when the run is over, so that one run is current."""
    scenario = promotion(max_trials=2)
    scenario.train(0, 0.5)
    assert scenario.report(1, 4, 0.4) == []
    assert kinds(scenario.exit(1)) == ["TrialPromoted", "RunRequested"]


def test_promotion_ends_with_a_trial_at_the_top() -> None:
    """When nothing else is to be done, the best go on to the top; the rest is stopped."""
    scenario = promotion(max_trials=3, divisor=4.0, max_time=64)
    scenario.train(0, 0.5)
    scenario.train(1, 0.4)
    assert kinds(scenario.train(2, 0.6)) == ["TrialPromoted", "RunRequested"]
    assert kinds(scenario.train(1, 0.3)) == ["TrialPromoted", "RunRequested"]
    decisions = scenario.train(1, 0.2)
    assert kinds(decisions) == [
        "TrialClosed",
        *["TrialStopped", "TrialClosed"] * 2,
        "ExperimentEnded",
    ]
    assert decisions[-1].reason == "3 trials: 1 completed, 2 stopped"  # type: ignore[union-attr]


def test_promotion_goes_on_without_those_that_fail() -> None:
    """A promoted trial that fails for good leaves a worst result at its rung, and no gap."""
    scenario = promotion(max_trials=2, max_restarts=0)
    scenario.train(0, 0.5)
    scenario.train(1, 0.4)
    decisions = scenario.exit(1, "failed")
    assert kinds(decisions) == ["TrialClosed", "TrialStopped", "TrialClosed", "ExperimentEnded"]


def test_promotion_of_a_trial_that_is_already_further() -> None:
    """A run that reported past the next rung is promoted by rung all the same."""
    scenario = promotion(max_trials=2)
    scenario.report(0, 9, 0.1)
    scenario.exit(0)
    scenario.train(1, 0.4)
    assert scenario.specs[0].length == 8
    assert kinds(scenario.exit(0)) == ["TrialPromoted", "RunRequested"]
    assert scenario.specs[0].length == 16


def test_promotion_with_all_rungs_at_one_length() -> None:
    """With max_time 1 every trial is completed by its first run, and none is promoted."""
    scenario = promotion(max_time=1, max_trials=4)
    assert scenario.experiment.plan[0].lengths == [1, 1, 1]
    for index in range(3):
        assert kinds(scenario.train(index, 0.5 - index / 10)) == ["TrialClosed"]
    [_, end] = scenario.train(3, 0.1)
    assert end.reason == "4 trials: 4 completed"  # type: ignore[union-attr]


def test_promotion_passes_over_completed_trials_at_rest() -> None:
    """A snapshot of a version that left trials at rest which it had completed goes on."""
    scenario = promotion(max_time=1, max_trials=2)
    scenario.train(0, 0.1)
    method = scenario.experiment.method
    assert isinstance(method, PromotionAsha)
    method.resting[0].add(0.1, 0)
    assert kinds(scenario.train(1, 0.2)) == ["TrialClosed", "ExperimentEnded"]

"""An experiment that has used its slot-hours ends in good order, with the results that it has."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rung.events import Payload
from rung.events.experiment import (
    ExperimentEnded,
    LimitReached,
    ResourcesRequested,
    SlotTimeCounted,
)
from rung.events.trial import RunWithdrawn, TrialClosed, TrialKillRequested
from searcher.test_faults import SEARCHES
from searcher.world import AND_LIMITS, HOUR_MS, World
from support.searcher.scenario import EXPERIMENT, Scenario, config, kinds

slow = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
REACHED = "its limit of 2 slot-hours is reached"


def search(name: str = "random", *, limit: float | None = 2.0, **fields: Any) -> Scenario:
    """Return a search that may use two slot-hours."""
    chosen = config(name, **fields)
    chosen["resources"]["max_slot_hours"] = limit
    return Scenario(chosen)


def counted(hours: float) -> SlotTimeCounted:
    """Return what a gateway counts."""
    return SlotTimeCounted(experiment_id=EXPERIMENT, slot_ms=round(hours * HOUR_MS))


def wanted(hours: float, **more: Any) -> ResourcesRequested:
    """Return the request of a user for another limit."""
    return ResourcesRequested(experiment_id=EXPERIMENT, max_slot_hours=float(hours), **more)


def closed(decisions: list[Payload]) -> dict[str, tuple[str, str]]:
    """Return how trials were closed, and why."""
    return {it.trial_id: (it.state, it.reason) for it in decisions if isinstance(it, TrialClosed)}


def test_runs_checkpoint_and_leave_and_the_results_count() -> None:
    """No run comes after it; what was trained to the end is completed, the rest is stopped."""
    scenario = search(max_trials=4, max_concurrent_trials=2)
    scenario.train(0, 0.5)
    scenario.report(1, 4, 0.9)
    decisions = scenario.tell(counted(2))
    reached, *withdrawn = decisions
    assert reached == LimitReached(
        experiment_id=EXPERIMENT, max_slot_hours=2.0, slot_ms=2 * HOUR_MS
    )
    assert [
        (it.trial_id, it.how, it.reason, it.final)
        for it in withdrawn
        if isinstance(it, RunWithdrawn)
    ] == [(f"{EXPERIMENT}.{index}", "preempt", REACHED, False) for index in (1, 2)]
    assert scenario.tell(counted(2.1)) == []
    assert closed(scenario.exit(2, "preempted")) == {
        f"{EXPERIMENT}.2": ("stopped", "the experiment has reached its limit of slot-hours")
    }
    *_, end = scenario.exit(1, "preempted")
    assert end == ExperimentEnded(
        experiment_id=EXPERIMENT,
        state="completed",
        reason=f"{REACHED}; 3 trials: 1 completed, 2 stopped",
    )


def test_a_trial_that_reached_its_length_while_it_left_is_completed() -> None:
    """As if the limit had come a moment later."""
    scenario = search(max_trials=2, max_concurrent_trials=1)
    scenario.report(0, 15, 0.9)
    scenario.tell(counted(2))
    scenario.report(0, 16, 0.8)
    trial, end = scenario.exit(0)
    assert isinstance(trial, TrialClosed)
    assert (trial.state, trial.reason) == ("completed", "trained to 16")
    assert isinstance(end, ExperimentEnded)
    assert end.state == "completed"


@pytest.mark.parametrize(
    ("stores", "reports", "state", "words"),
    [
        (False, False, "errored", f"{REACHED} before any trial had a result; 1 trial: 1 stopped"),
        (True, False, "completed", f"{REACHED}; 1 trial: 1 stopped"),
        (False, True, "completed", f"{REACHED}; 1 trial: 1 stopped"),
    ],
)
def test_without_a_usable_result_it_is_errored(
    *, stores: bool, reports: bool, state: str, words: str
) -> None:
    """A value, or of a plain training a checkpoint, is one."""
    scenario = search("single")
    if reports:
        scenario.report(0, 3, 0.5)
    scenario.tell(counted(2))
    if stores:
        scenario.store(0, 300, "c")
    *_, end = scenario.exit(0, "preempted")
    assert isinstance(end, ExperimentEnded)
    assert (end.state, end.reason) == (state, words)


def test_a_search_without_values_is_errored_despite_checkpoints() -> None:
    """There is nothing to choose by."""
    scenario = search(max_trials=1)
    scenario.tell(counted(2))
    scenario.store(0, 300, "c")
    *_, end = scenario.exit(0, "preempted")
    assert isinstance(end, ExperimentEnded)
    assert end.state == "errored"


def test_trials_that_failed_for_good_make_it_errored() -> None:
    """As without a limit, where none was completed; the end names both."""
    scenario = search(max_trials=2, max_concurrent_trials=2, max_restarts=0)
    scenario.exit(0, "failed", message="boom")
    scenario.report(1, 3, 0.5)
    scenario.tell(counted(2))
    *_, end = scenario.exit(1, "preempted")
    assert isinstance(end, ExperimentEnded)
    assert end.state == "errored"
    assert end.reason == f"{REACHED}; 1 of 2 trials errored: boom ({EXPERIMENT}.0); 1 stopped"


def test_a_limit_that_was_raised_in_time_holds() -> None:
    """A count that was made against the one before changes nothing."""
    scenario = search(max_trials=4)
    assert scenario.tell(wanted(3)) == []
    assert scenario.tell(counted(2.5)) == []
    assert kinds(scenario.tell(counted(3)))[0] == "LimitReached"
    assert scenario.tell(wanted(9)) == []
    assert scenario.experiment.spent == 3.0


def test_a_limit_below_what_was_counted_ends_it() -> None:
    """Without another count; a request of an older version does not."""
    scenario = search(max_trials=4)
    scenario.tell(wanted(3))
    scenario.tell(counted(2.5))
    assert scenario.tell(wanted(1, version=0)) == []
    assert kinds(scenario.tell(wanted(1, version=1)))[0] == "LimitReached"


def test_no_limit() -> None:
    """None in the file, or none any longer."""
    for scenario in (search("single", limit=None), search("single")):
        scenario.tell(wanted(0))
        assert scenario.tell(counted(99)) == []


def test_within_a_pause() -> None:
    """It ends with its last run, and is not resumed."""
    scenario = search(max_trials=4, max_concurrent_trials=2)
    scenario.report(0, 2, 0.5)
    scenario.pause()
    scenario.exit(0, "preempted")
    reached, first = scenario.tell(counted(2))
    assert kinds([reached]) == ["LimitReached"]
    assert closed([first]).keys() == {f"{EXPERIMENT}.0"}
    assert scenario.resume() == []
    assert kinds(scenario.exit(1, "preempted")) == ["TrialClosed", "ExperimentEnded"]


def test_a_kill_overrides_it_and_a_cancellation_does_not() -> None:
    """Its runs leave anyhow; a kill does not wait for them."""
    scenario = search(max_trials=1)
    scenario.report(0, 2, 0.5)
    scenario.tell(counted(2))
    assert scenario.cancel() == []
    (killed,) = scenario.kill()
    assert isinstance(killed, RunWithdrawn)
    assert killed.how == "kill"
    trial, end = scenario.exit(0, "killed")
    assert isinstance(trial, TrialClosed)
    assert isinstance(end, ExperimentEnded)
    assert (trial.state, end.state, end.reason) == (
        "canceled", "canceled", "1 trial: 1 canceled",
    )  # fmt: skip


def test_a_trial_that_its_user_killed_stays_canceled() -> None:
    """Also where the limit came before its run had ended."""
    scenario = search(max_trials=1)
    trial_id = f"{EXPERIMENT}.0"
    scenario.tell(TrialKillRequested(experiment_id=EXPERIMENT, trial_id=trial_id))
    scenario.tell(counted(2))
    *_, end = scenario.exit(0, "killed")
    assert isinstance(end, ExperimentEnded)
    assert end.state == "canceled"


@pytest.mark.parametrize("name", SEARCHES)
@given(seed=st.integers(0, 2**32))
@slow
def test_whatever_is_counted_every_search_ends(name: str, seed: int) -> None:
    """Among all faults: at the limit it ends, once, with no run more, and only then for that."""
    world = World(SEARCHES[name], seed, AND_LIMITS).run()
    assert world.ended is not None
    assert ("is reached" in world.ended.reason) == (world.spent is not None)

"""A user ends one trial; the search goes on without it."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rung.events import Payload
from rung.events.experiment import ExperimentEnded
from rung.events.trial import RunWithdrawn, TrialClosed, TrialKillRequested
from rung.methods.method import Chance, Continue
from rung.searcher.state import Trial
from searcher.new_method.copying import Copying
from searcher.test_faults import SEARCHES
from searcher.world import AND_KILLS, World
from support.searcher.scenario import EXPERIMENT, Scenario, config, kinds

KILLED = ["TrialClosed"]

slow = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def kill(scenario: Scenario, index: int) -> list[Payload]:
    """Have a user kill a trial."""
    trial_id = f"{EXPERIMENT}.{index}"
    return scenario.tell(TrialKillRequested(experiment_id=EXPERIMENT, trial_id=trial_id))


def search(name: str = "random", **fields: Any) -> Scenario:
    """Return a search."""
    return Scenario(config(name, **fields))


def test_a_running_trial_is_killed_at_once() -> None:
    """Its run is withdrawn for good; however it ends, it is no failure, and is not replaced."""
    scenario = search(max_trials=3, max_concurrent_trials=2)
    (withdrawn,) = kill(scenario, 0)
    assert isinstance(withdrawn, RunWithdrawn)
    assert (withdrawn.how, withdrawn.trial_id) == ("kill", f"{EXPERIMENT}.0")
    assert kill(scenario, 0) == []
    closed, *rest = scenario.exit(0, "failed")
    assert isinstance(closed, TrialClosed)
    assert (closed.state, closed.reason, closed.restarts) == ("canceled", "its user killed it", 0)
    assert kinds(rest) == ["TrialRequested", "RunRequested"]
    scenario.train(1, 0.5)
    *_, ended = scenario.train(2, 0.4)
    assert isinstance(ended, ExperimentEnded)
    assert (ended.state, ended.reason) == ("completed", "3 trials: 1 canceled, 2 completed")


@pytest.mark.parametrize("how", ["lost", "dropped", "finished", "invalid_hp", "killed"])
def test_however_its_run_ends(how: Any) -> None:
    """The trial is closed once, and the search with it if it was the only one."""
    scenario = search("single")
    kill(scenario, 0)
    if how in {"lost", "dropped"}:
        decisions = scenario.lose(0) if how == "lost" else scenario.drop(0)
    else:
        decisions = scenario.exit(0, how)
    assert kinds(decisions) == ["TrialClosed", "ExperimentEnded"]
    assert decisions[1].state == "canceled"  # type: ignore[union-attr]


def test_a_trial_without_a_run_is_closed_at_once() -> None:
    """One that is paused holds no slots, so there is nothing to wait for."""
    scenario = search(max_trials=2)
    scenario.pause()
    scenario.exit(0, "preempted")
    assert kinds(kill(scenario, 0)) == KILLED
    assert kill(scenario, 0) == []
    scenario.exit(1, "preempted")
    assert kinds(scenario.resume()) == ["ExperimentResumed", "RunRequested"]


def test_a_stopped_trial_is_killed_too() -> None:
    """One that still checkpoints ends at once; it stays stopped."""
    scenario = search("async_halving", max_trials=9, num_rungs=2, divisor=4.0)
    for index in range(8):
        scenario.report(index, 4, float(index))
    assert scenario.experiment.trials[7].stopped is not None
    (withdrawn,) = kill(scenario, 7)
    assert withdrawn.how == "kill"  # type: ignore[union-attr]
    assert scenario.exit(7, "killed")[0].state == "stopped"  # type: ignore[union-attr]


def test_a_resting_trial_is_never_promoted() -> None:
    """In ASHA it keeps its place in its rung, so that the others are judged as before."""
    fields = {"max_trials": 4, "num_rungs": 2, "divisor": 4.0, "stop_once": False}
    scenario = search("async_halving", **fields, max_concurrent_trials=1)
    scenario.train(0, 0.1)
    assert kinds(kill(scenario, 0)) == KILLED
    for index in (1, 2):
        scenario.train(index, 0.5 + index)
    decisions = scenario.train(3, 0.4)
    assert kinds(decisions) == ["TrialPromoted", "RunRequested"]
    assert decisions[0].trial_id == f"{EXPERIMENT}.3"  # type: ignore[union-attr]


def test_what_is_reported_after_it_counts_no_more() -> None:
    """A trial on its way out is judged by no rung."""
    scenario = search("async_halving", max_trials=9, num_rungs=2, divisor=4.0)
    for index in range(8):
        scenario.report(index, 3, float(index))
    kill(scenario, 7)
    assert scenario.report(7, 4, 9.0) == []
    assert scenario.exit(7, "killed")[0].state == "canceled"  # type: ignore[union-attr]


@pytest.mark.sim
@pytest.mark.parametrize("name", sorted(SEARCHES))
@slow
@given(seed=st.integers(0, 2**32))
def test_every_search_ends_also_where_trials_are_killed(name: str, seed: int) -> None:
    """At any moment, in any state, under all faults: no rung waits for a trial that is gone."""
    world = World(SEARCHES[name], seed, AND_KILLS).run()
    assert world.ended is not None
    killed = [trial for trial in world.closed.values() if trial.state == "canceled"]
    assert all(trial.reason == "its user killed it" for trial in killed)
    good = {"completed", "stopped"} & {trial.state for trial in world.closed.values()}
    if len(killed) == world.trials:
        assert world.ended.state == "canceled"
    elif not good:
        assert world.ended.state == "errored"


@pytest.mark.sim
@pytest.mark.parametrize("name", sorted(SEARCHES))
@slow
@given(seed=st.integers(0, 2**32))
def test_every_search_ends_if_all_its_trials_are_killed(name: str, seed: int) -> None:
    """Each as soon as it is there."""
    world = World(SEARCHES[name], seed, (), 0)
    while world.ended is None:
        for index in range(world.trials):
            if world.ended is None:
                world.kill(index)
        if world.ended is None:
            world.step()
    assert world.ended.state == "canceled"


def test_a_method_that_says_nothing_about_it() -> None:
    """A killed trial counts as failed; one at rest as continued before, so it rests no more."""
    method = Copying(population=3, lengths=[2, 4])
    trials = [Trial(index, 0, {"lr": 0.1}, 1, cost=0.5) for index in range(3)]
    for trial in trials:
        method.created(trial)
        method.trained(trial)
    trials[0].rung = 1
    method.killed(trials[0], resting=True)
    assert (method.resting, sorted(method.results)) == ([1, 2], [1, 2])
    method.continued(trials[1])
    method.killed(trials[1], resting=False)
    assert (method.resting, sorted(method.results)) == ([2], [2])
    moves = method.moves(Chance([], 1, 3), 9)
    assert [move.index for move in moves if isinstance(move, Continue)] == [2]

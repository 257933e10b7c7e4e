"""A user changes priority, weight, limit or pool of a search that has not ended."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rung.events.experiment import ResourcesChanged, ResourcesRequested
from rung.events.trial import RunRequested, RunWithdrawn
from searcher.test_faults import SEARCHES
from searcher.world import AND_RESOURCES, World
from support.searcher.scenario import EXPERIMENT, Scenario, config, kinds

slow = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def wanted(**more: Any) -> ResourcesRequested:
    """Return the request of a user."""
    return ResourcesRequested(experiment_id=EXPERIMENT, **more)


def search(name: str = "random", **fields: Any) -> Scenario:
    """Return a search."""
    return Scenario(config(name, **fields))


def test_what_trains_keeps_training_and_later_runs_have_the_values() -> None:
    """One decision for the pool; nothing is withdrawn."""
    scenario = search(max_trials=3, max_concurrent_trials=1)
    (changed,) = scenario.tell(wanted(priority=10, weight=2.0, max_slots=4))
    assert changed == ResourcesChanged(
        experiment_id=EXPERIMENT, pool="a", priority=10, weight=2.0, max_slots=4
    )
    *_, run = scenario.train(0, 0.5)
    assert isinstance(run, RunRequested)
    assert (run.pool, run.priority, run.max_slots) == ("a", 10, 4)
    assert run.submission is not None
    assert run.submission.weight == 2.0
    assert scenario.tell(wanted(max_slots=0)) == [
        ResourcesChanged(
            experiment_id=EXPERIMENT, pool="a", priority=10, weight=2.0, max_slots=None
        )
    ]


def test_nothing_follows_from_what_is_so_already() -> None:
    """Neither from the same values, nor from none."""
    scenario = search(max_trials=3)
    assert scenario.tell(wanted(priority=42, pool="a", weight=1.0, max_slots=0)) == []
    assert scenario.tell(wanted()) == []


def test_another_pool() -> None:
    """What trains checkpoints and goes on there; what waits is dropped and waits there."""
    scenario = search("single")
    scenario.report(0, 5, 0.5)
    scenario.store(0, 500, "c")
    changed, withdrawn = scenario.tell(wanted(pool="b"))
    assert isinstance(changed, ResourcesChanged)
    assert changed.pool == "b"
    assert isinstance(withdrawn, RunWithdrawn)
    assert (withdrawn.pool, withdrawn.how, withdrawn.final) == ("a", "preempt", False)
    assert withdrawn.reason == "goes on in pool b"
    (run,) = scenario.exit(0, "preempted")
    assert isinstance(run, RunRequested)
    assert (run.pool, run.spec.run, run.spec.restore) == ("b", 2, ["c"])
    assert scenario.experiment.trials[0].restarts == 0
    assert kinds(scenario.tell(wanted(pool="a"))) == ["ResourcesChanged", "RunWithdrawn"]
    (run,) = scenario.drop(0)
    assert isinstance(run, RunRequested)
    assert (run.pool, run.spec.run, run.spec.restore) == ("a", 3, ["c"])


def test_there_and_back_before_a_run_has_left() -> None:
    """It is withdrawn once, and goes on where it was."""
    scenario = search("single")
    assert len(scenario.tell(wanted(pool="b"))) == 2
    assert kinds(scenario.tell(wanted(pool="a"))) == ["ResourcesChanged"]
    (run,) = scenario.exit(0, "preempted")
    assert isinstance(run, RunRequested)
    assert run.pool == "a"
    assert kinds(scenario.tell(wanted(pool="b"))) == ["ResourcesChanged", "RunWithdrawn"]


def test_a_kill_reaches_a_run_of_the_pool_before() -> None:
    """It is still there while it leaves."""
    scenario = search("single")
    scenario.tell(wanted(pool="b"))
    (killed,) = scenario.kill()
    assert isinstance(killed, RunWithdrawn)
    assert (killed.pool, killed.how) == ("a", "kill")
    assert scenario.tell(wanted(pool="c")) == []
    assert kinds(scenario.exit(0, "killed")) == ["TrialClosed", "ExperimentEnded"]


def test_within_a_pause() -> None:
    """What is resumed goes on in the other pool."""
    scenario = search("single")
    scenario.pause()
    scenario.exit(0, "preempted")
    assert kinds(scenario.tell(wanted(pool="b", priority=1))) == ["ResourcesChanged"]
    *_, run = scenario.resume()
    assert isinstance(run, RunRequested)
    assert (run.pool, run.priority) == ("b", 1)


def test_of_two_changes_of_one_version_the_first_is_made() -> None:
    """A later one that has not seen it is passed over; one without a version is not."""
    scenario = search("single")
    assert len(scenario.tell(wanted(priority=1, version=0))) == 1
    assert scenario.tell(wanted(priority=2, version=0)) == []
    assert len(scenario.tell(wanted(priority=3, version=1))) == 1
    assert len(scenario.tell(wanted(priority=4))) == 1
    assert scenario.experiment.changes == 3


@pytest.mark.parametrize("name", SEARCHES)
@given(seed=st.integers(0, 2**32))
@slow
def test_whatever_is_changed_every_search_ends(name: str, seed: int) -> None:
    """Among all faults: each run is asked for, and withdrawn, where and as it is to be."""
    World(SEARCHES[name], seed, AND_RESOURCES).run()

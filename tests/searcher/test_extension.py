"""A user asks for more trials, or for a longer length, while a search has not ended."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rung.events import Payload
from rung.events.experiment import ExtensionRequested, SearchExtended
from rung.events.trial import RunRequested, RunWithdrawn, TrialRequested
from searcher.test_faults import SEARCHES
from searcher.world import AND_KILLS, World
from support.searcher.scenario import EXPERIMENT, Scenario, config, kinds

MORE = {"random", "no length", "asha", "promotion", "adaptive", "one by one"}
"""Searches that can have more trials."""

slow = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def asked(**more: int) -> ExtensionRequested:
    """Return the request of a user."""
    return ExtensionRequested(experiment_id=EXPERIMENT, **more)


def search(name: str = "random", **fields: Any) -> Scenario:
    """Return a search."""
    return Scenario(config(name, **fields))


def drawn(scenario: Scenario) -> list[Payload]:
    """Return the trials of a search: hyperparameters, seeds, brackets."""
    return [
        decision
        for _, decisions in scenario.history
        for decision in decisions
        if isinstance(decision, TrialRequested)
    ]


def test_ten_and_ten_are_twenty() -> None:
    """The trials of an extended random search are those of one that was that long at once."""
    at_once = search(max_trials=20, max_concurrent_trials=3)
    extended = search(max_trials=10, max_concurrent_trials=3)
    for index in range(9):
        for scenario in (at_once, extended):
            scenario.train(index, 0.5)
    assert kinds(extended.tell(asked(trials=20))) == [
        "SearchExtended",
        *["TrialRequested", "RunRequested"] * 2,
    ]
    for index in range(9, 20):
        for scenario in (at_once, extended):
            *_, last = scenario.train(index, 0.5)
            assert index < 19 or kinds([last]) == ["ExperimentEnded"]
    assert drawn(extended) == drawn(at_once)
    assert len(drawn(extended)) == 20


def test_a_longer_length() -> None:
    """The trial checkpoints, leaves, and goes on from there to the new length."""
    scenario = search("single", max_time=16)
    scenario.report(0, 10, 0.5)
    extended, withdrawn = scenario.tell(asked(max_time=24))
    assert isinstance(extended, SearchExtended)
    assert [plan.lengths for plan in extended.brackets] == [[24]]
    assert isinstance(withdrawn, RunWithdrawn)
    assert (withdrawn.how, withdrawn.reason) == ("preempt", "goes on to 24")
    scenario.report(0, 12, 0.5)
    scenario.store(0, 1200, "c")
    (run,) = scenario.exit(0, "preempted")
    assert isinstance(run, RunRequested)
    assert (run.spec.length, run.spec.restore) == (24, ["c"])
    assert kinds(scenario.train(0, 0.4)) == ["TrialClosed", "ExperimentEnded"]


def test_a_run_that_has_just_reached_the_old_length() -> None:
    """It has finished when the request comes to it: the trial goes on all the same."""
    scenario = search("single", max_time=16)
    scenario.report(0, 16, 0.5)
    scenario.store(0, 1600, "c")
    scenario.tell(asked(max_time=24))
    (run,) = scenario.exit(0, "finished")
    assert (run.spec.length, run.spec.restore) == (24, ["c"])  # type: ignore[union-attr]


def test_a_longer_length_within_a_pause() -> None:
    """The next run has it."""
    scenario = search("single", max_time=16)
    scenario.pause()
    scenario.exit(0, "preempted")
    assert kinds(scenario.tell(asked(max_time=24))) == ["SearchExtended"]
    *_, run = scenario.resume()
    assert run.spec.length == 24  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "fields", "more"),
    [
        ("random", {"max_trials": 3}, {"max_time": 32}),
        ("random", {"max_trials": 3}, {"trials": 3}),
        ("random", {"max_trials": 3}, {"trials": 2}),
        ("random", {"max_trials": 3}, {}),
        ("single", {}, {"trials": 2}),
        ("single", {}, {"max_time": 16}),
        ("single", {"max_time": None}, {"max_time": 16}),
        ("grid", {"space": {"a": {"c": 1}}}, {"trials": 9}),
        ("grid", {"space": {"a": {"c": 1}}}, {"max_time": 32}),
        ("async_halving", {"max_trials": 3, "num_rungs": 2, "divisor": 4.0}, {"max_time": 32}),
        ("hyperband", {"max_time": 9, "divisor": 3.0}, {"trials": 90}),
        ("hyperband", {"max_time": 9, "divisor": 3.0}, {"max_time": 27}),
    ],
)
def test_what_cannot_be_is_ignored(
    name: str, fields: dict[str, Any], more: dict[str, int]
) -> None:
    """Less than planned, or what the method cannot: nothing follows."""
    assert search(name, **fields).tell(asked(**more)) == []


def test_shares_of_brackets() -> None:
    """More trials are shared out as the first ones were, and add up to what was asked for."""
    scenario = search("adaptive_asha", max_trials=16, mode="conservative", divisor=2.0)
    before = [plan.trials for plan in scenario.experiment.plan]
    extended, *_ = scenario.tell(asked(trials=40))
    assert isinstance(extended, SearchExtended)
    after = [plan.trials for plan in extended.brackets]
    assert sum(after) == 40
    assert all(more > less for more, less in zip(after, before, strict=True))


@pytest.mark.sim
@pytest.mark.parametrize("name", sorted(SEARCHES))
@slow
@given(seed=st.integers(0, 2**32), after=st.integers(0, 120), more=st.integers(1, 30))
def test_every_extended_search_ends(name: str, seed: int, after: int, more: int) -> None:
    """Extended at any moment under all faults it has the trials asked for; else it has its own."""
    world = World(SEARCHES[name], seed, AND_KILLS)
    for _ in range(after):
        if world.ended is None:
            world.step()
    taken = world.ended is None and name in MORE
    planned = 0
    if world.ended is None:
        planned = sum(plan.trials for plan in world.scenario.experiment.plan)
        world._obey(world.scenario.tell(asked(trials=planned + more)))
    world.run()
    assert world.ended is not None
    if taken:
        assert world.trials >= planned + more


@pytest.mark.sim
@slow
@given(seed=st.integers(0, 2**32), after=st.integers(0, 60))
def test_a_longer_length_at_any_moment(seed: int, after: int) -> None:
    """Whatever befalls the trial, it trains to the new length, or fails too often."""
    world = World(SEARCHES["single"], seed, ("fail", "lose", "pause", "killed", "overrun"), 9)
    for _ in range(after):
        if world.ended is None:
            world.step()
    if world.ended is None:
        world._obey(world.scenario.tell(asked(max_time=40)))
        assert world.run().closed[0].reason in {
            "trained to 40",
            "failed 3 times; max_restarts is 2: ValueError: no",
        }

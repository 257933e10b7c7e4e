"""Whatever goes wrong, every search ends, within its limits; some decide as if nothing had."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rung.events.experiment import CancelRequested
from searcher.world import ALL_FAULTS, ORDER_FREE, World
from support.searcher.scenario import EXPERIMENT, config

pytestmark = pytest.mark.sim

GRID = {"a": {"type": "int", "minval": 1, "maxval": 9, "count": 3}, "b": {"c": [1, 2]}}

SEARCHES: dict[str, dict[str, Any]] = {
    "single": config("single"),
    "grid": config("grid", space=GRID, max_concurrent_trials=2),
    "random": config("random", max_trials=9, max_concurrent_trials=4),
    "no length": config("random", max_trials=9, max_time=None, max_concurrent_trials=0),
    "asha": config("async_halving", max_trials=14, num_rungs=3, divisor=3.0),
    "promotion": config(
        "async_halving",
        max_trials=14,
        num_rungs=3,
        divisor=3.0,
        stop_once=False,
        max_concurrent_trials=5,
    ),
    "adaptive": config("adaptive_asha", max_trials=16, mode="conservative", divisor=2.0),
    "one by one": config("adaptive_asha", max_trials=8, divisor=2.0, max_concurrent_trials=1),
    "hyperband": config("hyperband", max_time=9, divisor=3.0, max_concurrent_trials=5),
}
TRIALS = {"single": 1, "grid": 3, "hyperband": 9 + 5 + 3}
REPLACED = {"random", "no length", "asha", "promotion", "adaptive", "one by one"}

slow = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@pytest.mark.parametrize("name", sorted(SEARCHES))
@slow
@given(seed=st.integers(0, 2**32))
def test_every_search_ends(name: str, seed: int) -> None:
    """Under any faults a search ends, with every trial closed once and never more than allowed.

    A completed trial reported a finite value or, in `single`, stored something,
    and a search is completed where one of its trials is, or where it stopped all that it had.
    """
    search = SEARCHES[name]
    world = World(search, seed, ALL_FAULTS).run()

    trials = TRIALS.get(name) or search["searcher"]["max_trials"]
    assert trials <= world.trials <= trials * (2 if name in REPLACED else 1)
    assert world.ended is not None
    states = {index: trial.state for index, trial in world.closed.items()}
    good = set(states.values()) & {"completed", "stopped"}
    completed = {index for index, state in states.items() if state == "completed"}
    assert completed <= (world.finite | world.stored if name == "single" else world.finite)
    good -= set() if completed or "errored" not in states.values() else {"stopped"}
    assert world.ended.state == ("completed" if good else "errored")


@pytest.mark.parametrize("name", sorted(SEARCHES))
@slow
@given(seed=st.integers(0, 2**32), after=st.integers(0, 120))
def test_every_search_can_be_canceled_at_any_moment(name: str, seed: int, after: int) -> None:
    """A cancellation ends a search at whatever moment it comes, also within a pause."""
    world = World(SEARCHES[name], seed, ALL_FAULTS)
    for _ in range(after):
        if world.ended is None:
            world.step()
    if world.ended is None:
        world._obey(world.scenario.tell(CancelRequested(experiment_id=EXPERIMENT)))
        while world.live:
            world._over(index := next(iter(world.live)), world.scenario.exit(index, "preempted"))
        assert world.ended is not None
        assert world.ended.state == "canceled"


def outcome(world: World) -> Any:
    """Return all that a search decided of its trials, without its order."""
    return (
        sorted((index, trial.state) for index, trial in world.closed.items()),
        sorted((event.trial_id, event.rung, event.reason) for event in world.stopped.values()),
        sorted((event.trial_id, event.rung, event.reason) for event in world.promoted),
    )


@pytest.mark.parametrize("name", ["hyperband", "grid", "random", "single"])
@slow
@given(seed=st.integers(0, 2**32), concurrent=st.integers(0, 9))
def test_order_does_not_matter(name: str, seed: int, concurrent: int) -> None:
    """Losses, restarts, pauses, repetitions and the order of arrival change no result."""
    search = SEARCHES[name] | {"max_restarts": 100}
    expected = outcome(World(search, 0, (), 0).run())
    search = search | {
        "searcher": search["searcher"] | {"max_concurrent_trials": concurrent},
    }
    assert outcome(World(search, seed, ORDER_FREE).run()) == expected


@slow
@given(seed=st.integers(0, 2**32))
def test_hyperband_ignores_the_order_of_failures(seed: int) -> None:
    """Which trials fail for good or report NaN decides; when they do it does not."""
    search = SEARCHES["hyperband"]

    def failing(seed: int) -> World:
        world = World(search, seed, ("lose", "repeat", "pause"), 20)
        world._hopeless = {1: True, 4: True, 9: True, 12: True, 16: True}
        return world.run()

    assert outcome(failing(seed)) == outcome(failing(0))

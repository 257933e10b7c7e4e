"""A search decides in steps, however many trials it has."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rung.events import Payload
from rung.events.experiment import (
    CancelRequested,
    KillRequested,
    SearchDeferred,
)
from rung.events.trial import RunRequested, RunWithdrawn, TrialClosed, TrialRequested
from rung.searcher import processor
from rung.searcher.processor import DECISIONS_MAX
from rung.searcher.simulate import simulate
from searcher.recording import SEARCHES
from searcher.world import AND_KILLS, AND_RESOURCES, ORDER_FREE, World
from support.searcher.scenario import EXPERIMENT, Scenario, config, kinds

TRIALS = 300
"""More than one step takes; a test takes the square of this, for a scenario copies its state at
each fact."""
ONE_STEP = 10**9
"""As many decisions as no search has."""
UNLIMITED = config("random", max_trials=TRIALS, max_concurrent_trials=0)

slow = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def unlimited() -> Scenario:
    """Return a search of which every trial may train at once."""
    return Scenario(UNLIMITED)


def steps(scenario: Scenario) -> list[int]:
    """Return how many decisions followed from each fact."""
    return [len(decisions) for _, decisions in scenario.history]


def without_steps(decisions: list[Payload]) -> list[Payload]:
    """Return decisions without those that divide them."""
    return [decision for decision in decisions if not isinstance(decision, SearchDeferred)]


@pytest.mark.parametrize(
    "search",
    [
        UNLIMITED,
        config("random", max_trials=TRIALS, max_concurrent_trials=150),
        config(
            "grid",
            space={"a": {"type": "int", "minval": 1, "maxval": TRIALS, "count": TRIALS}},
            max_concurrent_trials=0,
        ),
        config("async_halving", max_trials=TRIALS, num_rungs=3, max_concurrent_trials=0),
        config("hyperband", max_time=243, divisor=3.0, max_concurrent_trials=0),
    ],
    ids=lambda it: it["searcher"]["name"],
)
def test_the_trials_are_those_of_one_step(
    search: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indices, seeds, hyperparameters and lengths are those of a search that decides at once."""
    scenario = Scenario(search)
    decisions = scenario.go_on(scenario.first)
    monkeypatch.setattr(processor, "DECISIONS_MAX", ONE_STEP)
    at_once = Scenario(search)
    assert without_steps(decisions) == at_once.first
    assert len(at_once.first) > DECISIONS_MAX
    assert max(steps(scenario)) <= DECISIONS_MAX
    assert kinds(decisions).count("SearchDeferred") == len(scenario.history) - 1


def test_what_one_step_holds_is_not_divided() -> None:
    """A search with as much to decide as a step holds decides in one."""
    trials = (DECISIONS_MAX - 2) // 2
    for more in (0, 1):
        search = config("random", max_trials=trials + more, max_concurrent_trials=0)
        scenario = Scenario(search)
        assert kinds(scenario.first).count("TrialRequested") == trials
        assert isinstance(scenario.first[-1], SearchDeferred) == bool(more)


def test_one_continuation_at_a_time() -> None:
    """Facts between two steps are answered, and do not make the steps more."""
    scenario = unlimited()
    first = scenario.exit(0)
    assert kinds(first).count("TrialClosed") == 1
    assert "SearchDeferred" not in kinds(first)
    decisions = scenario.first + first + scenario.go_on(scenario.first)[len(scenario.first) :]
    requested = [it.index for it in decisions if isinstance(it, TrialRequested)]
    assert requested == list(range(TRIALS))


def test_a_pause_and_what_follows() -> None:
    """All runs are withdrawn in steps, and after the pause requested in steps."""
    scenario = unlimited()
    scenario.go_on(scenario.first)
    paused = scenario.go_on(scenario.pause())
    withdrawn = [it for it in paused if isinstance(it, RunWithdrawn)]
    assert [(it.how, it.reason) for it in withdrawn] == [("preempt", "paused")] * TRIALS
    assert [scenario.exit(index, "preempted") for index in range(TRIALS)] == [[]] * TRIALS
    resumed = scenario.go_on(scenario.resume())
    runs = [it.spec.trial_index for it in resumed if isinstance(it, RunRequested)]
    assert runs == list(range(TRIALS))
    assert max(steps(scenario)) <= DECISIONS_MAX


def test_a_pause_that_is_taken_back_between_two_steps() -> None:
    """Runs that were not withdrawn yet train on."""
    scenario = unlimited()
    scenario.go_on(scenario.first)
    paused = scenario.pause()
    resumed = scenario.resume()
    rest = scenario.go_on(paused)[len(paused) :]
    count = kinds(paused).count("RunWithdrawn")
    assert 0 < count < DECISIONS_MAX
    assert kinds(resumed) == ["ExperimentResumed"]
    assert rest == []
    assert kinds(scenario.exit(0, "preempted")) == ["RunRequested"]


@pytest.mark.parametrize("kill", [False, True])
def test_the_end_between_two_steps(kill: bool) -> None:  # noqa: FBT001 - a table's column
    """A search that is ended creates no more trials, and ends with its last one."""
    scenario = unlimited()
    created = kinds(scenario.first).count("TrialRequested")
    ending = scenario.kill() if kill else scenario.cancel()
    assert scenario.go_on(ending) == ending
    withdrawn = [it.how for it in ending if isinstance(it, RunWithdrawn)]
    assert withdrawn == ["kill" if kill else "preempt"] * created
    assert "TrialRequested" not in kinds(ending)
    for index in range(created - 1):
        assert kinds(scenario.exit(index, "killed")) == ["TrialClosed"]
    assert kinds(scenario.exit(created - 1, "killed")) == ["TrialClosed", "ExperimentEnded"]


def test_trials_are_closed_in_steps() -> None:
    """A paused search that is canceled closes all its trials, and then ends."""
    scenario = unlimited()
    scenario.go_on(scenario.first)
    scenario.go_on(scenario.pause())
    for index in range(TRIALS):
        scenario.exit(index, "preempted")
    decisions = without_steps(scenario.go_on(scenario.cancel()))
    closed = [it.trial_id for it in decisions if isinstance(it, TrialClosed)]
    assert closed == [f"{EXPERIMENT}.{index}" for index in range(TRIALS)]
    assert kinds(decisions)[-1] == "ExperimentEnded"
    assert max(steps(scenario)) <= DECISIONS_MAX


def test_a_preview_takes_all_steps() -> None:
    """It has as many trials as the search."""
    result = simulate(UNLIMITED, lambda index, _, time: index + time, slots=64)
    assert result.ended is not None
    assert kinds(result.decisions).count("TrialClosed") == TRIALS
    assert max(len(decisions) for _, decisions in result.history) <= DECISIONS_MAX


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how few decisions a step has in a test of steps."""
    monkeypatch.setattr(processor, "DECISIONS_MAX", 6)
    return 6


def _wide(search: dict[str, Any]) -> dict[str, Any]:
    """Return a search without a limit of trials at once."""
    return search | {"searcher": search["searcher"] | {"max_concurrent_trials": 0}}


@pytest.mark.sim
@pytest.mark.parametrize("name", sorted(SEARCHES))
@settings(slow, suppress_health_check=[*HealthCheck])
@given(seed=st.integers(0, 2**32), after=st.integers(0, 100), end=st.sampled_from("-ck"))
def test_every_search_ends_in_steps(
    name: str, narrow: int, seed: int, after: int, end: str
) -> None:
    """Whatever happens between the steps, each is small, and the search ends."""
    world = World(_wide(SEARCHES[name]), seed, AND_KILLS)
    for _ in range(after):
        if world.ended is None:
            world.step()
    if world.ended is None and end != "-":
        kind = CancelRequested if end == "c" else KillRequested
        world._obey(world.scenario.tell(kind(experiment_id=EXPERIMENT)))
    world.run()
    assert max(steps(world.scenario)) <= narrow


@pytest.mark.sim
@pytest.mark.parametrize("name", sorted(SEARCHES))
@settings(slow, suppress_health_check=[*HealthCheck])
@given(seed=st.integers(0, 2**32))
@pytest.mark.usefixtures("narrow")
def test_resources_change_between_steps(name: str, seed: int) -> None:
    """Runs of later steps have what was asked for between them."""
    World(_wide(SEARCHES[name]), seed, AND_RESOURCES).run()


@pytest.mark.sim
@pytest.mark.parametrize("name", ["grid", "hyperband", "random"])
@settings(slow, suppress_health_check=[*HealthCheck])
@given(seed=st.integers(0, 2**32))
def test_steps_change_no_result(
    name: str, narrow: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches that wait for all results of a round come to the same trials and results."""
    search = _wide(SEARCHES[name]) | {"max_restarts": 100}

    def outcome(world: World) -> Any:
        return (
            sorted((index, trial.state) for index, trial in world.run().closed.items()),
            sorted((it.trial_id, it.rung, it.reason) for it in world.promoted),
        )

    with monkeypatch.context() as patch:
        patch.setattr(processor, "DECISIONS_MAX", ONE_STEP)
        expected = outcome(World(search, 0, (), 0))
    assert narrow == processor.DECISIONS_MAX
    assert outcome(World(search, seed, ORDER_FREE)) == expected

"""Simulated searches: many seeds, every kind of fault, the services' own components."""

import logging
import os
from collections import Counter
from typing import Any, NamedTuple

import pytest
import structlog

from rung.checkpoint_gc.processor import AS_REQUESTED
from rung.events import TOPICS, Payload, decode, topic
from rung.events.checkpoint import CheckpointRetired
from rung.events.experiment import (
    ExperimentRetired,
    LimitReached,
    ResourcesChanged,
    SearchExtended,
)
from rung.events.trial import TrialClosed
from rung.sim import run
from rung.sim.clock import in_virtual_time
from rung.sim.scenario import Outcome, Scenario, simulate
from rung.sim.workload import METHODS, ORDER_FREE, calm, changed, limited, stormy
from rung.sim.world import PARTITIONS, Faults, World

SEEDS = int(os.environ.get("RUNG_SIM_SEEDS", "60"))
PARTS = 4
"""In which the seeds are simulated, so that workers share them."""


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Have no logs written of thousands of starts."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _found(outcome: Outcome) -> dict[str, Any]:
    """Return what must not depend on faults: a trial's draw, its end, and its metrics."""
    return {"state": outcome.state, "trials": outcome.trials}


class Simulated(NamedTuple):
    """A search under faults."""

    outcome: Outcome
    kills: Counter[str]
    """How often each process was killed."""
    history: dict[str, list[tuple[str, str, Payload]]]
    """Topic → key, time and data of its events."""


def _simulated(scenario: Scenario, seed: int) -> Simulated:
    async def simulated() -> Simulated:
        world = World(seed, scenario.faults)
        outcome = await simulate(world, scenario)
        history = {
            name: [
                (event.key, event.time, event.data)
                for event in (decode(record.value) for record in await world.records(name))
            ]
            for name in TOPICS
        }
        return Simulated(outcome, world.kills, history)

    return in_virtual_time(simulated())


@pytest.mark.sim
def test_keys_lie_in_all_partitions() -> None:
    """A search, its pool and another pool are in different ones, which are folded apart."""

    async def simulated() -> set[int]:
        world = World(0, Faults())
        await simulate(world, calm("single"))
        return {it.partition for name in TOPICS for it in await world.records(name)}

    assert in_virtual_time(simulated()) == set(range(PARTITIONS))


@pytest.mark.sim
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_search_ends_and_audits_under_faults(method: str, part: int) -> None:
    """Whatever is killed or repeated: the search ends, once, and all invariants hold.

    `rung.sim.run` checks them; a failure names its seed, and `python -m rung.sim` repeats it.
    Where the order of reports decides nothing, trials, hyperparameters, states and metrics equal
    those of the undisturbed search.
    """
    expected = _found(run(calm(method), 0)) if method in ORDER_FREE else None
    for seed in range(part, SEEDS, PARTS):
        try:
            outcome = run(stormy(method), seed)
        except AssertionError as error:
            raise AssertionError(f"--method {method} --seed {seed}: {error}") from error
        assert outcome.state == "completed", f"--method {method} --seed {seed}"
        if expected is not None:
            assert _found(outcome) == expected, f"--method {method} --seed {seed}"


@pytest.mark.sim
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_search_that_users_change_ends_and_audits_under_faults(method: str) -> None:
    """Trials killed, more asked for, checkpoints and all of it deleted: the invariants hold."""
    for seed in range(SEEDS // 4):
        try:
            run(changed(method), seed)
        except AssertionError as error:
            raise AssertionError(f"--changes --method {method} --seed {seed}: {error}") from error


@pytest.mark.sim
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_search_with_a_limit_ends_and_audits_under_faults(method: str) -> None:
    """Whatever is killed: it uses its slot-hours and ends, with its results, or ends before."""
    for seed in range(SEEDS // 4):
        try:
            run(limited(method), seed)
        except AssertionError as error:
            raise AssertionError(f"--limit --method {method} --seed {seed}: {error}") from error


@pytest.mark.sim
def test_a_limit_is_reached() -> None:
    """It stops trials that go on without it."""
    stopped = [
        event
        for _, _, event in _simulated(limited("random"), 0).history[topic.SEARCHES]
        if isinstance(event, TrialClosed) and event.state == "stopped"
    ]
    assert stopped
    assert {event.reason for event in stopped} == {
        "the experiment has reached its limit of slot-hours"
    }


@pytest.mark.sim
def test_each_change_of_a_user_has_an_effect() -> None:
    """Some seeds each kill a trial, extend, move, limit, delete a checkpoint, and all of it."""
    wanted = {"its user killed it", "extended", AS_REQUESTED, "deleted", "default", "elsewhere"}
    wanted |= {"limited"}
    seen = set[str]()
    for seed in range(200):
        history = _simulated(changed("random"), seed).history
        for _, _, data in history[topic.SEARCHES] + history[topic.RETIREMENTS]:
            match data:
                case TrialClosed() | CheckpointRetired():
                    seen.add(data.reason)
                case SearchExtended():
                    seen.add("extended")
                case LimitReached():
                    seen.add("limited")
                case ResourcesChanged():
                    seen.add(data.pool)
                case ExperimentRetired():
                    seen.add("deleted")
                case _:
                    pass
        if wanted <= seen:
            return
    raise AssertionError(wanted - seen)


@pytest.mark.sim
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_seed_is_repeatable(method: str) -> None:
    """One seed gives one history: the same events at the same times, to the millisecond."""
    for scenario in (stormy(method), changed(method)):
        assert _simulated(scenario, 3) == _simulated(scenario, 3)


@pytest.mark.sim
def test_each_component_is_killed() -> None:
    """Processors, relays, the failure detector, the deletions and the projections all are."""
    kills: Counter[str] = Counter()
    for seed in range(40):
        kills += _simulated(stormy("asha"), seed).kills
        if len(kills) == 10:
            break

    assert sorted(kills) == [
        "checkpoint-gc",
        "checkpoint-gc-deleter",
        "checkpoint-gc-intake",
        "gateway",
        "scheduler",
        "scheduler-intake",
        "searcher",
        "searcher-continuation",
        "searcher-intake",
        "shared",
    ]

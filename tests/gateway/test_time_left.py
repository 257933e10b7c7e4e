"""The estimate of the time left is right within a factor of 1.5 from a third of a search on.

Simulated searches of all methods on four slots, alone and beside another one, are folded again
event by event, and estimates on the way are compared with the time that was left. They are small,
so which trials turn out well decides how long they take, and the estimates of one search err
together: they are judged over six seeds, and over the methods.
`benchmarks/search/time_left.py` measures real ones.
"""

import heapq
import statistics
from typing import Any, NamedTuple

import pytest

from rung.events import decode, topic
from rung.events.experiment import ExperimentEnded
from rung.gateway.estimate.time_left import forecast_of
from rung.gateway.projections.experiment import Experiment, phase_of
from rung.gateway.projections.experiment_fold import evolve
from rung.gateway.projections.throughput import seconds_of
from rung.gateway.serializers.progress import progress_of
from rung.ledger import Record
from rung.sim.clock import in_virtual_time
from rung.sim.scenario import Scenario, simulate
from rung.sim.workload import expanded
from rung.sim.world import Faults, World
from support.gateway.tally import counted

FACTOR = 1.5
LEAST_S = 1.0
"""With less left no estimate is judged: a few reports."""
EVERY_S = 0.4
LARGER: dict[str, dict[str, Any]] = {
    "single": {"max_time": 80},
    "grid": {"max_time": 24},
    "random": {"max_time": 12, "max_trials": 24},
    "asha": {"max_trials": 90, "max_time": 9, "num_rungs": 3},
    "asha-promotion": {"max_trials": 90, "max_time": 9, "num_rungs": 3},
    "adaptive_asha": {"max_trials": 60, "max_time": 9},
    "hyperband": {"max_time": 27},
}


class Estimate(NamedTuple):
    """What was estimated at a time."""

    at: float
    left_s: float | None
    progress: float


def _estimates(
    name: str, owners: tuple[str, ...], seed: int
) -> tuple[dict[str, list[Estimate]], dict[str, float]]:
    """Return the estimates of each search of a simulation, and when it ended."""
    config = expanded(name)
    config["searcher"] |= LARGER[name]
    config["reproducibility"]["experiment_seed"] = seed

    async def simulated() -> tuple[list[Record], list[Record]]:
        world = World(seed, Faults())
        await simulate(world, Scenario(config=config, agents=(2, 2), owners=owners))
        name = topic.EXPERIMENTS
        parts = [await world.records_of(name, it) for it in world.partitions(name)]
        return [*heapq.merge(*parts, key=_time_of)], await world.records(topic.SEARCHES)

    facts, decisions = in_virtual_time(simulated())
    answers: dict[tuple[str, int], list[Record]] = {}
    for record in decisions:
        position = decode(record.value).causeposition
        assert position is not None
        answers.setdefault((record.key, position), []).append(record)
    states: dict[str, Experiment] = {}
    found: dict[str, list[Estimate]] = {}
    ended: dict[str, float] = {}
    asked = 0.0
    for record in facts:
        for each in (record, *answers.get((record.key, record.position), [])):
            event = decode(each.value)
            evolve(states.setdefault(record.key, Experiment(record.key)), event)
            if isinstance(event.data, ExperimentEnded):
                ended[record.key] = seconds_of(event.time) or 0.0
        now = _time_of(record)
        if now < asked + EVERY_S:
            continue
        asked = now
        active = [each for each in states.values() if phase_of(each) == "active"]
        for state in active:
            state.tally = counted(state)
        left = forecast_of(active, 4, now)
        for state in active:
            estimate = Estimate(now, left.get(state.id), progress_of(state).fraction)
            found.setdefault(state.id, []).append(estimate)
    return found, ended


def _time_of(record: Record) -> float:
    return seconds_of(decode(record.value).time) or 0.0


def _ratios(name: str, owners: tuple[str, ...], seeds: range) -> list[float]:
    """Return each estimate from a third of its search on, as a ratio to the time that was left."""
    ratios: list[float] = []
    for seed in seeds:
        found, ended = _estimates(name, owners, seed)
        assert len(found) == len(owners)
        for search, estimates in found.items():
            begun, end = estimates[0].at, ended[search]
            ratios += [
                (each.left_s or 0.0) / (end - each.at)
                for each in estimates
                if each.at - begun >= (end - begun) / 3 and end - each.at >= LEAST_S
            ]
            shown = [each.progress for each in estimates]
            assert shown == sorted(shown)
    return ratios


def _right(ratios: list[float]) -> float:
    return sum(1 / FACTOR <= ratio <= FACTOR for ratio in ratios) / len(ratios)


@pytest.mark.sim
@pytest.mark.parametrize(
    ("names", "owners"),
    [(tuple(LARGER), ("a",)), (("random", "asha", "hyperband"), ("a", "b"))],
    ids=["alone", "beside-another"],
)
def test_right_within_a_factor(names: tuple[str, ...], owners: tuple[str, ...]) -> None:
    """Nine of ten estimates are, four of five of each method, and progress never shrinks."""
    ratios = {name: _ratios(name, owners, range(1, 7)) for name in names}
    assert all(len(each) >= 50 for each in ratios.values())

    assert _right([ratio for each in ratios.values() for ratio in each]) >= 0.9
    assert {name: sorted(each) for name, each in ratios.items() if _right(each) < 0.8} == {}
    medians = {name: statistics.median(each) for name, each in ratios.items()}
    assert {name: each for name, each in medians.items() if not 1 / 1.35 < each < 1.35} == {}

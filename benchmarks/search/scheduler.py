"""What each fact costs the scheduler, in a small pool and in one of 10,000 slots.

One pool of agents with eight slots each, all of them taken by trials of one slot, and ten waiting
trials for each slot, of experiments with a hundred trials. Two thirds of the first trials have
ended at random, so that the newest ones, which yield first, are scattered over all agents. Each
fact that can come is folded and decided on, with the decisions that follow, many times; in between
the pool is brought back to where it was, which does not count. A pool must answer each within
50 ms whatever its size: it stands still meanwhile.

    python -m benchmarks.search.scheduler [--slots N,N,…] [--samples N]
"""

import argparse
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.figures import figure

from rung.events import Payload
from rung.events.allocation import AllocationReleased, AllocationSignaled, PoolConfigured
from rung.events.trial import RunRequested
from rung.scheduler.processor import PoolDecision, PoolFact, Scheduler
from support.scheduler import scenario
from support.scheduler.scenario import POOL

AIM_MS: Final = 50.0
AIM_MOVED_MS: Final = 0.1
AGENT: Final = 8
"""Slots of an agent."""
WAITING: Final = 10
"""Waiting trials for each slot."""
TRIALS: Final = 100
"""Of an experiment."""
GANG: Final = 16


class Pool:
    """A full pool with a long queue."""

    def __init__(self, slots: int) -> None:
        """Fill a pool of so many slots."""
        self._scheduler = Scheduler()
        self._state = self._scheduler.initial(POOL)
        self._numbers = itertools.count()
        self._runs: dict[str, int] = {}
        for number in range(slots // AGENT):
            self.tell(scenario.joined(f"agent-{number}", AGENT))
        for _ in range(slots * (1 + WAITING)):
            self.tell(self.request())
        for name in random.Random(1).choices(list(self._state.allocations), k=slots):  # noqa: S311
            if name in self._state.allocations:
                self.tell(*self.ends(name))
                self.tell(self.request())

    def tell(self, fact: PoolFact) -> tuple[float, list[Payload]]:
        """Fold a fact and what follows; return the milliseconds of processor time, and that."""
        begun = time.process_time()
        self._scheduler.evolve(self._state, fact)
        decisions = self._scheduler.decide(self._state, fact)
        for decision in decisions:
            assert isinstance(decision, PoolDecision)
            self._scheduler.evolve(self._state, decision)
        return (time.process_time() - begun) * 1000, decisions

    def request(self, slots: int = 1, priority: int = 42) -> RunRequested:
        """Return a request of a new trial."""
        number = next(self._numbers)
        return self._request(f"x{number // TRIALS}.{number % TRIALS}", slots, priority)

    def again(self, trial_id: str) -> RunRequested:
        """Return the request of a trial's next run."""
        return self._request(trial_id, 1, 42)

    def _request(self, trial_id: str, slots: int, priority: int) -> RunRequested:
        run = self._runs[trial_id] = self._runs.get(trial_id, 0) + 1
        return scenario.requested(f"{trial_id}.{run}", slots, priority)

    def running(self) -> str:
        """Return an allocation in the middle of those that run."""
        names = self._state.allocations
        return next(itertools.islice(names, len(names) // 2, None))

    def waiting(self) -> RunRequested:
        """Request a trial, which waits at the end; return the request."""
        request = self.request()
        self.tell(request)
        return request

    def ends(self, name: str) -> list[AllocationReleased]:
        """Return what its agents say when an allocation is over."""
        incarnations = self._state.incarnations
        return [
            scenario.released(name, agent, incarnations[agent])
            for agent in self._state.allocations[name].parts
        ]

    def settle(self, decisions: list[Payload]) -> None:
        """Let what was asked to yield leave and come back."""
        for decision in decisions:
            if isinstance(decision, AllocationSignaled):
                for fact in self.ends(decision.allocation_id):
                    self.tell(fact)
                self.tell(self.again(decision.allocation_id.rpartition(".")[0]))

    def end(self, trial_id: str) -> None:
        """Let the running run of a trial end."""
        for fact in self.ends(f"{trial_id}.{self._runs[trial_id]}"):
            self.tell(fact)


def requested(pool: Pool) -> float:
    """A trial is requested."""
    return pool.tell(pool.request())[0]


def released(pool: Pool) -> float:
    """A trial ends, and the next one starts."""
    (fact,) = pool.ends(pool.running())
    took_ms, _ = pool.tell(fact)
    pool.tell(pool.request())
    return took_ms


def withdrawn(pool: Pool) -> float:
    """A waiting trial is withdrawn."""
    return pool.tell(scenario.withdrawn(pool.waiting().allocation_id))[0]


def moved_waiting(pool: Pool) -> float:
    """A waiting trial is moved."""
    return pool.tell(scenario.move(pool.waiting().spec.trial_id, "agent-0"))[0]


def moved_running(pool: Pool) -> float:
    """A running trial is moved."""
    trial_id = pool.running().rpartition(".")[0]
    took_ms, decisions = pool.tell(scenario.move(trial_id))
    pool.settle(decisions)
    return took_ms


def changed(pool: Pool) -> float:
    """The weight of an experiment with a hundred waiting trials changes."""
    experiment_id = pool.request().experiment_id
    before = f"x{int(experiment_id[1:]) - 2}"
    return pool.tell(scenario.resources(before, weight=2.0))[0]


def gang(pool: Pool) -> float:
    """A more important trial of 16 slots arrives."""
    request = pool.request(GANG, 1)
    took_ms, decisions = pool.tell(request)
    pool.settle(decisions)
    pool.end(request.spec.trial_id)
    return took_ms


def left(pool: Pool, lives: Iterator[int]) -> tuple[float, float]:
    """An agent leaves with eight trials, and joins again."""
    life = next(lives)
    left_ms, decisions = pool.tell(scenario.left("agent-1", life))
    trials = [str(getattr(decision, "trial_id")) for decision in decisions]  # noqa: B009
    joined_ms, _ = pool.tell(scenario.joined("agent-1", AGENT, life + 1))
    for trial_id in trials:
        pool.tell(pool.again(trial_id))
    return left_ms, joined_ms


def suspended(pool: Pool) -> float:
    """An agent takes nothing new for a while."""
    first_ms, _ = pool.tell(scenario.suspended("agent-2"))
    second_ms, _ = pool.tell(scenario.resumed("agent-2"))
    return max(first_ms, second_ms)


def drained(pool: Pool, agents: Iterator[int]) -> float:
    """An agent will be gone soon: eight trials are to yield."""
    took_ms, decisions = pool.tell(scenario.drain(f"agent-{next(agents)}"))
    pool.settle(decisions)
    return took_ms


def configured(pool: Pool) -> float:
    """The pool is configured as it is."""
    return pool.tell(PoolConfigured(pool=POOL, policy="priority", options={}))[0]


def measured(slots: int, samples: int) -> dict[str, list[float]]:
    """Return the milliseconds of each fact, many times each."""
    pool = Pool(slots)
    lives, agents = itertools.count(1), itertools.count(3)
    found: dict[str, list[float]] = {}
    simple: list[Callable[[Pool], float]] = [
        requested,
        released,
        withdrawn,
        moved_waiting,
        moved_running,
        changed,
        gang,
        suspended,
        configured,
    ]
    for measure in simple:
        found[str(measure.__doc__)] = [measure(pool) for _ in range(samples)]
    found[str(drained.__doc__)] = [drained(pool, agents) for _ in range(min(samples, 50))]
    pairs = [left(pool, lives) for _ in range(samples)]
    found["An agent leaves with eight trials."] = [gone for gone, _ in pairs]
    found["An agent joins."] = [came for _, came in pairs]
    return found


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that so many of them do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def main() -> None:
    """Measure each fact in pools of growing sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", default="1000,10000")
    parser.add_argument("--samples", type=int, default=200)
    options = parser.parse_args()
    sizes = [int(size) for size in options.slots.split(",")]
    tables = {size: measured(size, options.samples) for size in sizes}
    heads = "".join(f"{f'{size:,} slots':>24}" for size in sizes)
    print(f"{'ms of processor time: median, p99':<66}{heads}{'growth':>9}")
    for name in tables[sizes[0]]:
        medians = [percentile(tables[size][name], 0.5) for size in sizes]
        cells = "".join(
            f"{median:>14.3f}{percentile(tables[size][name], 0.99):>10.3f}"
            for size, median in zip(sizes, medians, strict=True)
        )
        print(f"{name:<66}{cells}{medians[-1] / medians[0]:>8.1f}x")
    last = tables[sizes[-1]]
    worst = max(last, key=lambda name: percentile(last[name], 0.99))
    figure(
        f"scheduler: the worst fact at {sizes[-1]:,} slots, p99",
        percentile(last[worst], 0.99),
        "ms",
        at_most=AIM_MS,
        beside=worst.rstrip("."),
    )
    moved = str(moved_waiting.__doc__)
    small, large = (percentile(tables[size][moved], 0.5) for size in (sizes[0], sizes[-1]))
    figure(
        f"scheduler: {moved.rstrip('.')}",
        large,
        "ms",
        at_most=AIM_MOVED_MS,
        beside=f"{large / small:.1f} times that at {sizes[0]:,} slots",
    )


if __name__ == "__main__":
    main()

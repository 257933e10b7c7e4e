"""The time left to experiments: a forecast of their pools, from the gateway's projections."""

import sqlite3
import time
from collections.abc import Collection
from statistics import fmean
from typing import Final, NamedTuple

from rung.gateway.estimate.forecast import Search, forecast
from rung.gateway.estimate.remaining import remaining
from rung.gateway.projections.experiment import Experiment, phase_of, pool_of
from rung.gateway.projections.experiments import ExperimentProjection, active_in
from rung.gateway.projections.pools import Pool
from rung.gateway.projections.read_models import ReadModels

_SEARCHES_MAX: Final = 64
"""In a pool with more active experiments, these are forecast that were submitted first."""

_RUNS_LISTED: Final = 256
"""Of an experiment with more open runs, these are forecast as they are; the rest as trials to
come."""
_WORTH: Final = 100.0
"""A forecast is held so many times as long as it took,"""
_HELD_S_MAX: Final = 5.0
"""but no longer than this."""


class Forecast(NamedTuple):
    """The time left to the searches of a pool, as of a time.

    Attributes:
        slots: of the pool.
        at: Unix time in seconds.
        cost_s: processor time that it took.
        searches: ids of those that were forecast, or could not be.
        left: seconds by id.
    """

    slots: int
    at: float
    cost_s: float
    searches: frozenset[str]
    left: dict[str, float]

    def holds(self, now: float, slots: int, wanted: Collection[str]) -> bool:
        """Return whether it need not be computed again yet."""
        young = 0 <= now - self.at < min(_WORTH * self.cost_s, _HELD_S_MAX)
        whole = len(self.searches) >= _SEARCHES_MAX or self.searches.issuperset(wanted)
        return young and slots == self.slots and whole


class TimeLeft:
    """The time left to experiments: forecasts of their pools, each held for a while.

    However many clients ask how often, forecasts take a hundredth of a processor at most for each
    pool: what was forecast is held a hundred times as long as it took, and shortened by that time.
    """

    def __init__(self, models: ReadModels) -> None:
        self._models = models
        self._known: dict[str, Forecast] = {}

    async def of(self, shown: Collection[Experiment], now: float) -> dict[str, float]:
        """Return the seconds left to experiments by id, at a time (Unix seconds).

        Those that are not active, or of which too little is known, are left out.
        """
        by_pool: dict[str, list[str]] = {}
        for each in shown:
            if phase_of(each) == "active":
                by_pool.setdefault(pool_of(each), []).append(each.id)
        found: dict[str, float] = {}
        slots = {pool.name: _slots(pool) for pool in self._models.agents()} if by_pool else {}
        for pool, wanted in by_pool.items():
            if not slots.get(pool):
                continue
            known = self._known.get(pool)
            if known is None or not known.holds(now, slots[pool], wanted):
                known = await self._models.read(
                    ExperimentProjection, _forecast, pool, slots[pool], now
                )
                self._known[pool] = known
            found |= {name: max(left - (now - known.at), 0.0) for name, left in known.left.items()}
        return found


def _slots(pool: Pool) -> int:
    return sum(len(agent.slots) for agent in pool.agents.values() if agent.state == "joined")


def _forecast(db: sqlite3.Connection, pool: str, slots: int, now: float) -> Forecast:
    began = time.thread_time()
    searches = active_in(db, pool, _SEARCHES_MAX, _RUNS_LISTED)
    left = forecast_of(searches, slots, now)
    names = frozenset(each.id for each in searches)
    return Forecast(slots, now, time.thread_time() - began, names, left)


def forecast_of(experiments: list[Experiment], slots: int, now: float) -> dict[str, float]:
    """Return the seconds left to a pool's active experiments, all of which share its slots.

    What an experiment's reports do not tell yet is taken from the others': how long a run takes to
    start, and, before its first report, how long a run takes.
    """
    reports = [each.throughput for each in experiments]
    starts = [parts[0] for each in reports if each.unit_s.value and (parts := each.parts())]
    runs = [each.run_s.value for each in reports if each.run_s.value is not None]
    start_s, run_s = fmean(starts) if starts else None, fmean(runs) if runs else None
    known, searches = set[str](), dict[str, Search]()
    for each in experiments:
        left = remaining(each, now, start_s=start_s)
        if left is not None:
            known.add(each.id)
        else:
            left = remaining(each, now, start_s=start_s, run_s=run_s)
        if left is not None:
            searches[each.id] = left
    return {name: left for name, left in forecast(searches, slots).items() if name in known}

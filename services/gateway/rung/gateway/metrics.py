"""Metrics of the gateway: experiments, trials and agents by state."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from rung.gateway.projections.experiments import ExperimentProjection, count_trials
from rung.gateway.projections.read_models import ReadModels
from rung.gateway.projections.throughput import seconds_of
from rung.runtime.metrics import catalog

_LOST_S: Final = 86_400.0
"""An agent that was lost longer ago is taken as given up, and no longer counted."""
_LABELS: Final = {
    "alive": "joined",
    "suspended": "suspended",
    "draining": "draining",
    "lost": "lost",
}
"""Label of the metric → state of an agent."""


@contextlib.contextmanager
def measured(models: ReadModels) -> Iterator[None]:
    """Export the counts while the context lasts."""
    with (
        catalog.EXPERIMENTS.read_from(lambda: _by_state(models.count_experiments())),
        catalog.TRIALS.read_from(
            lambda: _by_state(models.peek(ExperimentProjection, count_trials))
        ),
        catalog.AGENTS.read_from(lambda: _agents(models)),
    ):
        yield


def _by_state(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(state,): float(count) for state, count in counts.items()}


def _agents(models: ReadModels) -> dict[tuple[str, ...], float]:
    since_s = time.time() - _LOST_S
    found: dict[tuple[str, ...], float] = {}
    for pool in models.agents():
        states: Counter[str] = Counter(
            agent.state
            for agent in pool.agents.values()
            if agent.state != "lost" or (seconds_of(agent.since) or 0.0) > since_s
        )
        found |= {(pool.name, label): float(states[state]) for label, state in _LABELS.items()}
    return found

"""What the gateway tells Prometheus: experiments, trials and agents by state."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from rung.gateway.projections.experiments import ExperimentProjection, count_trials
from rung.gateway.projections.read_models import ReadModels
from rung.runtime.metrics import catalog

_LOST_S: Final = 86_400.0
"""An agent that is lost for longer is taken as given up, and wakes nobody any more."""

_Told = dict[tuple[str, ...], float]


class Census:
    """Tells experiments, trials and agents by state."""

    def __init__(self, models: ReadModels) -> None:
        self._models = models

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Let Prometheus read the counts while the context lasts."""
        with (
            catalog.EXPERIMENTS.read_from(self.experiments),
            catalog.TRIALS.read_from(self.trials),
            catalog.AGENTS.read_from(self.agents),
        ):
            yield

    def experiments(self) -> _Told:
        """Return the number of experiments in each state."""
        return _told(self._models.count_experiments())

    def trials(self) -> _Told:
        """Return the number of trials in each state."""
        return _told(self._models.peek(ExperimentProjection, count_trials))

    def agents(self) -> _Told:
        """Return each pool's agents: those there, those that are drained, those lost today."""
        found: _Told = {}
        since_s = time.time() - _LOST_S
        for pool in self._models.agents():
            states = Counter(
                agent.state
                for agent in pool.agents.values()
                if agent.state != "lost" or _unix(agent.since) > since_s
            )
            found[pool.name, "alive"] = float(states["joined"])
            found[pool.name, "suspended"] = float(states["suspended"])
            found[pool.name, "draining"] = float(states["draining"])
            found[pool.name, "lost"] = float(states["lost"])
        return found


def _told(counts: Mapping[str, int]) -> _Told:
    return {(state,): float(count) for state, count in counts.items()}


def _unix(moment: str) -> float:
    """Return an envelope's time in Unix seconds; 0 of what is no time."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return 0.0

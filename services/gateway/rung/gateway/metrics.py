"""What the gateway tells Prometheus: experiments, trials and agents by state."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rung.gateway.experiment import Experiment
from rung.gateway.serializers import phase_of, trial_phase
from rung.gateway.views import Views
from rung.runtime.metrics import catalog

_LOST_S: Final = 86_400.0
"""An agent that is lost for longer is taken as given up, and wakes nobody any more."""

_Told = dict[tuple[str, ...], float]


class Census:
    """Counts experiments and trials by state.

    The trials of an experiment that has ended are counted once, when all of them are closed, for
    they stay as they are.
    """

    def __init__(self, views: Views) -> None:
        self._views = views
        self._settled: dict[str, Counter[str]] = {}

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
        return _told(Counter(phase_of(item) for item in self._views.experiments()))

    def trials(self) -> _Told:
        """Return the number of trials in each state."""
        found: Counter[str] = Counter()
        for experiment in self._views.experiments():
            found.update(self._settled.get(experiment.id) or self._count(experiment))
        return _told(found)

    def agents(self) -> _Told:
        """Return each pool's agents: those there, those that are drained, those lost today."""
        found: _Told = {}
        since_s = time.time() - _LOST_S
        for pool in self._views.pools():
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

    def _count(self, experiment: Experiment) -> Counter[str]:
        found: Counter[str] = Counter(trial_phase(experiment, it) for it in experiment.trials)
        if experiment.ended is not None and all(trial.closed for trial in experiment.trials):
            self._settled[experiment.id] = found
        return found


def _told(counts: Counter[str]) -> _Told:
    return {(state,): float(count) for state, count in counts.items()}


def _unix(moment: str) -> float:
    """Return an envelope's time in Unix seconds; 0 of what is no time."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return 0.0

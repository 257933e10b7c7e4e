"""Given facts, when a fact is told, then decisions: one experiment in memory.

Every fact that a scenario is told also checks what must hold of the machine whatever happens:
that deciding changes nothing, and that a state written down and read back has the same future.
"""

from typing import Any

import msgspec

from rung.events import Payload
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.events.checkpoint import CheckpointStored
from rung.events.experiment import (
    CancelRequested,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
    ResumeRequested,
    SearchContinued,
    SearchDeferred,
)
from rung.events.trial import (
    ExitOutcome,
    MetricValue,
    RunRequested,
    RunSpec,
    TrialExited,
    TrialValidated,
)
from rung.searcher.processor import Searcher
from rung.searcher.state import Experiment, State
from support.runtime.bare import Bare

EXPERIMENT = "k3v9x2ab"

SPACE: dict[str, Any] = {
    "lr": {"type": "log", "minval": -4.0, "maxval": -1.0, "base": 10.0},
    "width": {"type": "int", "minval": 8, "maxval": 64},
}


def config(
    name: str = "random", *, space: dict[str, Any] | None = None, **search: Any
) -> dict[str, Any]:
    """Return an expanded configuration; what is not a field of `searcher` is taken out of it."""
    searcher: dict[str, Any] = {
        "name": name,
        "metric": "loss",
        "smaller_is_better": True,
        "time_metric": "epochs",
        "max_time": 16,
        "max_concurrent_trials": 16,
    }
    top: dict[str, Any] = {"name": "test", "max_restarts": search.pop("max_restarts", 2)}
    resources = {"slots_per_trial": 1, "max_slots": None, "priority": 42, "resource_pool": "a"}
    return top | {
        "searcher": searcher | search,
        "hyperparameters": SPACE if space is None else space,
        "reproducibility": {"experiment_seed": 7},
        "resources": resources,
    }


def kinds(decisions: list[Payload]) -> list[str]:
    """Return the names of the decisions' types."""
    return [type(decision).__name__ for decision in decisions]


class Scenario:
    """One experiment and its searcher."""

    def __init__(
        self, settings: dict[str, Any], *, code_digest: str | None = None, level: int = 1
    ) -> None:
        self.searcher = Bare(Searcher())
        self.state = self.searcher.initial(EXPERIMENT)
        self.history: list[tuple[Payload, list[Payload]]] = []
        self.specs: dict[int, RunSpec] = {}
        """The newest run of each trial."""
        self.first = self.tell(submitted(settings, code_digest=code_digest, level=level))

    @property
    def experiment(self) -> Experiment:
        """The experiment, which has not ended."""
        assert self.state.experiment is not None
        return self.state.experiment

    def tell(self, fact: Payload) -> list[Payload]:
        """Fold a fact and its decisions, and return these."""
        again = msgspec.json.decode(msgspec.json.encode(self.state), type=State)
        decisions = self._fold(self.state, fact)
        assert decisions == self._fold(again, fact)
        assert msgspec.json.encode(self.state) == msgspec.json.encode(again)
        self.history.append((fact, decisions))
        for decision in decisions:
            if isinstance(decision, RunRequested):
                self.specs[decision.spec.trial_index] = decision.spec
        return decisions

    def go_on(self, decisions: list[Payload]) -> list[Payload]:
        """Return decisions with all that follow in further steps."""
        step = decisions
        while any(isinstance(decision, SearchDeferred) for decision in step):
            step = self.tell(SearchContinued(experiment_id=EXPERIMENT))
            decisions = decisions + step
        return decisions

    def _fold(self, state: State, fact: Payload) -> list[Payload]:
        self.searcher.evolve(state, fact)
        before = msgspec.json.encode(state)
        decisions = self.searcher.decide(state, fact)
        assert msgspec.json.encode(state) == before
        for decision in decisions:
            self.searcher.evolve(state, decision)
        return decisions

    def evolve(self, event: Payload) -> None:
        """Fold an event alone, as from a record on which nothing follows from it."""
        self.searcher.evolve(self.state, event)

    def report(
        self, index: int, time: float, loss: MetricValue | None, *, run: int | None = None
    ) -> list[Payload]:
        """Have a trial's current run (or another) validate."""
        return self.tell(validated(index, time, loss, run=run or self.specs[index].run))

    def exit(
        self, index: int, outcome: ExitOutcome = "finished", *, run: int | None = None, **more: Any
    ) -> list[Payload]:
        """Have a trial's current run (or another) exit; `more` is said of it too."""
        return self.tell(exited(index, run or self.specs[index].run, outcome, **more))

    def lose(self, index: int) -> list[Payload]:
        """Lose the agent of a trial's current run."""
        return self._end(index, "lost")

    def drop(self, index: int) -> list[Payload]:
        """Drop a trial's current run while it waits."""
        return self._end(index, "dropped")

    def _end(self, index: int, outcome: Any) -> list[Payload]:
        run = self.specs[index].run
        kind = AllocationLost if outcome == "lost" else AllocationDropped
        fact = kind(
            pool="",
            allocation_id=f"{EXPERIMENT}.{index}.{run}",
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.{index}",
            run=run,
            reason="agent a1 was lost",
        )
        return self.tell(fact)

    def train(self, index: int, loss: float) -> list[Payload]:
        """Have a trial's run report at its length and finish; return all decisions."""
        length = self.specs[index].length
        assert length is not None
        return self.report(index, length, loss) + self.exit(index)

    def store(self, index: int, steps: int, checkpoint_id: str) -> list[Payload]:
        """Have a trial's current run store a checkpoint."""
        fact = CheckpointStored(
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.{index}",
            run=self.specs[index].run,
            checkpoint_id=checkpoint_id,
            steps_completed=steps,
            size_bytes=1,
            files=1,
            digest="",
        )
        return self.tell(fact)

    def pause(self) -> list[Payload]:
        """Ask for a pause."""
        return self.tell(PauseRequested(experiment_id=EXPERIMENT))

    def resume(self) -> list[Payload]:
        """Ask to go on."""
        return self.tell(ResumeRequested(experiment_id=EXPERIMENT))

    def cancel(self) -> list[Payload]:
        """Ask for the end."""
        return self.tell(CancelRequested(experiment_id=EXPERIMENT))

    def kill(self) -> list[Payload]:
        """Ask for the end at once."""
        return self.tell(KillRequested(experiment_id=EXPERIMENT))


def submitted(
    settings: dict[str, Any], *, code_digest: str | None = None, level: int = 1
) -> ExperimentSubmitted:
    """Return the submission of an experiment."""
    return ExperimentSubmitted(
        experiment_id=EXPERIMENT, config=settings, source="", code_digest=code_digest, level=level
    )


def validated(
    index: int, time: float, loss: MetricValue | None, *, run: int = 1
) -> TrialValidated:
    """Return a validation of a run."""
    metrics: dict[str, MetricValue] = {"epochs": float(time)}
    if loss is not None:
        metrics["loss"] = loss
    return TrialValidated(
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.{index}",
        run=run,
        steps_completed=int(time * 100),
        metrics=metrics,
    )


def exited(index: int, run: int, outcome: ExitOutcome, **more: Any) -> TrialExited:
    """Return the exit of a run; `more` is said of it too."""
    return TrialExited(
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.{index}",
        run=run,
        agent_id="a1",
        outcome=outcome,
        exit_code=None,
        signal=None,
        **{"message": "ValueError: no", **more},
    )

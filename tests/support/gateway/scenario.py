"""Histories for tests: a real searcher, simulated agents that fail and repeat themselves."""

import random
import sqlite3
from typing import Any, NamedTuple

from rung.events import Event, Payload, encode, fact, partition_of
from rung.events.checkpoint import CheckpointStored
from rung.events.experiment import ExperimentSubmitted, PauseRequested, ResumeRequested
from rung.events.trial import (
    ExitOutcome,
    RunRequested,
    RunSpec,
    RunWithdrawn,
    TrialExited,
    TrialStarted,
    TrialValidated,
)
from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.experiments import ExperimentProjection, read_experiment
from rung.ledger import Draft, Record
from rung.runtime import PartitionFold
from rung.runtime.projection import Merge
from rung.runtime.projection.store import prepare
from rung.searcher.processor import Searcher
from rung.searcher.state import State

EXPERIMENT = "k3f9x2ma"


def config(**searcher: Any) -> dict[str, Any]:
    """Return an expanded configuration, as far as searcher and gateway read it."""
    return {
        "name": "digits",
        "labels": ["small", "test"],
        "workspace": "lab",
        "project": "digits",
        "entrypoint": "python3 train.py",
        "hyperparameters": {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0}},
        "searcher": {
            "name": "async_halving",
            "metric": "error",
            "smaller_is_better": True,
            "time_metric": "epochs",
            "max_time": 9,
            "max_trials": 9,
            "num_rungs": 3,
            "divisor": 3,
            "max_concurrent_trials": 3,
            "stop_once": False,
            **searcher,
        },
        "resources": {"slots_per_trial": 1},
        "reproducibility": {"experiment_seed": 7},
        "max_restarts": 3,
    }


def submitted(
    experiment_id: str = EXPERIMENT, source: str = "name: digits\n", **searcher: Any
) -> ExperimentSubmitted:
    """Return the first fact of an experiment."""
    return ExperimentSubmitted(
        experiment_id=experiment_id, config=config(**searcher), source=source, code_digest=None
    )


def time_of(number: int) -> str:
    """Return a time so many seconds into the year."""
    minutes, seconds = divmod(number, 60)
    hours, minutes = divmod(minutes, 60)
    return f"2026-01-{1 + hours // 24:02}T{hours % 24:02}:{minutes:02}:{seconds:02}.000Z"


class Written(NamedTuple):
    """A record, and how many were there on any topic when it was appended."""

    record: Record
    moment: int


class History:
    """One partition of `experiments` and `searches`, as one searcher and its agents write it."""

    def __init__(self, seed: int = 0) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self.searcher: PartitionFold[State] = PartitionFold(Searcher())
        self.facts: list[Written] = []
        self.decisions: list[Written] = []
        self.running: dict[str, RunSpec] = {}
        self.withdrawn: set[tuple[str, int]] = set()
        self._undecided: list[Record] = []
        self._numbers: dict[str, int] = {}
        self._moment = 0

    def write(self, data: Payload, *, origin: str = "agent/a/0", repeat: bool = False) -> Record:
        """Append a fact."""
        number = self._numbers.get(origin, 0) + (not repeat)
        self._numbers[origin] = number
        event = fact(
            data,
            source="/rung/test",
            origin=origin,
            sequence=number,
            time=time_of(len(self.facts)),
        )
        record = self._append(event, self.facts)
        self._undecided.append(record)
        return record

    def decide(self) -> None:
        """Have the searcher answer what it has not answered yet."""
        for record in self._undecided:
            for event in self.searcher.fold(record).new:
                self._append(event, self.decisions)
                self._note(event.data)
        self._undecided.clear()

    def _append(self, event: Event, topic: list[Written]) -> Record:
        record = Record(event.topic, 0, len(topic), event.key, encode(event))
        topic.append(Written(record, self._moment))
        self._moment += 1
        return record

    def _note(self, data: Payload) -> None:
        if isinstance(data, RunRequested):
            self.running[data.spec.trial_id] = data.spec
        elif isinstance(data, RunWithdrawn):
            self.withdrawn.add((data.trial_id, data.run))


def play(seed: int, **searcher: Any) -> History:
    """Return the history of a search whose agents fail, repeat themselves and lag behind."""
    history = History(seed)
    history.write(submitted(**searcher), origin="client/first")
    history.decide()
    time: dict[str, float] = {}
    for _ in range(2_000):
        if not history.running:
            history.decide()
        if not history.running:
            break
        _step(history, time)
        if history.chance.random() < 0.7:
            history.decide()
    history.decide()
    return history


def _step(history: History, time: dict[str, float]) -> None:
    chance = history.chance
    trial_id = chance.choice(sorted(history.running))
    spec = history.running[trial_id]
    if chance.random() < 0.02:
        history.write(PauseRequested(experiment_id=EXPERIMENT), origin="gateway/g")
        history.write(ResumeRequested(experiment_id=EXPERIMENT), origin="gateway/g")
    if chance.random() < 0.1:
        history.write(
            TrialStarted(experiment_id=EXPERIMENT, trial_id=trial_id, run=spec.run, agent_id="a")
        )
    if (trial_id, spec.run) in history.withdrawn:
        _exit(history, spec, "preempted")
    elif chance.random() < 0.1:
        time[trial_id] = max(time.get(trial_id, 0) - chance.randint(0, 2), 0)
        _exit(history, spec, "failed")
    elif spec.length is not None and time.get(trial_id, 0) >= spec.length:
        _exit(history, spec, "finished")
    else:
        time[trial_id] = time.get(trial_id, 0) + 1
        _report(history, spec, time[trial_id])


def _report(history: History, spec: RunSpec, time: float) -> None:
    value = history.chance.choice([round(history.chance.random(), 3), 0.5])
    run = history.chance.choice([spec.run] * 9 + [max(spec.run - 1, 1)])
    data = TrialValidated(
        experiment_id=EXPERIMENT,
        trial_id=spec.trial_id,
        run=run,
        steps_completed=int(time) * 10,
        metrics={"error": value, "epochs": time},
    )
    history.write(data)
    if history.chance.random() < 0.2:
        history.write(data, repeat=True)
    if history.chance.random() < 0.3:
        history.write(stored(spec.trial_id, run, int(time) * 10, len(history.facts)))


def stored(trial_id: str, run: int, steps: int, number: int) -> CheckpointStored:
    """Return that a checkpoint is complete."""
    return CheckpointStored(
        experiment_id=trial_id.rpartition(".")[0],
        trial_id=trial_id,
        run=run,
        checkpoint_id=f"c{number}",
        steps_completed=steps,
        size_bytes=10,
        files=1,
        digest="d",
    )


def _exit(history: History, spec: RunSpec, outcome: ExitOutcome) -> None:
    del history.running[spec.trial_id]
    history.write(
        TrialExited(
            experiment_id=EXPERIMENT,
            trial_id=spec.trial_id,
            run=spec.run,
            agent_id="a",
            outcome=outcome,
            exit_code=int(outcome == "failed"),
            signal=None,
            message="",
        )
    )


def tables() -> Merge:
    """Return the fold of experiments, with empty tables in memory."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    projection = ExperimentProjection()
    prepare(db, projection, "ledger")
    return Merge(projection, db, 0)


def shown(fold: Merge) -> Experiment:
    """Return the experiment as the tables have it."""
    found = read_experiment(fold.db, EXPERIMENT)
    assert found is not None
    return found


def drafts(history: History) -> list[Draft]:
    """Return a history's records in the order in which they were appended."""
    written = sorted((*history.facts, *history.decisions), key=lambda it: it.moment)
    return [Draft(it.record.topic, it.record.key, it.record.value) for it in written]


def same_partition(first: str, second: str, partitions: int = 4) -> bool:
    """Whether two keys share a partition."""
    return partition_of(first, partitions) == partition_of(second, partitions)

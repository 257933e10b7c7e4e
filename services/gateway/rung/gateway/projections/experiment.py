"""Records of one experiment: its trials, their results, its checkpoints.

Rows of the projection's tables are made of these records. They hold JSON and each other, never a
cycle, so the garbage collector need not look at them (`gc=False`).
"""

from typing import Any, Literal

from msgspec import Struct, field

from rung import api
from rung.events.experiment import BracketPlan, ExperimentState
from rung.events.trial import MetricValue, TrialState
from rung.gateway.projections.throughput import Throughput

Action = Literal["submit", "pause", "resume", "cancel", "kill", "pin"]
"""Kinds of requests."""


class Validation(Struct, array_like=True, gc=False):
    """One report that counts; `time` is in units of the searcher's time metric."""

    steps: int
    time: float
    metrics: dict[str, MetricValue]


class Best(Struct, array_like=True, gc=False):
    """The best finite value of the searcher's metric, the earliest of equal ones."""

    value: float
    steps: int


class Trial(Struct, array_like=True, gc=False):
    """One trial.

    Attributes:
        run: the highest run that was requested, 0 before the first.
        started: the highest run whose process has started.
        over: the highest run that has ended.
        stopped: why the search stopped it, if it did.
        message: how its last run ended, for people.
        validations: those that were loaded: all, or the last one alone.
        parent: id of the trial whose checkpoint it started from, the newest such start.
    """

    index: int
    bracket: int
    hparams: dict[str, Any]
    seed: int
    run: int = 0
    length: int | None = None
    started: int = 0
    over: int = 0
    steps: int = 0
    restarts: int = 0
    stopped: str | None = None
    closed: TrialState | None = None
    reason: str | None = None
    message: str | None = None
    best: Best | None = None
    validations: list[Validation] = field(default_factory=list[Validation])
    parent: str | None = None

    @property
    def time(self) -> float:
        """Progress, in units of the time metric."""
        return max(self.validations[-1].time, 0.0) if self.validations else 0.0


class Checkpoint(Struct, array_like=True, gc=False):
    """One checkpoint that was stored."""

    id: str
    trial_id: str
    run: int
    steps: int
    size_bytes: int
    files: int
    digest: str
    stored_at: str
    damaged: str | None = None
    retired: str | None = None
    deleted_at: str | None = None
    pinned_by: list[str] = field(default_factory=list[str])


class Submission(Struct, array_like=True):
    """The submitted file, and the few of its fields that the fold needs."""

    config: dict[str, Any]
    source: str
    code_digest: str | None
    at: str
    actor: str | None
    origin: str | None
    metric: str
    smaller_is_better: bool
    time_metric: str


class Experiment(Struct, omit_defaults=True):
    """One experiment; `submission` is there from its first fact on.

    Attributes:
        ending: how it was requested to end, if it was.
        requests: origin of a client's request (`client/<key>`) → its kind.
        units: what its trials trained together, in units of the time metric.
    """

    id: str
    submission: Submission | None = None
    method: str | None = None
    plan: list[BracketPlan] = field(default_factory=list[BracketPlan])
    paused: bool = False
    ending: Literal["cancel", "kill"] | None = None
    ended: ExperimentState | None = None
    ended_at: str | None = None
    reason: str | None = None
    requests: dict[str, str] = field(default_factory=dict[str, str])
    trials: list[Trial] = field(default_factory=list[Trial])
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict[str, Checkpoint])
    units: float = 0.0
    throughput: Throughput = field(default_factory=Throughput)

    def trial(self, trial_id: str) -> Trial | None:
        """Return one of its trials by id, None if it has none of that id."""
        owner, _, index = trial_id.rpartition(".")
        if owner != self.id or not (index.isascii() and index.isdigit()) or len(index) > 9:
            return None
        number = int(index)
        return self.trials[number] if number < len(self.trials) else None

    def current(self, trial_id: str, run: int) -> Trial | None:
        """Return the trial, None if the run is over."""
        trial = self.trial(trial_id)
        return trial if trial is not None and run > trial.over else None


def phase_of(experiment: Experiment) -> api.ExperimentPhase:
    """Return an experiment's state in one word."""
    if experiment.ended is not None:
        return experiment.ended
    if experiment.ending is not None:
        return "canceling"
    return "paused" if experiment.paused else "active"


def trial_phase(experiment: Experiment, item: Trial) -> api.TrialPhase:
    """Return a trial's state in one word."""
    if item.closed is not None:
        return item.closed
    if item.stopped is not None:
        return "stopping"
    if item.run > item.over:
        return "running" if item.started >= item.run else "waiting"
    if experiment.paused:
        return "paused"
    return "resting" if item.run else "waiting"

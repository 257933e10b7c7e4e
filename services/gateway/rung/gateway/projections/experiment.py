"""Records of one experiment: its trials, their results, its checkpoints.

Rows of the projection's tables are made of these records. They hold JSON and each other, never a
cycle, so the garbage collector need not look at them (`gc=False`).
"""

from typing import Any, Literal

from msgspec import Struct, field

from rung import api
from rung.config.sections.resources import POOL
from rung.events.experiment import ADMIN, DEFAULT, BracketPlan, ExperimentState
from rung.events.failure import Failure
from rung.events.trial import MetricValue, TrialState
from rung.gateway.projections.tally import Tally
from rung.gateway.projections.throughput import Throughput, Timing
from rung.gateway.timestamp import timestamp


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
        timing: when its runs started and reported.
        stopped_rung: at which the search stopped it; it may have trained on until it left.
        status: what its script said that it is doing.
        metadata: what its script set.
        progress: from 0 to 1, as its script reported it.
        failure: how its last run failed, if it did.
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
    timing: Timing = field(default_factory=Timing)
    stopped_rung: int | None = None
    status: str | None = None
    metadata: dict[str, Any] | None = None
    progress: float | None = None
    failure: str | None = None
    failed: bool = False
    """Whether its last run failed, and no other one was requested since."""

    @property
    def time(self) -> float:
        """Progress, in units of the time metric."""
        return max(self.validations[-1].time, 0.0) if self.validations else 0.0

    @property
    def late_failure(self) -> str | None:
        """How its script failed after it was trained; None: it did not."""
        return self.failure if self.closed in {"completed", "stopped"} else None


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
    late: bool = False
    """Its run was over when it was stored."""


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
    parent: str | None = None
    level: int = 1
    area: str = ""
    """The storage area of its checkpoints; empty: none."""


class Description(Struct, array_like=True, gc=False):
    """What an experiment is called and filed under, as changed since; None: as it was submitted.

    Attributes:
        version: how many changes had an effect.
        labels: as submitted, and as changed since.
        changes: ids of the newest of them.
    """

    version: int = 0
    name: str | None = None
    description: str | None = None
    labels: list[str] = field(default_factory=list[str])
    notes: str = ""
    archived: bool = False
    changes: list[str] = field(default_factory=list[str])


class Resources(Struct, array_like=True, gc=False):
    """What an experiment may have of a pool, as changed since; None: as it was submitted.

    Attributes:
        version: how many changes had an effect.
        max_slots: 0: no limit.
        changes: ids of the newest of them.
        max_slot_hours: 0: no limit.
    """

    version: int = 0
    pool: str | None = None
    priority: int | None = None
    weight: float | None = None
    max_slots: int | None = None
    changes: list[str] = field(default_factory=list[str])
    max_slot_hours: float | None = None


class Deletion(Struct, array_like=True, gc=False):
    """The deletion of an experiment: its time and actor, and whether its objects are gone."""

    at: str
    by: str | None
    done: bool = False


class Hidden(Struct, array_like=True, gc=False):
    """A deletion that can be taken back: its time and actor, and until when that is so."""

    at: str
    by: str | None
    until_ms: int

    @property
    def until(self) -> str:
        """The time until which the deletion can be taken back, in UTC."""
        return timestamp(self.until_ms)


class Experiment(Struct, omit_defaults=True):
    """One experiment; `submission` is there from its first fact on.

    Attributes:
        ending: how it was requested to end, if it was, or that it has reached its limit.
        requests: origin of a client's request (`client/<key>`) → its kind, in words.
        units: what its trials trained together, in units of the time metric.
        failures: why trials of it errored, by what the causes have in common.
        late_failures: the same of scripts that failed after their trial was trained.
        retention: what it keeps, if that was changed after its submission.
        workspace_id: the workspace that it is in.
        project_id: the project of that workspace.
        owner: id of the user who submitted it.
        described: what it is called and filed under, as changed after its submission.
        resources: what it may have of a pool, as changed after its submission.
        unwanted_by: who asked to delete it.
        hidden: while its deletion can be taken back; it has all that it had.
        deletion: once it is deleted; it has neither trials nor checkpoints then.
        tally: its trials and checkpoints, counted; kept by the projection.
    """

    id: str
    submission: Submission | None = None
    method: str | None = None
    plan: list[BracketPlan] = field(default_factory=list[BracketPlan])
    paused: bool = False
    ending: Literal["cancel", "kill", "limit"] | None = None
    ended: ExperimentState | None = None
    ended_at: str | None = None
    reason: str | None = None
    requests: dict[str, str] = field(default_factory=dict[str, str])
    trials: list[Trial] = field(default_factory=list[Trial])
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict[str, Checkpoint])
    units: float = 0.0
    throughput: Throughput = field(default_factory=Throughput)
    failures: dict[str, Failure] = field(default_factory=dict[str, Failure])
    late_failures: dict[str, Failure] = field(default_factory=dict[str, Failure])
    retention: api.Retention | None = None
    workspace_id: str = DEFAULT
    project_id: str = DEFAULT
    owner: str = ADMIN
    described: Description = field(default_factory=Description)
    resources: Resources = field(default_factory=Resources)
    unwanted_by: str | None = None
    hidden: Hidden | None = None
    deletion: Deletion | None = None
    tally: Tally = field(default_factory=Tally)

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


def resources_of(experiment: Experiment, config: dict[str, Any]) -> dict[str, Any]:
    """Return the section `resources` of a configuration, with what was changed since."""
    it = experiment.resources
    found: dict[str, Any] = dict(config.get("resources") or {})
    changed = {"resource_pool": it.pool, "priority": it.priority, "weight": it.weight}
    found |= {name: value for name, value in changed.items() if value is not None}
    if it.max_slots is not None:
        found["max_slots"] = it.max_slots or None
    if it.max_slot_hours is not None:
        found["max_slot_hours"] = it.max_slot_hours or None
    return found


def pool_of(experiment: Experiment) -> str:
    """Return the resource pool of a submitted experiment."""
    config = experiment.submission.config if experiment.submission is not None else {}
    return str(resources_of(experiment, config).get("resource_pool") or POOL)


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


def checkpoint_phase(item: Checkpoint) -> api.CheckpointPhase:
    """Return the state of a checkpoint in one word."""
    if item.deleted_at is not None:
        return "deleted"
    if item.retired is not None:
        return "retired"
    return "damaged" if item.damaged is not None else "stored"

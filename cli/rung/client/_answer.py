"""What the gateway answers. Fields of newer gateways are ignored; these are the API's names."""

from typing import Any, Literal

from msgspec import Struct

from rung.events.experiment import BracketPlan
from rung.events.trial import MetricValue

ExperimentState = Literal["active", "paused", "canceling", "completed", "errored", "canceled"]
ENDED = frozenset({"completed", "errored", "canceled"})


class Submitted(Struct, kw_only=True):
    """An experiment was accepted."""

    experiment_id: str
    url: str
    warnings: list[str] = []


class Validated(Struct, kw_only=True):
    """A valid experiment file, every default filled in."""

    config: dict[str, Any]
    warnings: list[str] = []


class Requested(Struct, kw_only=True):
    """What was asked for is on record; its effect follows."""

    experiment_id: str
    requested: str


class Validation(Struct, kw_only=True):
    """A report of validation metrics."""

    steps: int
    metrics: dict[str, MetricValue]


class BestValue(Struct, kw_only=True):
    """A trial's best value of the searcher's metric."""

    value: float
    steps: int


class Plan(Struct, kw_only=True):
    """What the search will be."""

    method: str
    time_metric: str
    brackets: list[BracketPlan]


class Checkpoint(Struct, kw_only=True):
    """A checkpoint: what is known of it without reading it."""

    id: str
    experiment_id: str
    trial_id: str
    run: int
    state: str
    """stored, retired, deleted or damaged."""
    steps_completed: int
    metrics: dict[str, MetricValue]
    size_bytes: int
    file_count: int
    digest: str
    stored_at: str
    deleted_at: str | None = None
    reason: str | None = None
    pinned_by: list[str] = []


class CheckpointFile(Struct, kw_only=True):
    """One file of a checkpoint."""

    name: str
    size_bytes: int
    sha256: str


class CheckpointDetail(Checkpoint, kw_only=True):
    """A checkpoint with its files."""

    files: list[CheckpointFile]
    metadata: dict[str, Any]


class Trial(Struct, kw_only=True):
    """One choice of hyperparameters and what became of it."""

    id: str
    experiment_id: str
    index: int
    bracket: int
    rung: int | None
    state: str
    """waiting, running, resting, paused, stopping; completed, stopped, errored, canceled."""
    hparams: dict[str, Any]
    seed: int
    run: int
    restarts: int
    length: int | None
    units: float = 0
    """How far it got, in units of the time metric."""
    steps_completed: int
    validations: list[Validation]
    best: BestValue | None
    reason: str | None = None
    message: str | None = None
    """How its last run ended."""


class TrialDetail(Trial, kw_only=True):
    """A trial with its checkpoints."""

    checkpoints: list[Checkpoint]


class BestTrial(Struct, kw_only=True):
    """The best validation of an experiment."""

    trial_id: str
    metric: str
    value: float
    steps: int


class ExperimentSummary(Struct, kw_only=True):
    """An experiment as a list shows it."""

    id: str
    name: str
    state: str
    """active, paused, canceling, completed, errored or canceled."""
    method: str
    progress: float
    labels: list[str]
    workspace: str
    project: str
    submitted_at: str
    ended_at: str | None
    reason: str | None
    trial_count: int
    best: BestTrial | None
    units_trained: float
    units_full: float | None
    eta_seconds: float | None


class Experiment(ExperimentSummary, kw_only=True):
    """An experiment with all of its trials."""

    config: dict[str, Any]
    source: str
    code_digest: str | None
    actor: str | None
    plan: Plan | None
    trials: list[Trial]


class BestAnswer(Struct, kw_only=True):
    """An experiment's best trial, and the checkpoint to go on with."""

    trial: Trial
    metric: str
    smaller_is_better: bool
    value: float
    steps: int
    hparams: dict[str, Any]
    checkpoint: Checkpoint | None


class ExperimentList(Struct, kw_only=True):
    """A page of experiments, the newest first."""

    items: list[ExperimentSummary]
    next_cursor: str | None


class TrialList(Struct, kw_only=True):
    """A page of trials, by index."""

    items: list[Trial]
    next_cursor: str | None


class CheckpointList(Struct, kw_only=True):
    """A page of checkpoints, in the order of their arrival."""

    items: list[Checkpoint]
    next_cursor: str | None


CurvePoint = tuple[int, MetricValue, int]
"""Step, value, Unix time in milliseconds."""


class MetricName(Struct, kw_only=True):
    """A metric that an experiment reported."""

    kind: str
    name: str


class ExperimentCurves(Struct, kw_only=True):
    """One metric of all trials."""

    experiment_id: str
    kind: str
    name: str
    curves: dict[str, list[CurvePoint]]
    """By trial."""
    names: list[MetricName]


class TrialCurve(Struct, kw_only=True):
    """One metric of one trial."""

    trial_id: str
    kind: str
    name: str
    points: list[CurvePoint]
    names: list[MetricName]


class LogLine(Struct, kw_only=True):
    """One line that a trial printed."""

    trial_id: str
    run: int
    rank: int
    stream: str
    level: str
    time_ms: int
    text: str


class LogPage(Struct, kw_only=True):
    """Printed lines by time."""

    items: list[LogLine]
    next_cursor: str | None
    """Given as `after`, it leads to the next page."""

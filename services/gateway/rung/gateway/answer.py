"""What the API answers: one record per answer, from which its OpenAPI schemas are made."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from rung.events.allocation import Slot
from rung.events.experiment import BracketPlan
from rung.events.trial import MetricValue

Time = Annotated[str, Meta(description="RFC 3339, UTC")]

ExperimentPhase = Literal["active", "paused", "canceling", "completed", "errored", "canceled"]
TrialPhase = Literal[
    "waiting",
    "running",
    "resting",
    "paused",
    "stopping",
    "completed",
    "stopped",
    "errored",
    "canceled",
]
CheckpointPhase = Literal["stored", "retired", "deleted", "damaged"]


class Submitted(Struct, kw_only=True):
    """An experiment was accepted."""

    experiment_id: str
    url: Annotated[str, Meta(description="path of the experiment in this API")]
    warnings: list[str]


class Validated(Struct, kw_only=True):
    """A valid experiment file, every default filled in."""

    config: dict[str, Any]
    warnings: list[str]


class Requested(Struct, kw_only=True):
    """What was asked for is on record; its effect follows."""

    experiment_id: str
    requested: Literal["pause", "resume", "cancel", "kill"]


class Validation(Struct, kw_only=True):
    """A report of validation metrics that counts."""

    steps: Annotated[int, Meta(description="batches completed")]
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
    state: CheckpointPhase
    steps_completed: int
    metrics: Annotated[
        dict[str, MetricValue], Meta(description="its trial's validation at this step")
    ]
    size_bytes: int
    file_count: int
    digest: Annotated[str, Meta(description="SHA-256 of the manifest")]
    stored_at: Time
    deleted_at: Time | None
    reason: Annotated[str | None, Meta(description="why it is retired, deleted or damaged")]
    pinned_by: Annotated[list[str], Meta(description="experiments that start from it")]


class CheckpointFile(Struct, kw_only=True):
    """One file of a checkpoint, as its manifest has it."""

    name: str
    size_bytes: int
    sha256: str


class CheckpointDetail(Checkpoint, kw_only=True):
    """A checkpoint with its files; they are gone from a deleted one."""

    files: list[CheckpointFile]
    metadata: dict[str, Any]


class Trial(Struct, kw_only=True):
    """One choice of hyperparameters and what became of it."""

    id: str
    experiment_id: str
    index: int
    bracket: int
    rung: Annotated[int | None, Meta(description="the highest rung reached, counted from 0")]
    state: TrialPhase
    hparams: dict[str, Any]
    seed: int
    run: Annotated[int, Meta(description="number of its newest run, counted from 1")]
    restarts: int
    length: Annotated[int | None, Meta(description="how far its newest run goes")]
    units: Annotated[float, Meta(description="how far it got, in units of the time metric")]
    steps_completed: int
    validations: list[Validation]
    best: BestValue | None
    reason: str | None
    message: Annotated[str | None, Meta(description="how its last run ended")]


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
    state: ExperimentPhase
    method: str
    progress: Annotated[float, Meta(ge=0, le=1)]
    labels: list[str]
    workspace: str
    project: str
    submitted_at: Time
    ended_at: Time | None
    reason: str | None
    trial_count: int
    best: BestTrial | None
    units_trained: Annotated[float, Meta(description="in units of the time metric")]
    units_full: Annotated[
        float | None, Meta(description="what every trial in full would be; null without lengths")
    ]
    eta_seconds: Annotated[float | None, Meta(description="null while nobody can tell")]


class Experiment(ExperimentSummary, kw_only=True):
    """An experiment with all of its trials."""

    config: dict[str, Any]
    source: Annotated[str, Meta(description="the experiment file as its author wrote it")]
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
    checkpoint: Annotated[
        Checkpoint | None,
        Meta(description="the one of the best validation; else the trial's newest that is left"),
    ]


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


class MetricName(Struct, kw_only=True):
    """A metric that an experiment reported."""

    kind: str
    name: str


class ExperimentCurves(Struct, kw_only=True):
    """One metric of all trials."""

    experiment_id: str
    kind: str
    name: str
    curves: Annotated[
        dict[str, list[CurvePoint]],
        Meta(description="trial id → points of step, value, Unix time in milliseconds"),
    ]
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
    next_cursor: Annotated[str | None, Meta(description="give it as `after`")]


class SlotUse(Slot, frozen=True, kw_only=True):
    """A slot and what holds it."""

    allocation_id: str | None


class Agent(Struct, kw_only=True):
    """One machine's agent."""

    id: str
    pool: str
    hostname: str
    incarnation: int
    state: Literal["joined", "left", "lost"]
    since: Time
    slots: list[SlotUse]


class AgentList(Struct, kw_only=True):
    """All agents."""

    items: list[Agent]


class QueueItem(Struct, kw_only=True):
    """A run that waits for slots."""

    allocation_id: str
    pool: str
    experiment_id: str
    trial_id: str
    run: int
    slots: int
    priority: int
    requested_at: Time
    withdrawn: bool


class Queue(Struct, kw_only=True):
    """A page of what waits: by pool, priority and age."""

    items: list[QueueItem]
    next_cursor: str | None


class DeadLetter(Struct, kw_only=True):
    """A message that a reader could not take in; it stopped nothing else."""

    at: Time
    topic: str
    partition: int
    position: int
    key: str
    reader: str
    reason: str
    value: str


class DeadLetterList(Struct, kw_only=True):
    """A page of dead letters, the newest first."""

    items: list[DeadLetter]
    next_cursor: str | None
    count: int


class PoolStatus(Struct, kw_only=True):
    """A resource pool in numbers."""

    name: str
    agents: int
    slots: int
    slots_used: int
    waiting: int


class Status(Struct, kw_only=True):
    """This installation in numbers."""

    version: str
    ledger_id: str
    experiments: Annotated[dict[str, int], Meta(description="state → how many")]
    pools: list[PoolStatus]
    dead_letters: int


class Health(Struct, kw_only=True):
    """It answers."""

    status: Literal["ok"]


class Audit(Struct, kw_only=True):
    """Whether every decision on record is what is decided today."""

    same: bool
    decisions: int


class ProblemItem(Struct, kw_only=True, omit_defaults=True):
    """One thing that is wrong with what was sent."""

    path: str
    message: str
    value: str | None = None
    line: int | None = None


class ProblemDocument(Struct, kw_only=True, omit_defaults=True):
    """What went wrong, as in RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[ProblemItem] | None = None
    incident: Annotated[str | None, Meta(description="to be found in the server's log")] = None

"""Answers about experiments and their trials."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from rung.api.checkpoint import Checkpoint
from rung.api.listing import Listing
from rung.api.states import ExperimentPhase, Time, TrialPhase
from rung.events.experiment import BracketPlan
from rung.events.trial import MetricValue


class Submitted(Struct, kw_only=True):
    """An experiment was accepted."""

    experiment_id: Annotated[str, Meta(description="the same as `id`, for older scripts")]
    url: Annotated[str, Meta(description="path of the experiment in this API")]
    warnings: list[str]
    id: str = ""

    def __post_init__(self) -> None:
        """Name the experiment as all other answers do; a gateway of an earlier release did not."""
        self.id = self.id or self.experiment_id


class Validated(Struct, kw_only=True):
    """A valid experiment file, every default filled in."""

    config: dict[str, Any]
    warnings: list[str]


class Requested(Struct, kw_only=True):
    """A request is on record; its effect follows."""

    experiment_id: str
    requested: Literal["pause", "resume", "cancel", "kill", "restore"]


class Extended(Struct, kw_only=True):
    """A request for more is on record; its effect follows."""

    experiment_id: Annotated[
        str, Meta(description="the experiment that trains more; a new one if it had ended")
    ]
    parent: Annotated[str | None, Meta(description="of a new one, the one that had ended")]
    trials: int | None
    max_time: int | None


class TrialAsked(Struct, kw_only=True):
    """A request about a trial is on record; its effect follows."""

    trial_id: str
    requested: Literal["kill"]


class MoveAsked(Struct, kw_only=True):
    """A request to move a trial is on record; its effect follows."""

    trial_id: str
    to: Annotated[str | None, Meta(description="the agent to resume on; null: any other")]


class Moved(Struct, kw_only=True):
    """An experiment is in another workspace or project."""

    experiment_id: str
    workspace: Annotated[str, Meta(description="its name")]
    project: Annotated[str, Meta(description="its name")]
    workspace_id: str
    project_id: str


class Found(Struct, kw_only=True):
    """What a reference stands for."""

    kind: Literal["experiment", "trial", "checkpoint"]
    id: str
    experiment_id: str


class Retention(Struct, frozen=True, kw_only=True):
    """Which checkpoints an experiment keeps, as in `checkpoint_storage` of its file."""

    save_experiment_best: Annotated[int, Meta(description="the best n of all trials")]
    save_trial_best: Annotated[int, Meta(description="the best n of each trial")]
    save_trial_latest: Annotated[int, Meta(description="the latest n of each trial")]


_Count = Annotated[int, Meta(ge=0, le=1_000_000)]


class RetentionWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """What of a retention is to change."""

    save_experiment_best: Annotated[_Count | None, Meta(description="null: as it was")] = None
    save_trial_best: Annotated[_Count | None, Meta(description="null: as it was")] = None
    save_trial_latest: Annotated[_Count | None, Meta(description="null: as it was")] = None


class RetentionAnswer(Struct, kw_only=True):
    """A change of an experiment's retention, and what it deletes now."""

    experiment_id: str
    dry_run: Annotated[bool, Meta(description="whether nothing is on record")]
    before: Retention
    after: Retention
    items: Annotated[list[Checkpoint], Meta(description="checkpoints that are superfluous")]
    size_bytes: Annotated[int, Meta(description="of these checkpoints")]


_Name = Annotated[str, Meta(min_length=1, max_length=500)]
_Labels = Annotated[list[_Name], Meta(max_length=100)]
_Words = Annotated[str, Meta(max_length=100_000)]


class Description(Struct, kw_only=True):
    """What an experiment is called and filed under."""

    experiment_id: str
    name: str
    description: str
    labels: list[str]
    notes: str
    archived: Annotated[bool, Meta(description="whether lists leave it out unless asked for it")]
    version: Annotated[int, Meta(description="how often it was changed; the ETag has it")]


class DescriptionWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """What of a description is to change; null: as it was."""

    name: _Name | None = None
    description: _Words | None = None
    labels: _Labels | None = None
    add_labels: Annotated[_Labels, Meta(description="besides those that are there")] = []
    remove_labels: _Labels = []
    notes: _Words | None = None
    archived: bool | None = None


class Resources(Struct, kw_only=True):
    """What an experiment may have of a resource pool: as submitted, or as changed since."""

    experiment_id: str
    pool: str
    priority: Annotated[int, Meta(description="1 to 99, lower is more important")]
    weight: Annotated[float, Meta(description="its share, under a policy that uses it")]
    max_slots: Annotated[int | None, Meta(description="how many slots it may hold at once")]
    slots_per_trial: int
    version: Annotated[int, Meta(description="how often it was changed; the ETag has it")]
    max_slot_hours: Annotated[
        float | None, Meta(description="how many slot-hours it may use; then it ends")
    ] = None


class ResourcesWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """What of an experiment's resources is to change; null: as it was."""

    pool: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    priority: Annotated[int, Meta(ge=1, le=99)] | None = None
    weight: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    max_slots: Annotated[int, Meta(ge=0, le=2**31, description="0: no limit")] | None = None
    max_slot_hours: (
        Annotated[
            float,
            Meta(ge=0, le=1e9, description="0: no limit; it ends if it has used as much"),
        ]
        | None
    ) = None


class Dependent(Struct, kw_only=True):
    """An experiment that started from a checkpoint."""

    experiment_id: str
    name: str
    state: ExperimentPhase
    checkpoint_id: str


class CheckpointDeletion(Struct, kw_only=True):
    """A request to delete a checkpoint; its effect follows."""

    checkpoint: Checkpoint
    dry_run: Annotated[bool, Meta(description="whether nothing is on record")]
    dependents: Annotated[list[Dependent], Meta(description="experiments that started from it")]
    note: Annotated[
        str | None, Meta(description="what it is to its trial: the only one left, or the best")
    ] = None


class ExperimentDeletion(Struct, kw_only=True):
    """A request to delete an experiment; its effect follows."""

    experiment_id: str
    name: str
    state: ExperimentPhase
    dry_run: Annotated[bool, Meta(description="whether nothing is on record")]
    trial_count: int
    checkpoint_count: Annotated[int, Meta(description="those in the object store")]
    checkpoint_bytes: int
    log_lines: Annotated[int | None, Meta(description="null: not known here")]
    log_bytes: int | None
    code_shared: Annotated[
        bool, Meta(description="whether its code stays, because other experiments have the same")
    ]
    dependents: Annotated[
        list[Dependent], Meta(description="other experiments that started from its checkpoints")
    ]
    restorable_until: Annotated[
        Time | None, Meta(description="until when that can be taken back; null: not at all")
    ] = None


class Validation(Struct, kw_only=True):
    """A report of validation metrics that counts."""

    steps: Annotated[int, Meta(description="batches completed")]
    metrics: dict[str, MetricValue]


class BestValue(Struct, kw_only=True):
    """A trial's best value of the searcher's metric."""

    value: float
    steps: int


class Plan(Struct, kw_only=True):
    """The plan of a search."""

    method: str
    time_metric: str
    brackets: list[BracketPlan]


class Rungs(Struct, kw_only=True):
    """How far the trials of a bracket are."""

    bracket: int
    trials: Annotated[int, Meta(description="how many it has so far")]
    reached: Annotated[
        list[int], Meta(description="how many trials reached each rung, the shortest first")
    ]


class Trial(Struct, kw_only=True):
    """One choice of hyperparameters, and its training."""

    id: str
    experiment_id: str
    index: int
    bracket: int
    rung: Annotated[int | None, Meta(description="the highest rung reached, counted from 0")]
    state: TrialPhase
    hparams: dict[str, Any]
    seed: int
    run: Annotated[int, Meta(description="number of its newest run, counted from 1")]
    restarts: Annotated[int, Meta(description="how often it was started again after a failure")]
    length: Annotated[int | None, Meta(description="how far its newest run goes")]
    units: Annotated[float, Meta(description="how far it got, in units of the time metric")]
    steps_completed: int
    validations: list[Validation]
    best: BestValue | None
    reason: str | None
    message: Annotated[str | None, Meta(description="how its last run ended")]
    parent: Annotated[
        str | None, Meta(description="the trial whose checkpoint it started from, if another's")
    ] = None
    status: Annotated[str | None, Meta(description="what it is doing, in its script's words")] = (
        None
    )
    progress: Annotated[
        float | None, Meta(description="how much of it is done, from 0 to 1, by its script")
    ] = None
    metadata: Annotated[
        dict[str, Any] | None, Meta(description="what its script set as its metadata")
    ] = None


class TrialDetail(Trial, kw_only=True):
    """A trial with its checkpoints."""

    checkpoints: list[Checkpoint]
    best_checkpoint_id: Annotated[
        str | None, Meta(description="the one to continue with, as of `best`; null: none is left")
    ] = None
    best_checkpoint_note: Annotated[
        str | None, Meta(description="as `checkpoint_note` of `best`")
    ] = None


class BestTrial(Struct, kw_only=True):
    """The best validation of an experiment."""

    trial_id: str
    metric: str
    value: float
    steps: int


class Failure(Struct, kw_only=True):
    """Trials that failed for causes that differ in numbers, addresses and folders alone."""

    cause: Annotated[str, Meta(description="of the first of them")]
    trials: Annotated[int, Meta(description="how many there are")]
    trial_id: Annotated[str, Meta(description="the first of them")]
    logs: Annotated[str, Meta(description="path of its log in this API")]


class ExperimentSummary(Struct, kw_only=True):
    """An experiment as a list shows it."""

    id: str
    name: str
    state: ExperimentPhase
    method: str
    progress: Annotated[float, Meta(ge=0, le=1, description="1 only of a completed one")]
    labels: list[str]
    workspace: Annotated[str, Meta(description="its name")]
    project: Annotated[str, Meta(description="its name")]
    submitted_at: Time
    ended_at: Time | None
    reason: str | None
    trial_count: int
    best: BestTrial | None
    units_trained: Annotated[float, Meta(description="in units of the time metric")]
    units_full: Annotated[
        float | None, Meta(description="what every trial in full would be; null without lengths")
    ]
    eta_seconds: Annotated[float | None, Meta(description="null while unknown")]
    failures: Annotated[
        list[Failure], Meta(description="of its errored trials, the commonest first")
    ] = field(default_factory=list[Failure])
    late_failures: Annotated[
        list[Failure],
        Meta(description="of its scripts that failed after their trial was trained; likewise"),
    ] = field(default_factory=list[Failure])
    checkpoint_count: Annotated[int, Meta(description="those in the object store")] = 0
    checkpoint_bytes: Annotated[int, Meta(description="of those in the object store")] = 0
    archived: Annotated[bool, Meta(description="whether lists leave it out unless asked for")] = (
        False
    )
    workspace_id: str = ""
    project_id: str = ""
    owner: Annotated[str, Meta(description="name of the user who submitted it")] = ""
    owner_id: str = ""
    restorable_until: Annotated[
        Time | None,
        Meta(description="of a deleted one: until when that can be taken back"),
    ] = None


class Experiment(ExperimentSummary, kw_only=True):
    """An experiment, with all of its trials unless others were asked for."""

    config: dict[str, Any]
    source: Annotated[
        str,
        Meta(description="the file as its author wrote it; as JSON if secrets in it are hidden"),
    ]
    code_digest: str | None
    actor: str | None
    plan: Plan | None
    trials: list[Trial]
    parent: Annotated[
        str | None, Meta(description="the experiment that it was made from (`rung fork`)")
    ] = None
    retention: Annotated[
        Retention | None, Meta(description="which checkpoints it keeps, as changed since")
    ] = None
    description: str = ""
    notes: str = ""
    storage: Annotated[
        str,
        Meta(description="the storage area of its checkpoints, as long as it lives; empty: none"),
    ] = ""
    trial_states: Annotated[
        dict[str, int], Meta(description="how many of all its trials are in each state")
    ] = field(default_factory=dict[str, int])
    unplaced: Annotated[
        str | None, Meta(description="why no present agent can ever place its waiting trials")
    ] = None
    rungs: Annotated[
        list[Rungs], Meta(description="how many of all its trials reached each rung, by bracket")
    ] = field(default_factory=list[Rungs])
    checkpoint_states: Annotated[
        dict[str, int],
        Meta(description="how many of its checkpoints are in each state, also deleted ones"),
    ] = field(default_factory=dict[str, int])


class BestAnswer(Struct, kw_only=True):
    """An experiment's best trial, and the checkpoint to continue with."""

    trial: Trial
    metric: str
    smaller_is_better: bool
    value: float
    steps: int
    hparams: dict[str, Any]
    checkpoint: Annotated[
        Checkpoint | None,
        Meta(
            description="the one of the best validation; else, of those of the trial that are"
            " left, the one with the best value, else the nearest to the best validation"
        ),
    ]
    checkpoint_value: Annotated[
        MetricValue | None,
        Meta(description="the metric at the checkpoint's step; null: not validated there"),
    ] = None
    checkpoint_note: Annotated[
        str | None,
        Meta(
            description="which checkpoint it is, where it is not the one of the best validation:"
            " its value is another; null: it is that one, or there is none"
        ),
    ] = None


class ExperimentList(Listing[ExperimentSummary], kw_only=True):
    """A page of experiments, the newest first."""

    items: list[ExperimentSummary]
    next_cursor: str | None


class TrialList(Listing[Trial], kw_only=True):
    """A page of trials, by index or the best first."""

    items: list[Trial]
    next_cursor: str | None

"""Answers about experiments and their trials."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from rung.api.checkpoint import Checkpoint
from rung.api.states import ExperimentPhase, Time, TrialPhase
from rung.events.experiment import BracketPlan
from rung.events.trial import MetricValue


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
    """A request is on record; its effect follows."""

    experiment_id: str
    requested: Literal["pause", "resume", "cancel", "kill"]


class MoveAsked(Struct, kw_only=True):
    """A request to move a trial is on record; its effect follows."""

    trial_id: str
    to: Annotated[str | None, Meta(description="the agent to resume on; null: any other")]


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
    restarts: int
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
    eta_seconds: Annotated[float | None, Meta(description="null while unknown")]


class Experiment(ExperimentSummary, kw_only=True):
    """An experiment with all of its trials."""

    config: dict[str, Any]
    source: Annotated[
        str,
        Meta(description="the file as its author wrote it; as JSON if secrets in it are hidden"),
    ]
    code_digest: str | None
    actor: str | None
    plan: Plan | None
    trials: list[Trial]


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

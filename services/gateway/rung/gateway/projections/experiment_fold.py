"""The fold of events into the gateway's record of one experiment.

A pure fold over the topics `experiments` (facts), `searches` and `retirements` (decisions), with
time taken from the envelopes. A report counts if its run has not ended, and if its time (in units
of the searcher's `time_metric`) is beyond the trial's last one, as for the searcher; so what a
restarted trial reports again counts once. This follows from facts alone, so the order of
facts and of decisions that do not answer them makes no difference.

Of a trial's validations the fold needs the last one alone.

Invariant: folding the same records in any batches, with any restarts, gives the same.
"""

from typing import Any, Final, assert_never

import msgspec
from msgspec import structs

from rung import api
from rung.events import Event, topic
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.events.checkpoint import (
    CheckpointDamaged,
    CheckpointDeleted,
    CheckpointDeletionRequested,
    CheckpointPinned,
    CheckpointRetired,
    CheckpointStored,
)
from rung.events.experiment import (
    CancelRequested,
    DeletionRequested,
    DeletionScheduled,
    DescriptionChanged,
    ExperimentDeleted,
    ExperimentEnded,
    ExperimentMoved,
    ExperimentPaused,
    ExperimentRestored,
    ExperimentResumed,
    ExperimentRetired,
    ExperimentSubmitted,
    ExtensionRequested,
    KillRequested,
    LimitReached,
    PauseRequested,
    ResourcesRequested,
    RestorationRequested,
    ResumeRequested,
    RetentionChanged,
    SearchExtended,
    SearchPlanned,
    limit_words,
)
from rung.events.failure import add_failure
from rung.events.trial import (
    RunRequested,
    RunWithdrawn,
    TrialClosed,
    TrialExited,
    TrialKillRequested,
    TrialMetadataSet,
    TrialProgressReported,
    TrialPromoted,
    TrialRequested,
    TrialRestored,
    TrialStarted,
    TrialStatusSet,
    TrialStopped,
    TrialValidated,
    comparable,
    is_better,
)
from rung.gateway.projections.experiment import (
    Best,
    Checkpoint,
    Deletion,
    Description,
    Experiment,
    Hidden,
    Submission,
    Trial,
    Validation,
)
from rung.gateway.projections.throughput import seconds_of

_CHANGES_MAX: Final = 16
"""So many changes of a description, or of resources, are known by their ids: longer than an
answer takes."""
PIN: Final = "pin"
"""What a request did that submitted another experiment, in words."""

_Request = (
    ExperimentSubmitted
    | PauseRequested
    | ResumeRequested
    | CancelRequested
    | KillRequested
    | TrialKillRequested
    | ExtensionRequested
    | ResourcesRequested
    | CheckpointPinned
    | CheckpointDeletionRequested
    | RetentionChanged
    | DescriptionChanged
    | ExperimentMoved
    | DeletionRequested
    | RestorationRequested
)
_OfExperiment = (
    SearchPlanned
    | SearchExtended
    | LimitReached
    | ExperimentPaused
    | ExperimentResumed
    | ExperimentEnded
)
_OfSearch = TrialPromoted | TrialStopped | TrialClosed | RunWithdrawn
_OfRun = (
    TrialStarted
    | TrialRestored
    | TrialValidated
    | TrialExited
    | AllocationLost
    | AllocationDropped
)
_OfScript = TrialStatusSet | TrialMetadataSet | TrialProgressReported
_OfCheckpoint = CheckpointStored | CheckpointDamaged | CheckpointRetired | CheckpointDeleted
_OfDeletion = DeletionScheduled | ExperimentRestored | ExperimentRetired | ExperimentDeleted
Handles = (
    _Request
    | _OfExperiment
    | TrialRequested
    | RunRequested
    | _OfSearch
    | _OfRun
    | _OfScript
    | _OfCheckpoint
    | _OfDeletion
)
"""The events that are folded."""


def evolve(state: Experiment, event: Event) -> None:  # noqa: C901 - one case per kind
    """Fold a fact or a decision; relayed copies of decisions are skipped."""
    data = event.data
    if _is_skipped(state, event):
        return
    if isinstance(data, _Request):
        _request(state, event, data)
    elif isinstance(data, _OfDeletion):
        _evolve_deletion(state, event, data)
    elif isinstance(data, _OfExperiment):
        _evolve_experiment(state, event, data)
    elif isinstance(data, TrialRequested):
        assert data.index == len(state.trials), f"after {len(state.trials)} trials: {data}"
        state.trials.append(
            Trial(data.index, data.bracket, data.hparams, data.seed, parent=data.parent)
        )
    elif isinstance(data, RunRequested):
        _request_run(state, event, data)
    elif isinstance(data, _OfSearch):
        _evolve_search(state, data)
    elif isinstance(data, _OfRun):
        _evolve_run(state, event, data)
    elif isinstance(data, _OfScript):
        _describe(state, data)
    elif isinstance(data, _OfCheckpoint):
        _evolve_checkpoint(state, event, data)


def _is_skipped(state: Experiment, event: Event) -> bool:
    """Whether it is a relayed copy, or about what was deleted."""
    if event.topic == topic.EXPERIMENTS and event.data.TOPIC == topic.SEARCHES:
        return True
    return state.deletion is not None and not isinstance(event.data, _Request | _OfDeletion)


def _request(state: Experiment, event: Event, data: _Request) -> None:  # noqa: C901, PLR0912, PLR0915 - one case per request
    match data:
        case ExperimentSubmitted():
            action = "submit"
            if state.submission is None:
                state.submission = _submission(event, data)
                state.workspace_id, state.project_id = data.workspace_id, data.project_id
                state.owner = data.owner
                labels = data.config.get("labels") or []
                state.described.labels = list(dict.fromkeys(map(str, labels)))
        case PauseRequested():
            action = "pause"
        case ResumeRequested():
            action = "resume"
        case CancelRequested():
            action = "cancel"
            state.ending = state.ending or "cancel"
        case KillRequested():
            action = "kill"
            state.ending = "kill"
        case TrialKillRequested():
            action = f"kill trial {data.trial_id} of"
        case ExtensionRequested():
            action = extension_text(data.trials, data.max_time)
        case ResourcesRequested():
            action = resources_text(data)
            _change_resources(state, event, data)
        case CheckpointPinned():
            action = PIN
            checkpoint = state.checkpoints.get(data.checkpoint_id)
            if checkpoint is not None and data.by not in checkpoint.pinned_by:
                checkpoint.pinned_by.append(data.by)
        case CheckpointDeletionRequested():
            action = f"delete checkpoint {data.checkpoint_id} of"
        case RetentionChanged():
            action = retention_text(data)
            state.retention = api.Retention(
                save_experiment_best=data.save_experiment_best,
                save_trial_best=data.save_trial_best,
                save_trial_latest=data.save_trial_latest,
            )
        case DescriptionChanged():
            action = description_text(data)
            _change_description(state.described, event, data)
        case ExperimentMoved():
            action = move_text(data)
            state.workspace_id, state.project_id = data.workspace_id, data.project_id
        case DeletionRequested():
            action = "delete"
            state.unwanted_by = event.actor
        case RestorationRequested():
            action = "restore"
        case _:
            assert_never(data)
    if event.origin is not None and event.origin.startswith("client/"):
        state.requests.setdefault(event.origin, action)


def extension_text(trials: int | None, max_time: int | None) -> str:
    """Return what a request asks for that extends a search, in words."""
    return f"extend to {trials} trials of length {max_time}"


def retention_text(data: RetentionChanged) -> str:
    """Return a change of the retention in words, by which a repeated request is recognised."""
    counts = data.save_experiment_best, data.save_trial_best, data.save_trial_latest
    return f"set the retention {'/'.join(map(str, counts))} of"


def description_text(data: DescriptionChanged) -> str:
    """Return a change of the description in words, by which a repeated request is recognised."""
    fields = msgspec.json.encode(structs.replace(data, experiment_id="", version=None))
    return f"describe by {fields.decode()}"


def resources_text(data: ResourcesRequested) -> str:
    """Return a change of resources in words, by which a repeated request is recognised."""
    fields = msgspec.json.encode(structs.replace(data, experiment_id="", version=None))
    return f"set the resources {fields.decode()} of"


def _change_resources(state: Experiment, event: Event, data: ResourcesRequested) -> None:
    """Fold a change as the searcher does, until the search has ended."""
    it = state.resources
    if state.submission is None or data.version not in {None, it.version}:
        return
    for name in ("pool", "priority", "weight", "max_slots", "max_slot_hours"):
        value = getattr(data, name)
        if value is not None:
            setattr(it, name, value)
    it.version += 1
    it.changes = [*it.changes, event.id][-_CHANGES_MAX:]


def move_text(data: ExperimentMoved) -> str:
    """Return a move in words, by which a repeated request is recognised."""
    return f"move to project {data.project_id} of workspace {data.workspace_id}"


def _change_description(it: Description, event: Event, data: DescriptionChanged) -> None:
    if data.version not in {None, it.version}:
        return
    for name in ("name", "description", "notes", "archived"):
        value = getattr(data, name)
        if value is not None:
            setattr(it, name, value)
    labels = [*(it.labels if data.labels is None else data.labels), *data.add_labels]
    it.labels = [each for each in dict.fromkeys(labels) if each not in data.remove_labels]
    it.version += 1
    it.changes = [*it.changes, event.id][-_CHANGES_MAX:]


def _submission(event: Event, data: ExperimentSubmitted) -> Submission:
    search: dict[str, Any] = data.config.get("searcher") or {}
    return Submission(
        config=data.config,
        source=data.source,
        code_digest=data.code_digest,
        at=event.time,
        actor=event.actor,
        origin=event.origin,
        metric=str(search.get("metric", "")),
        smaller_is_better=bool(search.get("smaller_is_better", True)),
        time_metric=str(search.get("time_metric") or "batches"),
        parent=data.parent,
        level=data.level,
        area=data.area,
    )


def _evolve_deletion(state: Experiment, event: Event, data: _OfDeletion) -> None:
    match data:
        case DeletionScheduled():
            if state.deletion is None:
                state.hidden = Hidden(event.time, state.unwanted_by, data.until_ms)
        case ExperimentRestored():
            state.hidden = None
        case ExperimentRetired():
            hidden = state.hidden or Hidden(event.time, state.unwanted_by, 0)
            state.deletion = state.deletion or Deletion(hidden.at, hidden.by)
            state.trials, state.checkpoints, state.hidden = [], {}, None
        case ExperimentDeleted():
            if state.deletion is not None:
                state.deletion.done = True
        case _:
            assert_never(data)


def _evolve_experiment(state: Experiment, event: Event, data: _OfExperiment) -> None:
    match data:
        case SearchPlanned():
            state.method, state.plan = data.method, data.brackets
        case SearchExtended():
            state.plan = data.brackets
        case LimitReached():
            state.ending = state.ending or "limit"
            state.reason = limit_words(data.max_slot_hours)
        case ExperimentPaused():
            state.paused = True
        case ExperimentResumed():
            state.paused = False
        case ExperimentEnded():
            state.ended, state.ended_at, state.reason = data.state, event.time, data.reason
        case _:
            assert_never(data)


def _request_run(state: Experiment, event: Event, data: RunRequested) -> None:
    trial = state.trial(data.spec.trial_id)
    if trial is not None:
        trial.run, trial.length = max(trial.run, data.spec.run), data.spec.length
        trial.restarts, trial.failed = trial.restarts + trial.failed, False
        trial.timing.request(seconds_of(event.time) or 0.0)


def _evolve_search(state: Experiment, data: _OfSearch) -> None:
    trial = state.trial(data.trial_id)
    if trial is None:
        return
    match data:
        case RunWithdrawn():
            pass  # the run goes on until its end is heard
        case TrialPromoted():
            trial.length = data.length
            trial.parent = data.parent or trial.parent
            if data.hparams is not None:
                trial.hparams = data.hparams
        case TrialStopped():
            trial.stopped, trial.stopped_rung = data.reason, data.rung
        case TrialClosed():
            trial.closed, trial.reason = data.state, data.reason
            trial.restarts = min(trial.restarts, data.restarts)  # else a run that was as good
            if data.state == "errored":
                cause = data.cause or data.reason
                state.failures = add_failure(state.failures, cause, data.trial_id)
            elif trial.late_failure is not None:
                late = add_failure(state.late_failures, trial.late_failure, data.trial_id)
                state.late_failures = late
        case _:
            assert_never(data)


def _evolve_run(state: Experiment, event: Event, data: _OfRun) -> None:
    trial = state.current(data.trial_id, data.run)
    if trial is None:
        return
    at = seconds_of(event.time)
    match data:
        case TrialStarted():
            trial.started = max(trial.started, data.run)
            if at is not None:
                state.throughput.started(trial.timing, at)
        case TrialRestored():
            trial.steps = max(trial.steps, data.steps_completed)
        case TrialValidated():
            _validate(state, trial, event, data)
        case TrialExited():
            trial.failed = data.outcome == "failed" and not data.machine
            trial.over, trial.message = data.run, data.message or data.outcome
            trial.failure = trial.message if data.outcome == "failed" else None
            if at is not None:
                state.throughput.ended(trial.timing, at)
        case AllocationLost() | AllocationDropped():
            outcome = "lost" if isinstance(data, AllocationLost) else "dropped"
            trial.over, trial.message = data.run, data.reason or outcome
            trial.failure = None
        case _:
            assert_never(data)


def _describe(state: Experiment, data: _OfScript) -> None:
    """Fold what a script says of its trial."""
    trial = state.current(data.trial_id, data.run)
    if trial is None:
        return
    match data:
        case TrialStatusSet():
            trial.status = data.status
        case TrialMetadataSet():
            trial.metadata = data.metadata
        case TrialProgressReported():
            trial.progress = data.progress
        case _:
            assert_never(data)


def _validate(state: Experiment, trial: Trial, event: Event, data: TrialValidated) -> None:
    submission = state.submission
    if submission is None:
        return
    time = _time_of(data, submission.time_metric)
    if trial.validations and time <= trial.validations[-1].time:
        return
    units, at = max(time, 0.0) - trial.time, seconds_of(event.time)
    state.units += units
    if at is not None:
        state.throughput.reported(trial.timing, at, units)
    trial.validations.append(Validation(data.steps_completed, time, data.metrics))
    trial.steps = max(trial.steps, data.steps_completed)
    value, smaller = comparable(data.metrics.get(submission.metric)), submission.smaller_is_better
    if value is None:
        return
    if trial.best is None or is_better(value, trial.best.value, smaller_is_better=smaller):
        trial.best = Best(value, data.steps_completed)


def _time_of(data: TrialValidated, time_metric: str) -> float:
    time = comparable(data.metrics.get(time_metric))
    return float(data.steps_completed) if time is None else time


def _evolve_checkpoint(state: Experiment, event: Event, data: _OfCheckpoint) -> None:
    if isinstance(data, CheckpointStored):
        if data.checkpoint_id not in state.checkpoints:
            found = _checkpoint(event, data)
            of = state.trial(data.trial_id)
            found.late = of is not None and data.run <= of.over
            state.checkpoints[data.checkpoint_id] = found
        trial = state.current(data.trial_id, data.run)
        if trial is not None:
            trial.steps = max(trial.steps, data.steps_completed)
        return
    checkpoint = state.checkpoints.get(data.checkpoint_id)
    if checkpoint is None:
        return
    match data:
        case CheckpointDamaged():
            checkpoint.damaged = data.reason
        case CheckpointRetired():
            checkpoint.retired = data.reason
        case CheckpointDeleted():
            checkpoint.deleted_at = checkpoint.deleted_at or event.time
        case _:
            assert_never(data)


def _checkpoint(event: Event, data: CheckpointStored) -> Checkpoint:
    return Checkpoint(
        id=data.checkpoint_id,
        trial_id=data.trial_id,
        run=data.run,
        steps=data.steps_completed,
        size_bytes=data.size_bytes,
        files=data.files,
        digest=data.digest,
        stored_at=event.time,
    )

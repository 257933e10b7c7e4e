"""The fold of events into the gateway's record of one experiment.

A pure fold over the topics `experiments` (facts), `searches` and `retirements` (decisions), with
time taken from the envelopes. A report counts if its run has not ended, and if its time (in units
of the searcher's `time_metric`) is beyond the trial's last one, as for the searcher; so what a
restarted trial reports again counts once. This follows from facts alone, so the order of
facts and of decisions that do not answer them makes no difference.

Of a trial's validations the fold needs the last one alone.

Invariant: folding the same records in any batches, with any restarts, gives the same.
"""

import math
from typing import Any, assert_never

from rung.events import Event, topic
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.events.checkpoint import (
    CheckpointDamaged,
    CheckpointDeleted,
    CheckpointPinned,
    CheckpointRetired,
    CheckpointStored,
)
from rung.events.experiment import (
    CancelRequested,
    ExperimentEnded,
    ExperimentPaused,
    ExperimentResumed,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
    ResumeRequested,
    SearchPlanned,
)
from rung.events.trial import (
    RunRequested,
    RunWithdrawn,
    TrialClosed,
    TrialExited,
    TrialPromoted,
    TrialRequested,
    TrialRestored,
    TrialStarted,
    TrialStopped,
    TrialValidated,
)
from rung.gateway.projections.experiment import (
    Action,
    Best,
    Checkpoint,
    Experiment,
    Submission,
    Trial,
    Validation,
)

_Request = (
    ExperimentSubmitted
    | PauseRequested
    | ResumeRequested
    | CancelRequested
    | KillRequested
    | CheckpointPinned
)
_OfExperiment = SearchPlanned | ExperimentPaused | ExperimentResumed | ExperimentEnded
_OfSearch = TrialPromoted | TrialStopped | TrialClosed | RunWithdrawn
_OfRun = (
    TrialStarted
    | TrialRestored
    | TrialValidated
    | TrialExited
    | AllocationLost
    | AllocationDropped
)
_OfCheckpoint = CheckpointStored | CheckpointDamaged | CheckpointRetired | CheckpointDeleted
Handles = (
    _Request | _OfExperiment | TrialRequested | RunRequested | _OfSearch | _OfRun | _OfCheckpoint
)
"""The events that are folded."""


def evolve(state: Experiment, event: Event) -> None:
    """Fold a fact or a decision; relayed copies of decisions are skipped."""
    data = event.data
    if event.topic == topic.EXPERIMENTS and data.TOPIC == topic.SEARCHES:
        return
    if isinstance(data, _Request):
        _request(state, event, data)
    elif isinstance(data, _OfExperiment):
        _evolve_experiment(state, event, data)
    elif isinstance(data, TrialRequested):
        assert data.index == len(state.trials), f"after {len(state.trials)} trials: {data}"
        state.trials.append(
            Trial(data.index, data.bracket, data.hparams, data.seed, parent=data.parent)
        )
    elif isinstance(data, RunRequested):
        _request_run(state, data)
    elif isinstance(data, _OfSearch):
        _evolve_search(state, data)
    elif isinstance(data, _OfRun):
        _evolve_run(state, event, data)
    elif isinstance(data, _OfCheckpoint):
        _evolve_checkpoint(state, event, data)


def _request(state: Experiment, event: Event, data: _Request) -> None:
    action: Action
    match data:
        case ExperimentSubmitted():
            action = "submit"
            if state.submission is None:
                state.submission = _submission(event, data)
        case PauseRequested():
            action = "pause"
            state.throughput.reset()
        case ResumeRequested():
            action = "resume"
            state.throughput.reset()
        case CancelRequested():
            action = "cancel"
            state.ending = state.ending or "cancel"
        case KillRequested():
            action = "kill"
            state.ending = "kill"
        case CheckpointPinned():
            action = "pin"
            checkpoint = state.checkpoints.get(data.checkpoint_id)
            if checkpoint is not None and data.by not in checkpoint.pinned_by:
                checkpoint.pinned_by.append(data.by)
        case _:
            assert_never(data)
    if event.origin is not None and event.origin.startswith("client/"):
        state.requests.setdefault(event.origin, action)


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
    )


def _evolve_experiment(state: Experiment, event: Event, data: _OfExperiment) -> None:
    match data:
        case SearchPlanned():
            state.method, state.plan = data.method, data.brackets
        case ExperimentPaused():
            state.paused = True
        case ExperimentResumed():
            state.paused = False
        case ExperimentEnded():
            state.ended, state.ended_at, state.reason = data.state, event.time, data.reason
        case _:
            assert_never(data)


def _request_run(state: Experiment, data: RunRequested) -> None:
    trial = state.trial(data.spec.trial_id)
    if trial is not None:
        trial.run, trial.length = max(trial.run, data.spec.run), data.spec.length


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
            trial.stopped = data.reason
        case TrialClosed():
            trial.closed, trial.reason = data.state, data.reason
            trial.restarts = data.restarts
        case _:
            assert_never(data)


def _evolve_run(state: Experiment, event: Event, data: _OfRun) -> None:
    trial = state.current(data.trial_id, data.run)
    if trial is None:
        return
    match data:
        case TrialStarted():
            trial.started = max(trial.started, data.run)
        case TrialRestored():
            trial.steps = max(trial.steps, data.steps_completed)
        case TrialValidated():
            _validate(state, trial, event, data)
        case TrialExited():
            if data.outcome == "failed" and not data.machine:
                trial.restarts += 1
            trial.over, trial.message = data.run, data.message or data.outcome
        case AllocationLost() | AllocationDropped():
            outcome = "lost" if isinstance(data, AllocationLost) else "dropped"
            trial.over, trial.message = data.run, data.reason or outcome
        case _:
            assert_never(data)


def _validate(state: Experiment, trial: Trial, event: Event, data: TrialValidated) -> None:
    submission = state.submission
    if submission is None:
        return
    time = _time_of(data, submission.time_metric)
    if trial.validations and time <= trial.validations[-1].time:
        return
    state.units += max(time, 0.0) - trial.time
    state.throughput.add(event.time, state.units)
    trial.validations.append(Validation(data.steps_completed, time, data.metrics))
    trial.steps = max(trial.steps, data.steps_completed)
    value = data.metrics.get(submission.metric)
    if value is None or isinstance(value, str) or not math.isfinite(value):
        return
    if trial.best is None or is_better(value, trial.best.value, submission.smaller_is_better):
        trial.best = Best(value, data.steps_completed)


def is_better(value: float, than: float, smaller_is_better: bool) -> bool:  # noqa: FBT001 - the field's name
    """Whether a metric's value is better than another."""
    return value < than if smaller_is_better else value > than


def _time_of(data: TrialValidated, time_metric: str) -> float:
    time = data.metrics.get(time_metric)
    if isinstance(time, int | float) and math.isfinite(time):
        return float(time)
    return float(data.steps_completed)


def _evolve_checkpoint(state: Experiment, event: Event, data: _OfCheckpoint) -> None:
    if isinstance(data, CheckpointStored):
        if data.checkpoint_id not in state.checkpoints:
            state.checkpoints[data.checkpoint_id] = _checkpoint(event, data)
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

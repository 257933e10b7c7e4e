"""Serializers of experiments, trials and checkpoints: records of the projection → of the API."""

from collections.abc import Sequence

from msgspec import structs

from rung import api
from rung.config.secret import hide, text_without
from rung.events.trial import MetricValue, trial_id_of
from rung.gateway.projections.experiment import (
    Best,
    Checkpoint,
    Experiment,
    Submission,
    Trial,
    phase_of,
    trial_phase,
)
from rung.gateway.projections.experiment_fold import is_better
from rung.gateway.serializers.progress import lengths_of, progress_of, rung_of

_Metrics = dict[int, dict[str, MetricValue]]
"""By step, the metrics of a trial's validation."""


def summary(experiment: Experiment, now: float) -> api.ExperimentSummary:
    """Return an experiment as a list shows it, at a time (Unix seconds)."""
    submission = submission_of(experiment)
    config = submission.config
    progress = progress_of(experiment, now)
    best = best_trial(experiment)
    return api.ExperimentSummary(
        id=experiment.id,
        name=str(config.get("name") or experiment.id),
        state=phase_of(experiment),
        method=experiment.method or str((config.get("searcher") or {}).get("name", "")),
        progress=progress.fraction,
        labels=[str(label) for label in config.get("labels") or []],
        workspace=str(config.get("workspace") or ""),
        project=str(config.get("project") or ""),
        submitted_at=submission.at,
        ended_at=experiment.ended_at,
        reason=experiment.reason,
        trial_count=len(experiment.trials),
        best=None if best is None else _best(experiment, submission, *best),
        units_trained=_number(progress.units_trained),
        units_full=None if progress.units_full is None else _number(progress.units_full),
        eta_seconds=progress.eta_seconds,
    )


def detail(experiment: Experiment, now: float) -> api.Experiment:
    """Return an experiment with all of its trials."""
    submission = submission_of(experiment)
    shown = summary(experiment, now)
    plan = None
    if experiment.method is not None:
        plan = api.Plan(
            method=experiment.method,
            time_metric=submission.time_metric,
            brackets=experiment.plan,
        )
    fields = structs.asdict(shown)
    config = hide(submission.config)
    plain = config is submission.config
    return api.Experiment(
        **fields,
        config=config,
        source=submission.source if plain else text_without(submission.source),
        code_digest=submission.code_digest,
        actor=submission.actor,
        plan=plan,
        trials=[trial(experiment, item) for item in experiment.trials],
    )


def submission_of(experiment: Experiment) -> Submission:
    """Return the submission of an experiment."""
    assert experiment.submission is not None, experiment.id
    return experiment.submission


def trial(experiment: Experiment, item: Trial) -> api.Trial:
    """Return one of an experiment's trials."""
    return api.Trial(
        id=trial_id_of(experiment.id, item.index),
        experiment_id=experiment.id,
        index=item.index,
        bracket=item.bracket,
        rung=rung_of(item, lengths_of(experiment, item.bracket)),
        state=trial_phase(experiment, item),
        hparams=item.hparams,
        seed=item.seed,
        parent=item.parent,
        run=item.run,
        restarts=item.restarts,
        length=item.length,
        units=_number(item.time),
        steps_completed=item.steps,
        validations=[
            api.Validation(steps=each.steps, metrics=each.metrics) for each in item.validations
        ],
        best=None if item.best is None else _best_value(item.best),
        reason=item.reason or item.stopped,
        message=item.message,
    )


def _best_value(best: Best) -> api.BestValue:
    return api.BestValue(value=best.value, steps=best.steps)


def trial_detail(experiment: Experiment, item: Trial) -> api.TrialDetail:
    """Return one of an experiment's trials with its checkpoints."""
    shown = trial(experiment, item)
    fields = structs.asdict(shown)
    left = checkpoints(experiment, checkpoints_of(experiment, shown.id))
    return api.TrialDetail(**fields, checkpoints=left)


def best_trial(experiment: Experiment) -> tuple[Trial, Best] | None:
    """Return the trial with the best value of the searcher's metric; of equal ones the first."""
    smaller = submission_of(experiment).smaller_is_better
    found: tuple[Trial, Best] | None = None
    for item in experiment.trials:
        if item.best is None:
            continue
        if found is None or is_better(item.best.value, found[1].value, smaller):
            found = item, item.best
    return found


def _best(
    experiment: Experiment, submission: Submission, item: Trial, best: Best
) -> api.BestTrial:
    return api.BestTrial(
        trial_id=trial_id_of(experiment.id, item.index),
        metric=submission.metric,
        value=best.value,
        steps=best.steps,
    )


def best(experiment: Experiment) -> api.BestAnswer | None:
    """Return an experiment's best trial and its checkpoint, None before the first validation."""
    found = best_trial(experiment)
    if found is None:
        return None
    item, value = found
    submission = submission_of(experiment)
    left = checkpoint_at(experiment, trial_id_of(experiment.id, item.index), value.steps)
    return api.BestAnswer(
        trial=trial(experiment, item),
        metric=submission.metric,
        smaller_is_better=submission.smaller_is_better,
        value=value.value,
        steps=value.steps,
        hparams=item.hparams,
        checkpoint=None if left is None else checkpoint(experiment, left),
    )


def checkpoint_at(experiment: Experiment, trial_id: str, steps: int | None) -> Checkpoint | None:
    """Return a trial's stored checkpoint of a step, else its newest one; of equals the later."""
    left = [
        item
        for item in experiment.checkpoints.values()
        if item.trial_id == trial_id and checkpoint_phase(item) == "stored"
    ]
    exact = [item for item in left if item.steps == steps]
    return max(exact or left, key=lambda item: (item.steps, item.stored_at), default=None)


def checkpoint_phase(item: Checkpoint) -> api.CheckpointPhase:
    """Return the state of a checkpoint in one word."""
    if item.deleted_at is not None:
        return "deleted"
    if item.retired is not None:
        return "retired"
    return "damaged" if item.damaged is not None else "stored"


def checkpoint(experiment: Experiment, item: Checkpoint) -> api.Checkpoint:
    """Return one of an experiment's checkpoints."""
    return _checkpoint(experiment, item, _metrics(experiment, item.trial_id))


def _checkpoint(experiment: Experiment, item: Checkpoint, metrics: _Metrics) -> api.Checkpoint:
    return api.Checkpoint(
        id=item.id,
        experiment_id=experiment.id,
        trial_id=item.trial_id,
        run=item.run,
        state=checkpoint_phase(item),
        steps_completed=item.steps,
        metrics=metrics.get(item.steps, {}),
        size_bytes=item.size_bytes,
        file_count=item.files,
        digest=item.digest,
        stored_at=item.stored_at,
        deleted_at=item.deleted_at,
        reason=item.damaged or item.retired,
        pinned_by=item.pinned_by,
    )


def checkpoints(experiment: Experiment, items: Sequence[Checkpoint]) -> list[api.Checkpoint]:
    """Return some of an experiment's checkpoints."""
    trials = dict.fromkeys(item.trial_id for item in items)
    metrics = {trial_id: _metrics(experiment, trial_id) for trial_id in trials}
    return [_checkpoint(experiment, item, metrics[item.trial_id]) for item in items]


def checkpoints_of(experiment: Experiment, trial_id: str) -> list[Checkpoint]:
    """Return the checkpoints of a trial, as they arrived."""
    return [item for item in experiment.checkpoints.values() if item.trial_id == trial_id]


def _metrics(experiment: Experiment, trial_id: str) -> _Metrics:
    """Return the newest validation of each step of a trial."""
    owner = experiment.trial(trial_id)
    return {each.steps: each.metrics for each in owner.validations} if owner else {}


def _number(value: float) -> float:
    """Return a whole number as an int, so that it is written without a fraction."""
    return int(value) if value.is_integer() else value

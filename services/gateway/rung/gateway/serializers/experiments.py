"""Serializers of experiments, trials and checkpoints: records of the projection → of the API."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from rung import api
from rung.config.secret import hide, text_without
from rung.config.sections.resources import PRIORITY
from rung.events.failure import Failure, by_frequency
from rung.events.trial import MetricValue, cost_of, trial_id_of
from rung.gateway.access.place import Names
from rung.gateway.projections.experiment import (
    Best,
    Checkpoint,
    Experiment,
    Submission,
    Trial,
    checkpoint_phase,
    phase_of,
    pool_of,
    resources_of,
    trial_phase,
)
from rung.gateway.projections.tally import TopTrial, at, lengths_of
from rung.gateway.serializers.progress import progress_of, rung_of
from rung.retention import nearness

_Metrics = dict[int, dict[str, MetricValue]]
"""By step, the metrics of a trial's validation."""


def summary(experiment: Experiment, left_s: float | None, names: Names) -> api.ExperimentSummary:
    """Return an experiment as a list shows it, with the time that is left to it if known."""
    place = names.place_of(experiment)
    submission = submission_of(experiment)
    config = submission.config
    progress = progress_of(experiment)
    best, tally = experiment.tally.best, experiment.tally
    return api.ExperimentSummary(
        id=experiment.id,
        name=name_of(experiment),
        state=phase_of(experiment),
        method=experiment.method or str((config.get("searcher") or {}).get("name", "")),
        progress=progress.fraction,
        labels=experiment.described.labels,
        workspace=names.workspace(place.workspace_id),
        project=names.project(place.project_id),
        submitted_at=submission.at,
        ended_at=experiment.ended_at,
        reason=experiment.reason,
        trial_count=tally.trials,
        best=None if best is None else _best(experiment, submission, best),
        units_trained=_number(progress.units_trained),
        units_full=None if progress.units_full is None else _number(progress.units_full),
        eta_seconds=left_s,
        failures=_failures(experiment.failures),
        late_failures=_failures(experiment.late_failures),
        checkpoint_count=tally.kept,
        checkpoint_bytes=tally.kept_bytes,
        archived=experiment.described.archived,
        workspace_id=place.workspace_id,
        project_id=place.project_id,
        owner=names.user(experiment.owner),
        owner_id=experiment.owner,
        restorable_until=None if experiment.hidden is None else experiment.hidden.until,
    )


def detail(experiment: Experiment, left_s: float | None, names: Names) -> api.Experiment:
    """Return an experiment with those of its trials that were read."""
    submission = submission_of(experiment)
    shown = summary(experiment, left_s, names)
    plan = None
    if experiment.method is not None:
        plan = api.Plan(
            method=experiment.method,
            time_metric=submission.time_metric,
            brackets=experiment.plan,
        )
    fields = structs.asdict(shown)
    config = hide(submission.config)
    plain = config is submission.config or bool(config.get("internal"))
    if config.get("internal"):
        config = {**config, "internal": None}
    return api.Experiment(
        **fields,
        config=config,
        source=submission.source if plain else text_without(submission.source),
        code_digest=submission.code_digest,
        actor=submission.actor,
        parent=submission.parent,
        plan=plan,
        trials=[trial(experiment, item) for item in experiment.trials],
        retention=retention(experiment),
        description=description_of(experiment),
        notes=experiment.described.notes,
        storage=submission.area,
        trial_states=dict(experiment.tally.phases),
        rungs=[
            api.Rungs(
                bracket=each.bracket,
                trials=(tally := experiment.tally.bracket(each.bracket)).trials,
                reached=[at(tally.reached, rung) for rung in range(len(each.lengths))],
            )
            for each in experiment.plan
        ],
        checkpoint_states=dict(experiment.tally.checkpoints),
    )


def name_of(experiment: Experiment) -> str:
    """Return the name of an experiment; its id where it has none."""
    name = experiment.described.name or submission_of(experiment).config.get("name")
    return str(name or experiment.id)


def description_of(experiment: Experiment) -> str:
    """Return what is said of an experiment."""
    if experiment.described.description is not None:
        return experiment.described.description
    return str(submission_of(experiment).config.get("description") or "")


def description(experiment: Experiment) -> api.Description:
    """Return what an experiment is called and filed under."""
    return api.Description(
        experiment_id=experiment.id,
        name=name_of(experiment),
        description=description_of(experiment),
        labels=experiment.described.labels,
        notes=experiment.described.notes,
        archived=experiment.described.archived,
        version=experiment.described.version,
    )


def resources(experiment: Experiment) -> api.Resources:
    """Return what an experiment may have of a pool."""
    found = resources_of(experiment, submission_of(experiment).config)
    return api.Resources(
        experiment_id=experiment.id,
        pool=pool_of(experiment),
        priority=found.get("priority") or PRIORITY,
        weight=found.get("weight") or 1.0,
        max_slots=found.get("max_slots"),
        max_slot_hours=found.get("max_slot_hours"),
        slots_per_trial=slots_of(found),
        version=experiment.resources.version,
    )


def slots_of(resources: dict[str, Any]) -> int:
    """Return how many slots a trial has, by the section `resources`."""
    wanted = resources.get("slots_per_trial")
    return wanted if isinstance(wanted, int) else 1


def retention(experiment: Experiment) -> api.Retention:
    """Return which checkpoints an experiment keeps: as submitted, or as changed since."""
    if experiment.retention is not None:
        return experiment.retention
    storage = submission_of(experiment).config.get("checkpoint_storage") or {}
    return api.Retention(
        save_experiment_best=storage.get("save_experiment_best", 0),
        save_trial_best=storage.get("save_trial_best", 1),
        save_trial_latest=storage.get("save_trial_latest", 1),
    )


def submission_of(experiment: Experiment) -> Submission:
    """Return the submission of an experiment."""
    assert experiment.submission is not None, experiment.id
    return experiment.submission


def _failures(found: Mapping[str, Failure]) -> list[api.Failure]:
    return [
        api.Failure(
            cause=each.cause,
            trials=each.trials,
            trial_id=each.trial_id,
            logs=f"/api/v1/trials/{each.trial_id}/logs",
        )
        for each in by_frequency(found)
    ]


def trial(experiment: Experiment, item: Trial) -> api.Trial:
    """Return one of an experiment's trials."""
    return api.Trial(
        id=trial_id_of(experiment.id, item.index),
        experiment_id=experiment.id,
        index=item.index,
        bracket=item.bracket,
        rung=rung_of(item, lengths_of(experiment.plan, item.bracket)),
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
        reason=_reason(item),
        message=item.message,
        status=item.status,
        progress=item.progress,
        metadata=item.metadata,
    )


def _reason(item: Trial) -> str | None:
    """Return why a trial is closed or stopped, and how its script failed after it was trained."""
    reason = item.reason or item.stopped
    if reason and item.late_failure:
        return f"{reason}; its script failed after that: {item.late_failure}"
    return reason


def _best_value(best: Best) -> api.BestValue:
    return api.BestValue(value=best.value, steps=best.steps)


def trial_detail(experiment: Experiment, item: Trial) -> api.TrialDetail:
    """Return one of an experiment's trials with its checkpoints."""
    shown = trial(experiment, item)
    fields = structs.asdict(shown)
    left = checkpoints(experiment, checkpoints_of(experiment, shown.id))
    best, note = best_checkpoint(experiment, item)
    return api.TrialDetail(
        **fields,
        checkpoints=left,
        best_checkpoint_id=None if best is None else best.id,
        best_checkpoint_note=note,
    )


def _best(experiment: Experiment, submission: Submission, best: TopTrial) -> api.BestTrial:
    return api.BestTrial(
        trial_id=trial_id_of(experiment.id, best.index),
        metric=submission.metric,
        value=best.value,
        steps=best.steps,
    )


def best(experiment: Experiment) -> api.BestAnswer | None:
    """Return an experiment's best trial and its checkpoint, None before the first validation."""
    value = experiment.tally.best
    if value is None:
        return None
    item = experiment.trials[value.index]
    submission = submission_of(experiment)
    left, note = best_checkpoint(experiment, item)
    shown = None if left is None else checkpoint(experiment, left)
    return api.BestAnswer(
        trial=trial(experiment, item),
        metric=submission.metric,
        smaller_is_better=submission.smaller_is_better,
        value=value.value,
        steps=value.steps,
        hparams=item.hparams,
        checkpoint=shown,
        checkpoint_value=None if shown is None else shown.metrics.get(submission.metric),
        checkpoint_note=note,
    )


def best_checkpoint(experiment: Experiment, item: Trial) -> tuple[Checkpoint | None, str | None]:
    """Return the checkpoint of a trial to continue with, as retention ranks them.

    That of the best validation; else the best that is left; else, where none has a value, the
    nearest to the best validation; without any validation the newest.

    Returns:
        None if none is stored, and a note where it is not that of the best validation.
    """
    stored = _stored(experiment, trial_id_of(experiment.id, item.index))
    if not stored:
        return None, None
    metric = submission_of(experiment).metric
    if item.best is None:
        newest = _newest(stored)
        return newest, f"the newest, of step {newest.steps}: {metric} has no finite value yet"
    best, costs = item.best.steps, costs_of(experiment, item)
    if exact := [each for each in stored if each.steps == best]:
        return _newest(exact), None
    gone = f"there is none of step {best}, which has the best value"
    if ranked := [each for each in stored if each.id in costs]:
        found = min(ranked, key=lambda each: (costs[each.id], each.steps))
        value = _metrics(experiment, found.trial_id)[found.steps][metric]
        return (
            found,
            f"the best that is left, of step {found.steps}, with {metric} {value:.6g}; {gone}",
        )
    found = min(stored[::-1], key=lambda each: nearness(each.steps, best))
    return found, f"the nearest, of step {found.steps}, where {metric} has no value; {gone}"


def what_it_is(experiment: Experiment, checkpoint: Checkpoint) -> str | None:
    """Return what a stored checkpoint is to its trial: the only one, or the best; or None."""
    item, stored = experiment.trial(checkpoint.trial_id), _stored(experiment, checkpoint.trial_id)
    if item is None or checkpoint not in stored:
        return None
    top = experiment.tally.best
    whose = "the best trial" if top is not None and top.index == item.index else "its trial"
    if len(stored) == 1:
        return f"the only one of {whose}: nothing can start from that trial then"
    best, _ = best_checkpoint(experiment, item)
    return f"the best one of {whose}" if best is checkpoint and item.best is not None else None


def costs_of(experiment: Experiment, item: Trial) -> dict[str, float]:
    """Return the searcher's metric at each checkpoint of a trial where it is finite.

    The lower the better: negated where larger is better.
    """
    submission = submission_of(experiment)
    smaller = submission.smaller_is_better
    values = {each.steps: each.metrics.get(submission.metric) for each in item.validations}
    return {
        each.id: cost
        for each in checkpoints_of(experiment, trial_id_of(experiment.id, item.index))
        if (cost := cost_of(values.get(each.steps), smaller_is_better=smaller)) is not None
    }


def newest_checkpoint(experiment: Experiment, trial_id: str) -> Checkpoint | None:
    """Return a trial's newest stored checkpoint, None if it has none."""
    stored = _stored(experiment, trial_id)
    return _newest(stored) if stored else None


def _stored(experiment: Experiment, trial_id: str) -> list[Checkpoint]:
    return [
        each for each in checkpoints_of(experiment, trial_id) if checkpoint_phase(each) == "stored"
    ]


def _newest(stored: list[Checkpoint]) -> Checkpoint:
    """Return the one with the most steps, of equals the later."""
    return max(stored, key=lambda each: (each.steps, each.stored_at))


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

"""Deleting experiments and checkpoints, and changing which checkpoints an experiment keeps.

The answer means that the request is on record; checkpoint-gc decides what follows from it. What
something still depends on is refused here; checkpoint-gc refuses it once more, in silence, where
the dependence came in between.

An experiment is hidden first, and deleted once the delay of the installation is over; until then
it can be restored. Single checkpoints are deleted at once.
"""

import contextlib
import time
from collections.abc import Iterable
from heapq import nsmallest
from typing import Annotated, Final, NamedTuple

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from rung import api
from rung.events import RungError
from rung.events.checkpoint import CheckpointDeletionRequested
from rung.events.experiment import DeletionRequested, RestorationRequested, RetentionChanged
from rung.events.metric import EVER_MS
from rung.events.trial import trial_id_of
from rung.gateway.access.authorization import Access, access_of
from rung.gateway.context import (
    Context,
    check_caught_up,
    checkpoint_of,
    context_of,
    experiment_of,
    gone,
    reply,
    show_pins,
)
from rung.gateway.directory.state import holders
from rung.gateway.problem import Problem
from rung.gateway.projections.experiment import (
    Checkpoint,
    Experiment,
    checkpoint_phase,
    phase_of,
)
from rung.gateway.projections.experiment_fold import retention_text
from rung.gateway.projections.experiments import (
    ALL,
    ExperimentProjection,
    Visible,
    shares_code,
)
from rung.gateway.requests.json_body import record_of
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.requests.upload import read_body
from rung.gateway.requests.writes import is_repeated_of, key_of, once, stamp, write
from rung.gateway.route import Body, Route
from rung.gateway.serializers import experiments as serializers
from rung.gateway.timestamp import timestamp
from rung.methods.table import options_named
from rung.retention import Checkpoint as Kept
from rung.retention import Policy, restorable, unwanted

_BYTES_MAX: Final = 4_096
_NAMED_MAX: Final = 5_000
"""How many checkpoints one event names."""


class DryRunQuery(Struct, forbid_unknown_fields=True):
    """Whether to change something."""

    dry_run: Annotated[bool, Meta(description="only return what would be deleted")] = False


class DeletionQuery(DryRunQuery, forbid_unknown_fields=True):
    """Whether to delete a checkpoint, and despite what."""

    force: Annotated[
        bool, Meta(description="also if experiments that have ended started from it")
    ] = False


class ExperimentDeletionQuery(DeletionQuery, forbid_unknown_fields=True):
    """Whether to delete an experiment, when, and despite what."""

    now: Annotated[
        bool, Meta(description="at once, also one that could be restored: nothing brings it back")
    ] = False


class _Needs(NamedTuple):
    """What started from checkpoints."""

    dependents: list[api.Dependent]
    pins: list[str]
    """Ids of all experiments that ever named them."""
    unknown: list[str]
    """Those of them that are not on record: not yet, or because their submission failed."""
    hidden: list[str]
    """The states of those that the principal does not see."""
    sees_all: bool
    """Whether it sees all experiments."""


async def delete_experiment(request: web.Request) -> web.StreamResponse:
    """Delete an experiment that has ended."""
    query = read_query(request, ExperimentDeletionQuery)
    context, key = context_of(request), key_of(request)
    async with once(context, key):
        experiment = await experiment_of(request, deleted=True)
        answer = await delete(
            context,
            key,
            experiment,
            access_of(request),
            force=query.force,
            dry_run=query.dry_run,
            now=query.now,
        )
    return reply(answer, status=202)


async def restore_experiment(request: web.Request) -> web.StreamResponse:
    """Take the deletion of an experiment back."""
    read_query(request, NoQuery)
    context, key = context_of(request), key_of(request)
    async with once(context, key):
        experiment = await experiment_of(request, deleted=True)
        await restore(context, key, experiment)
    return reply(api.Requested(experiment_id=experiment.id, requested="restore"), status=202)


async def restore(context: Context, key: str | None, experiment: Experiment) -> None:
    """Put the restoration of an experiment on record, unless its key shows that it is there.

    Raises:
        Problem: it is not deleted, or for good.
    """
    if await is_repeated_of(context, key, experiment, "restore"):
        return
    if experiment.deletion is not None:
        raise gone(experiment.id, experiment.deletion)
    if experiment.hidden is None:
        check_caught_up(context.models)
        detail = f"experiment {experiment.id} is not deleted; there is nothing to take back"
        raise Problem(409, "not-deleted", detail)
    fact = RestorationRequested(experiment_id=experiment.id)
    await write(context, [stamp(context, key, fact)])


async def delete(  # noqa: PLR0913 - what a deletion consists of
    context: Context,
    key: str | None,
    experiment: Experiment,
    access: Access,
    *,
    force: bool,
    dry_run: bool,
    now: bool,
) -> api.ExperimentDeletion:
    """Put the deletion of an experiment on record, unless its key shows that it is there.

    Args:
        context: of the request.
        key: of the request.
        experiment: that is to be deleted.
        access: of the user who asks; problems name only what it may see.
        force: also if experiments that have ended started from it.
        dry_run: only return what would be deleted.
        now: at once, so that nothing brings it back.

    Raises:
        Problem: it has not ended, or is deleted, or something depends on it.
    """
    repeated = await is_repeated_of(context, key, experiment, "delete")
    if not repeated:
        if experiment.deletion is not None:
            raise gone(experiment.id, experiment.deletion)
        if experiment.hidden is not None and not now:
            raise gone(experiment.id, experiment.hidden)
    check_caught_up(context.models)
    if experiment.ended is None:
        phase = phase_of(experiment)
        detail = f"experiment {experiment.id} has not ended ({phase}); cancel or kill it first"
        raise Problem(409, "not-ended", detail)
    seen = access.seen
    needs = await _needs(context, experiment, experiment.checkpoints.values(), seen)
    answer = await _experiment_deletion(context, experiment, needs, seen, dry_run=dry_run)
    delay_s = 0.0 if now else context.settings.deletion_delay
    until_ms = round((time.time() + delay_s) * 1000) if delay_s else None
    if repeated and experiment.hidden is not None:
        until_ms = experiment.hidden.until_ms
    answer.restorable_until = None if until_ms is None else timestamp(until_ms)
    if not (dry_run or repeated):
        _check_versions(access, f"experiment {experiment.id}", experiment.id)
        _check_needs(f"experiment {experiment.id}", needs, force=force)
        fact = DeletionRequested(
            experiment_id=experiment.id,
            trials=len(experiment.trials),
            despite=needs.pins,
            until_ms=until_ms,
            area=serializers.submission_of(experiment).area,
        )
        await write(context, [stamp(context, key, fact)])
    return answer


async def delete_checkpoint(request: web.Request) -> web.StreamResponse:
    """Delete a checkpoint that no trial may resume from any more."""
    query = read_query(request, DeletionQuery)
    context, key = context_of(request), key_of(request)
    async with once(context, key):
        experiment, found = await checkpoint_of(request)
        action = f"delete checkpoint {found.id} of"
        repeated = await is_repeated_of(context, key, experiment, action)
        needs = await _needs(context, experiment, [found], access_of(request).seen)
        if not repeated:
            check_caught_up(context.models)
            _check_unneeded(experiment, found)
        if not (query.dry_run or repeated):
            _check_versions(access_of(request), f"checkpoint {found.id}", experiment.id, found.id)
            _check_needs(f"checkpoint {found.id}", needs, force=query.force)
            fact = CheckpointDeletionRequested(
                experiment_id=experiment.id,
                trial_id=found.trial_id,
                checkpoint_id=found.id,
                despite=needs.pins,
                area=serializers.submission_of(experiment).area,
            )
            await write(context, [stamp(context, key, fact)])
    shown = serializers.checkpoint(experiment, found)
    await show_pins(request, shown)
    answer = api.CheckpointDeletion(
        checkpoint=shown,
        dry_run=query.dry_run,
        dependents=needs.dependents,
        note=serializers.what_it_is(experiment, found),
    )
    return reply(answer, status=202)


async def change_retention(request: web.Request) -> web.StreamResponse:
    """Change which checkpoints an experiment keeps."""
    query = read_query(request, DryRunQuery)
    context, key = context_of(request), key_of(request)
    wanted = record_of(
        await read_body(request, _BYTES_MAX), api.RetentionWanted, "invalid-retention"
    )
    async with once(context, key):
        experiment = await experiment_of(request, validations=ALL)
        answer = await retain(context, key, experiment, wanted, dry_run=query.dry_run)
    await show_pins(request, *answer.items)
    return reply(answer, status=202)


async def retain(
    context: Context,
    key: str | None,
    experiment: Experiment,
    wanted: api.RetentionWanted,
    *,
    dry_run: bool,
) -> api.RetentionAnswer:
    """Put a change of the retention on record, unless its key shows that it is there.

    Args:
        context: of the request.
        key: of the request.
        experiment: with all its validations.
        wanted: what is to be kept.
        dry_run: only return what would be deleted.
    """
    before = serializers.retention(experiment)
    kept = {it.checkpoint_id for it in holders(context.directory.state, experiment.id)}
    given = msgspec.structs.asdict(wanted).items()
    after = msgspec.structs.replace(
        before, **{name: value for name, value in given if value is not None}
    )
    found = [it for it in superfluous(experiment, after) if it.id not in kept]
    facts = _retention_facts(experiment, after, found)
    if not await is_repeated_of(context, key, experiment, retention_text(facts[0])):
        check_caught_up(context.models)
        if not dry_run:
            stamped = [
                stamp(context, key, fact, number=number) for number, fact in enumerate(facts, 1)
            ]
            await write(context, stamped)
    return api.RetentionAnswer(
        experiment_id=experiment.id,
        dry_run=dry_run,
        before=before,
        after=after,
        items=serializers.checkpoints(experiment, found),
        size_bytes=sum(each.size_bytes for each in found),
    )


async def _needs(
    context: Context,
    experiment: Experiment,
    checkpoints: Iterable[Checkpoint],
    seen: Visible,
) -> _Needs:
    needs = _Needs([], [], [], [], sees_all=seen is None)
    for found in checkpoints:
        for by in found.pinned_by:
            needs.pins.append(by)
            other = await context.models.experiment(by, validations=None)
            if other is None:
                needs.unknown.append(by)
            elif other.deletion is not None or other.id == experiment.id:
                continue
            elif seen is not None and other.project_id not in seen:
                needs.hidden.append(phase_of(other))
            else:
                needs.dependents.append(
                    api.Dependent(
                        experiment_id=by,
                        name=serializers.name_of(other),
                        state=phase_of(other),
                        checkpoint_id=found.id,
                    )
                )
    return needs._replace(pins=list(dict.fromkeys(needs.pins)))


def _check_versions(
    access: Access, what: str, experiment_id: str, checkpoint_id: str | None = None
) -> None:
    """Refuse to delete what versions of models are.

    Raises:
        Problem: a version is, which is named to who sees its model.
    """
    state = access.directory.state
    found = [
        (state.models[it.model_id], it) for it in holders(state, experiment_id, checkpoint_id)
    ]
    for model, version in found:
        if access.may("model.view", model.workspace_id):
            place = state.workspaces[model.workspace_id].name
            detail = (
                f"{what} is in use: checkpoint {version.checkpoint_id} is version"
                f" {version.number} of model {model.name} of workspace {place}; delete that"
                " version first"
            )
            raise Problem(409, "in-use", detail)
    if found:
        detail = f"{what} is in use, and is kept as long as a version of a model needs it"
        raise Problem(409, "in-use", detail)


def _check_needs(what: str, needs: _Needs, *, force: bool) -> None:
    """Refuse to delete what other experiments start from.

    Raises:
        Problem: one of them has not ended; or one has, and `force` is not given.
    """
    for each in needs.dependents:
        if each.state not in api.ENDED:
            detail = (
                f"{what} is in use: experiment {each.experiment_id} ({each.state}) starts from"
                f" checkpoint {each.checkpoint_id}; wait until it has ended, or cancel it first"
            )
            raise Problem(409, "in-use", detail)
    if any(state not in api.ENDED for state in needs.hidden):
        raise Problem(409, "in-use", f"{what} is in use, and is kept until that has ended")
    if force:
        return
    if needs.unknown:
        user = f"experiment {needs.unknown[0]}," if needs.sees_all else "an experiment"
        detail = (
            f"{what} is in use: {user} which starts from it, is being"
            " submitted, or its submission failed; in the latter case `--force` (`force=true`)"
            " deletes it all the same"
        )
        raise Problem(409, "in-use", detail)
    if needs.dependents:
        names = ", ".join(dict.fromkeys(each.experiment_id for each in needs.dependents))
        detail = (
            f"experiments that have ended started from {what}: {names}; `--force` (`force=true`)"
            " deletes it all the same, and then they cannot be repeated"
        )
        raise Problem(409, "has-dependents", detail)
    if needs.hidden:
        detail = f"{what} was used; `--force` (`force=true`) deletes it all the same"
        raise Problem(409, "has-dependents", detail)


def _check_unneeded(experiment: Experiment, found: Checkpoint) -> None:
    """Refuse to delete a checkpoint that the experiment's own trials may start from.

    Raises:
        Problem: they may; or it is deleted already.
    """
    phase = checkpoint_phase(found)
    if phase in {"deleted", "retired"}:
        is_ = "is deleted" if phase == "deleted" else "is being deleted"
        raise Problem(
            410, "gone", f"checkpoint {found.id} {is_}: {found.retired or found.damaged}"
        )
    if experiment.ended is None and _shares(experiment):
        detail = (
            f"trials of experiment {experiment.id} start from each other's checkpoints, which are"
            " kept until it has ended; cancel it first"
        )
        raise Problem(409, "in-use", detail)
    trial = experiment.trial(found.trial_id)
    if trial is not None and trial.closed is None:
        kept = _kept(experiment, trial.index, {})
        if found.id in restorable(kept):
            detail = (
                f"trial {found.trial_id} may resume from checkpoint {found.id}, one of its newest"
                " two; it can be deleted once newer ones are stored, or the trial has ended"
            )
            raise Problem(409, "in-use", detail)


def _shares(experiment: Experiment) -> bool:
    """Return whether trials start from the checkpoints of others."""
    config = serializers.submission_of(experiment).config
    method = options_named((config.get("searcher") or {}).get("name"))
    return method is not None and method.SHARES


async def _experiment_deletion(
    context: Context, experiment: Experiment, needs: _Needs, seen: Visible, *, dry_run: bool
) -> api.ExperimentDeletion:
    count, size = experiment.tally.kept, experiment.tally.kept_bytes
    lines = None
    if context.parts.series is not None:
        with contextlib.suppress(RungError):  # they are away, and are deleted later
            lines = await context.parts.series.log_sizes(experiment.id, EVER_MS)
    shared = await context.models.read(ExperimentProjection, shares_code, experiment.id, seen)
    return api.ExperimentDeletion(
        experiment_id=experiment.id,
        name=serializers.name_of(experiment),
        state=phase_of(experiment),
        dry_run=dry_run,
        trial_count=len(experiment.trials),
        checkpoint_count=count,
        checkpoint_bytes=size,
        log_lines=None if lines is None else sum(each.lines for each in lines),
        log_bytes=None if lines is None else sum(each.size_bytes for each in lines),
        code_shared=shared,
        dependents=needs.dependents,
    )


def _retention_facts(
    experiment: Experiment, after: api.Retention, found: list[Checkpoint]
) -> list[RetentionChanged]:
    """Return the change as events, each of which names a part of what is superfluous."""
    named = [(each.id, each.trial_id) for each in found]
    return [
        RetentionChanged(
            experiment_id=experiment.id,
            save_experiment_best=after.save_experiment_best,
            save_trial_best=after.save_trial_best,
            save_trial_latest=after.save_trial_latest,
            superfluous=dict(named[start : start + _NAMED_MAX]),
            area=serializers.submission_of(experiment).area,
        )
        for start in range(0, len(named) or 1, _NAMED_MAX)
    ]


def superfluous(experiment: Experiment, wanted: api.Retention) -> list[Checkpoint]:
    """Return the checkpoints that a retention does not keep, none where the search holds all.

    It is what checkpoint-gc retires upon the change, if nothing comes in between; of a search that
    has not ended, if runs that were restarted report at a step what the runs before them did.

    Args:
        experiment: with all its validations.
        wanted: the numbers that are to hold.
    """
    if experiment.ended is None and _shares(experiment):
        return []
    submission = serializers.submission_of(experiment)
    policy = Policy(
        metric=submission.metric,
        experiment_best=wanted.save_experiment_best,
        trial_best=wanted.save_trial_best,
        trial_latest=wanted.save_trial_latest,
    )
    trials = [
        (trial, _kept(experiment, trial.index, serializers.costs_of(experiment, trial)))
        for trial in experiment.trials
    ]
    ranks = [
        rank
        for _, kept in trials
        for name, found in kept.items()
        if (rank := found.rank(name)) is not None
    ]
    best = {name for _, _, name in nsmallest(policy.experiment_best, ranks)}
    return [
        experiment.checkpoints[name]
        for trial, kept in trials
        for name, _ in unwanted(
            policy,
            kept,
            best,
            ended=trial.closed is not None,
            best_steps=None if trial.best is None else trial.best.steps,
        )
        if not experiment.checkpoints[name].pinned_by
    ]


def _kept(experiment: Experiment, index: int, costs: dict[str, float]) -> dict[str, Kept]:
    """Return the checkpoints of a trial that are there, as the rules of retention take them."""
    found = serializers.checkpoints_of(experiment, trial_id_of(experiment.id, index))
    return {
        each.id: Kept(
            run=each.run,
            steps=each.steps,
            arrival=number,
            late=each.late,
            cost=costs.get(each.id),
            damaged=each.damaged,
        )
        for number, each in enumerate(found)
        if each.retired is None and each.deleted_at is None
    }


ROUTES: Final = (
    Route(
        "POST",
        "/experiments/{experiment_id}/delete",
        delete_experiment,
        "Delete an experiment that has ended",
        api.ExperimentDeletion,
        status=202,
        query=ExperimentDeletionQuery,
        idempotent=True,
        problems=(404, 409, 422),
        needs="experiment.delete",
    ),
    Route(
        "POST",
        "/experiments/{experiment_id}/restore",
        restore_experiment,
        "Take the deletion of an experiment back",
        api.Requested,
        status=202,
        idempotent=True,
        problems=(404, 409, 410, 422),
        needs="experiment.delete",
    ),
    Route(
        "POST",
        "/experiments/{experiment_id}/retention",
        change_retention,
        "Change which checkpoints an experiment keeps",
        api.RetentionAnswer,
        status=202,
        query=DryRunQuery,
        body=Body("application/json", record=api.RetentionWanted),
        idempotent=True,
        problems=(404, 409, 413, 422),
        needs="experiment.edit",
    ),
    Route(
        "POST",
        "/checkpoints/{checkpoint_id}/delete",
        delete_checkpoint,
        "Delete a checkpoint",
        api.CheckpointDeletion,
        status=202,
        query=DeletionQuery,
        idempotent=True,
        problems=(404, 409, 422),
        needs="checkpoint.delete",
    ),
)

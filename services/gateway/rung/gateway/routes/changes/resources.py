"""What an experiment may have of a resource pool: the pool, priority, weight, and limits.

A change is a request on record that the searcher answers: runs that wait or train have the new
values at once, and so have all later ones. With `If-Match` a request names the version that its
author saw; where another one came first, searcher and projection pass over it alike, and the
answer is 412. What could never be placed is refused, and what the policies of its workspace do not
allow.
"""

from typing import Final

from aiohttp import web

from rung import api
from rung.api import ProblemItem
from rung.events.experiment import ResourcesRequested
from rung.gateway.context import Context, check_caught_up, context_of, experiment_of, reply
from rung.gateway.experiment_file.policies import check_resources
from rung.gateway.feasibility import known_shortage
from rung.gateway.problem import Problem
from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.experiment_fold import resources_text
from rung.gateway.requests.json_body import record_of
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.requests.upload import read_body
from rung.gateway.requests.version import changed, etag, version_of
from rung.gateway.requests.writes import (
    is_repeated_of,
    key_of,
    once,
    pool_upgrade,
    stamp,
    write,
)
from rung.gateway.route import Body, Route
from rung.gateway.routes.changes.control import check_phase
from rung.gateway.serializers import experiments as serializers

_BYTES_MAX: Final = 4_096


async def show_resources(request: web.Request) -> web.Response:
    """Show what an experiment may have of a pool, with its version as the ETag."""
    read_query(request, NoQuery)
    return _reply(await experiment_of(request))


async def change_resources(request: web.Request) -> web.Response:
    """Change what an experiment may have of a pool."""
    read_query(request, NoQuery)
    context, key = context_of(request), key_of(request)
    wanted = record_of(
        await read_body(request, _BYTES_MAX), api.ResourcesWanted, "invalid-resources"
    )
    async with once(context, key):
        experiment = await experiment_of(request)
        version = version_of(request, f"…/{experiment.id}/resources")
        await set_resources(context, key, experiment, wanted, version)
        experiment = await experiment_of(request)
    return _reply(experiment)


async def set_resources(
    context: Context,
    key: str | None,
    experiment: Experiment,
    wanted: api.ResourcesWanted,
    version: int | None = None,
) -> None:
    """Put a change on record, unless its key shows that it is there.

    Raises:
        Problem: it cannot be, or another one came first.
    """
    fact = ResourcesRequested(
        experiment_id=experiment.id,
        pool=wanted.pool,
        priority=wanted.priority,
        weight=wanted.weight,
        max_slots=wanted.max_slots,
        max_slot_hours=wanted.max_slot_hours,
        version=version,
    )
    if await is_repeated_of(context, key, experiment, resources_text(fact)):
        return
    check_caught_up(context.models)
    check_phase(experiment, "given other resources")
    _check(context, experiment, wanted)
    check_resources(context, experiment, wanted)
    if version not in {None, experiment.resources.version}:
        raise _changed(experiment)
    upgrade = []
    if wanted.pool is not None:
        upgrade = pool_upgrade(context, wanted.pool, await context.level.read())
    event = stamp(context, key, fact)
    await write(context, [*upgrade, event])
    if version is not None:
        found = await context.models.experiment(experiment.id, validations=None)
        if found is not None and event.id not in found.resources.changes:
            raise _changed(found)


def _check(context: Context, experiment: Experiment, wanted: api.ResourcesWanted) -> None:
    """Refuse what would never be placed.

    Raises:
        Problem: why not.
    """
    now = serializers.resources(experiment)
    if wanted.max_slots and wanted.max_slots < now.slots_per_trial:
        text = (
            f"must be at least slots_per_trial ({now.slots_per_trial}), or no trial could ever"
            " start; 0 is no limit"
        )
        raise _invalid("max_slots", text)
    if wanted.pool is None or wanted.pool == now.pool:
        return
    if not wanted.pool.isprintable():
        raise _invalid("pool", "must be printable characters")
    lack = known_shortage(context.models, wanted.pool, now.slots_per_trial)
    if lack is not None:
        detail = f"experiment {experiment.id} stays in pool {now.pool}: {lack}"
        raise Problem(409, "cannot-be-placed", detail)


def _reply(experiment: Experiment) -> web.Response:
    found = serializers.resources(experiment)
    return reply(found, ETag=etag(found.version))


def _invalid(path: str, text: str) -> Problem:
    items = [ProblemItem(path=path, message=text)]
    return Problem(422, "invalid-resources", f"{path}: {text}", errors=items)


def _changed(experiment: Experiment) -> Problem:
    what = f"the resources of experiment {experiment.id}"
    return changed(what, experiment.resources.version)


ROUTES: Final = (
    Route(
        "GET",
        "/experiments/{experiment_id}/resources",
        show_resources,
        "What an experiment may have of a resource pool",
        api.Resources,
        problems=(404, 409),
        needs="experiment.view",
    ),
    Route(
        "POST",
        "/experiments/{experiment_id}/resources",
        change_resources,
        "Change an experiment's pool, priority, weight or limits while it runs",
        api.Resources,
        body=Body("application/json", record=api.ResourcesWanted),
        idempotent=True,
        problems=(404, 409, 412, 413, 422),
        needs="experiment.spend",
    ),
)

"""What an experiment is called and filed under: name, description, labels, notes, archived.

A change is a fact that the projection folds, and nothing is decided by it. With `If-Match` it
names the version that its author saw; where another change came first the fold passes over it, on
every replica alike, and the answer is 412.
"""

from typing import Final

from aiohttp import web

from rung import api
from rung.events.experiment import DescriptionChanged
from rung.gateway.context import Context, context_of, experiment_of, reply
from rung.gateway.problem import Problem
from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.experiment_fold import description_text
from rung.gateway.requests.json_body import record_of
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.requests.upload import read_body
from rung.gateway.requests.version import changed, etag, version_of
from rung.gateway.requests.writes import is_repeated_of, key_of, once, stamp, write
from rung.gateway.route import Body, Route
from rung.gateway.serializers import experiments as serializers

_BYTES_MAX: Final = 500_000


async def show_description(request: web.Request) -> web.Response:
    """Show what an experiment is called and filed under, with its version as the ETag."""
    read_query(request, NoQuery)
    return _reply(await experiment_of(request))


async def change_description(request: web.Request) -> web.Response:
    """Change what an experiment is called and filed under."""
    read_query(request, NoQuery)
    context, key = context_of(request), key_of(request)
    wanted = record_of(
        await read_body(request, _BYTES_MAX), api.DescriptionWanted, "invalid-description"
    )
    async with once(context, key):
        experiment = await experiment_of(request)
        version = version_of(request, f"…/{experiment.id}/description")
        await describe(context, key, experiment, wanted, version)
        experiment = await experiment_of(request)
    return _reply(experiment)


async def describe(
    context: Context,
    key: str | None,
    experiment: Experiment,
    wanted: api.DescriptionWanted,
    version: int | None = None,
) -> None:
    """Put a change on record, unless its key shows that it is there.

    Raises:
        Problem: another one came first.
    """
    fact = DescriptionChanged(
        experiment_id=experiment.id,
        name=wanted.name,
        description=wanted.description,
        labels=wanted.labels,
        add_labels=wanted.add_labels,
        remove_labels=wanted.remove_labels,
        notes=wanted.notes,
        archived=wanted.archived,
        version=version,
    )
    if await is_repeated_of(context, key, experiment, description_text(fact)):
        return
    if version not in {None, experiment.described.version}:
        raise _changed(experiment)
    event = stamp(context, key, fact)
    await write(context, [event])
    if version is not None:
        found = await context.models.experiment(experiment.id, validations=None)
        if found is not None and event.id not in found.described.changes:
            raise _changed(found)


def _reply(experiment: Experiment) -> web.Response:
    found = serializers.description(experiment)
    return reply(found, ETag=etag(found.version))


def _changed(experiment: Experiment) -> Problem:
    what = f"the description of experiment {experiment.id}"
    return changed(what, experiment.described.version)


ROUTES: Final = (
    Route(
        "GET",
        "/experiments/{experiment_id}/description",
        show_description,
        "What an experiment is called and filed under",
        api.Description,
        problems=(404, 409),
        needs="experiment.view",
    ),
    Route(
        "POST",
        "/experiments/{experiment_id}/description",
        change_description,
        "Change what an experiment is called and filed under",
        api.Description,
        body=Body("application/json", record=api.DescriptionWanted),
        idempotent=True,
        problems=(404, 409, 412, 413, 422),
        needs="experiment.edit",
    ),
)

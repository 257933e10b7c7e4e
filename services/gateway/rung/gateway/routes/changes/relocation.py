"""Moving an experiment to another workspace, or to another project of its own.

The answer means that the move is on record: from then on the rights in its new workspace hold.
What it runs goes on as it was submitted.
"""

from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta, Struct

from rung import api
from rung.events.experiment import ExperimentMoved
from rung.gateway.access.authorization import access_of
from rung.gateway.access.place import Names, UnknownPlace, find_place
from rung.gateway.context import check_caught_up, context_of, experiment_of, reply
from rung.gateway.problem import bad_parameter
from rung.gateway.projections.experiment_fold import move_text
from rung.gateway.requests.query import read_query
from rung.gateway.requests.writes import is_repeated_of, key_of, once, stamp, write
from rung.gateway.route import Route

_Name = Annotated[str, Meta(min_length=1, max_length=500, description="by name or id")]


class RelocationQuery(Struct, forbid_unknown_fields=True):
    """Where to: at least one of the two."""

    workspace: _Name | None = None
    project: _Name | None = None


async def move_experiment(request: web.Request) -> web.Response:
    """Move an experiment."""
    query = read_query(request, RelocationQuery)
    if query.workspace is None and query.project is None:
        raise bad_parameter("workspace", "give a workspace, a project, or both")
    context, key, access = context_of(request), key_of(request), access_of(request)
    names = Names(access)
    async with once(context, key):
        experiment = await experiment_of(request)
        before = names.place_of(experiment)
        try:
            place = find_place(access, query.workspace or before.workspace_id, query.project)
        except UnknownPlace as error:
            raise bad_parameter(error.field, str(error)) from None
        fact = ExperimentMoved(
            experiment_id=experiment.id,
            workspace_id=place.workspace_id,
            project_id=place.project_id,
        )
        if not await is_repeated_of(context, key, experiment, move_text(fact)):
            check_caught_up(context.models)
            if place != before:
                await write(context, [stamp(context, key, fact)])
    moved = api.Moved(
        experiment_id=experiment.id,
        workspace=names.workspace(place.workspace_id),
        project=names.project(place.project_id),
        workspace_id=place.workspace_id,
        project_id=place.project_id,
    )
    return reply(moved, status=202)


ROUTES: Final = (
    Route(
        "POST",
        "/experiments/{experiment_id}/move",
        move_experiment,
        "Move an experiment to another workspace or project",
        api.Moved,
        status=202,
        query=RelocationQuery,
        idempotent=True,
        problems=(404, 409, 422),
        needs="experiment.move",
    ),
)

"""Experiments: listed and shown."""

from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from rung import api
from rung.gateway import serializers
from rung.gateway.context import context_of, experiment_of, reply, unix_now
from rung.gateway.problem import Problem
from rung.gateway.query import NoQuery, PageQuery, page, read_query
from rung.gateway.route import Route


class ListQuery(PageQuery, forbid_unknown_fields=True):
    """Which experiments to list."""

    state: Annotated[api.ExperimentPhase, Meta(description="those in this state alone")] | None = (
        None
    )
    label: Annotated[str, Meta(description="those with this label alone")] | None = None


async def list_experiments(request: web.Request) -> web.Response:
    """List experiments, the newest first."""
    query = read_query(request, ListQuery)
    views, now = context_of(request).views, unix_now()
    keys = views.newest_first()
    if query.state is not None or query.label is not None:
        keys = [key for key in keys if _is_wanted(request, key[1], query)]
    shown, cursor = page(keys, query, lambda key: key, descending=True)
    found = [views.experiment(experiment_id) for _, experiment_id in shown]
    items = [
        serializers.summary(experiment, now) for experiment in found if experiment is not None
    ]
    return reply(api.ExperimentList(items=items, next_cursor=cursor))


def _is_wanted(request: web.Request, experiment_id: str, query: ListQuery) -> bool:
    experiment = context_of(request).views.experiment(experiment_id)
    if experiment is None:
        return False
    labels = serializers.submission_of(experiment).config.get("labels") or []
    return query.state in {None, serializers.phase_of(experiment)} and (
        query.label is None or query.label in labels
    )


async def show_experiment(request: web.Request) -> web.Response:
    """Show one experiment with all of its trials."""
    read_query(request, NoQuery)
    return reply(serializers.detail(experiment_of(request), unix_now()))


async def show_best(request: web.Request) -> web.Response:
    """Show an experiment's best trial and its checkpoint."""
    read_query(request, NoQuery)
    experiment = experiment_of(request)
    found = serializers.best(experiment)
    if found is None:
        metric = serializers.submission_of(experiment).metric
        raise Problem(
            409,
            "no-validation",
            f"no trial of experiment {experiment.id} has reported a finite {metric!r} yet",
        )
    return reply(found)


ROUTES: Final = (
    Route(
        "GET",
        "/experiments",
        list_experiments,
        "List experiments, the newest first",
        api.ExperimentList,
        query=ListQuery,
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}",
        show_experiment,
        "Show an experiment with all of its trials",
        api.Experiment,
        problems=(404, 409),
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}/best",
        show_best,
        "Show the best trial and its checkpoint",
        api.BestAnswer,
        problems=(404, 409),
    ),
)

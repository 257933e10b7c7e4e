"""Trials: listed and shown."""

from typing import Final

from aiohttp import web

from rung import api
from rung.gateway.context import experiment_of, reply, trial_of
from rung.gateway.projections.experiments import ALL
from rung.gateway.requests.query import NoQuery, PageQuery, page, read_query
from rung.gateway.route import Route
from rung.gateway.serializers import experiments as serializers


async def list_trials(request: web.Request) -> web.Response:
    """List an experiment's trials by index."""
    query = read_query(request, PageQuery)
    experiment = await experiment_of(request, validations=ALL)
    shown, cursor = page(experiment.trials, query, lambda trial: trial.index)
    items = [serializers.trial(experiment, trial) for trial in shown]
    return reply(api.TrialList(items=items, next_cursor=cursor))


async def show_trial(request: web.Request) -> web.Response:
    """Show a trial with its checkpoints."""
    read_query(request, NoQuery)
    return reply(serializers.trial_detail(*await trial_of(request)))


ROUTES: Final = (
    Route(
        "GET",
        "/experiments/{experiment_id}/trials",
        list_trials,
        "List an experiment's trials",
        api.TrialList,
        query=PageQuery,
        problems=(404, 409),
    ),
    Route(
        "GET",
        "/trials/{trial_id}",
        show_trial,
        "Show a trial with its checkpoints",
        api.TrialDetail,
        problems=(404, 409),
    ),
)

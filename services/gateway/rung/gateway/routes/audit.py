"""The audit: every decision of an experiment decided again."""

from typing import Final

from aiohttp import web

from rung import api
from rung.gateway.context import context_of, experiment_id_of, reply
from rung.gateway.problem import unavailable
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.route import Route


async def audit_experiment(request: web.Request) -> web.Response:
    """Decide an experiment's decisions again and compare."""
    read_query(request, NoQuery)
    experiment_id = await experiment_id_of(request)
    audit = context_of(request).parts.audit
    if audit is None:
        raise unavailable("this server has no deciders to audit with; run `rung audit`")
    return reply(await audit(experiment_id))


ROUTES: Final = (
    Route(
        "GET",
        "/experiments/{experiment_id}/audit",
        audit_experiment,
        "Decide every decision again and compare",
        api.Audit,
        problems=(404, 409),
    ),
)

"""The audit: every decision of an experiment decided again."""

from typing import Final

import msgspec
from aiohttp import web

from rung.gateway import answer
from rung.gateway.context import context_of, experiment_of
from rung.gateway.problem import unavailable
from rung.gateway.query import NoQuery, read_query
from rung.gateway.route import Route


async def audit_experiment(request: web.Request) -> web.Response:
    """Decide an experiment's decisions again and compare."""
    read_query(request, NoQuery)
    experiment = experiment_of(request)
    audit = context_of(request).audit
    if audit is None:
        raise unavailable("this server has no deciders to audit with; run `rung audit`")
    verdict = await audit(experiment.id)
    return web.Response(
        body=msgspec.json.encode(verdict),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


ROUTES: Final = (
    Route(
        "GET",
        "/experiments/{experiment_id}/audit",
        audit_experiment,
        "Decide every decision again and compare",
        answer.Audit,
        problems=(404, 409),
    ),
)

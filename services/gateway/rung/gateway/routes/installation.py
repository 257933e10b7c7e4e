"""The installation: agents, the queue, numbers; documents about the API, which want no token."""

from importlib.metadata import version
from typing import Any, Final

import msgspec
from aiohttp import web

from rung import api
from rung.config import json_schema
from rung.gateway.context import context_of, reply
from rung.gateway.projections.deadletters import DeadLetterProjection, count_open
from rung.gateway.projections.pools import PoolProjection, read_pools
from rung.gateway.requests.query import NoQuery, PageQuery, page, read_query
from rung.gateway.route import Route
from rung.gateway.serializers import pools as pool_serializers
from rung.runtime.health.checks import HEALTH

OPENAPI: Final = web.AppKey("openapi", bytes)


async def list_agents(request: web.Request) -> web.Response:
    """List the agents of all pools with the allocations of their slots."""
    read_query(request, NoQuery)
    pools = await context_of(request).models.read(PoolProjection, read_pools)
    items = [agent for pool in pools for agent in pool_serializers.agents(pool)]
    return reply(api.AgentList(items=items))


async def list_queue(request: web.Request) -> web.Response:
    """List the queue."""
    query = read_query(request, PageQuery)
    models = context_of(request).models
    behind = models.behind() is not None
    shown, cursor = page(
        pool_serializers.waiting(await models.read(PoolProjection, read_pools), behind=behind),
        query,
        lambda it: (it.pool, it.priority, it.requested_at, it.allocation_id),
    )
    return reply(api.Queue(items=shown, next_cursor=cursor))


async def show_status(request: web.Request) -> web.Response:
    """Show the installation in numbers."""
    read_query(request, NoQuery)
    context = context_of(request)
    pools = await context.models.read(PoolProjection, read_pools)
    return reply(
        api.Status(
            version=version("rung"),
            ledger_id=context.ledger.id,
            experiments=context.models.count_experiments(),
            pools=[pool_serializers.pool_status(pool) for pool in pools],
            dead_letters=await context.models.read(DeadLetterProjection, count_open),
            problems=[
                *context.parts.problems(),
                *await HEALTH.problems(),
                *(each for pool in pools for each in pool_serializers.problems(pool)),
            ],
        )
    )


async def show_openapi(request: web.Request) -> web.Response:
    """Show the OpenAPI document."""
    return _document(request.app[OPENAPI])


async def show_experiment_schema(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp's signature
    """Show the JSON Schema of the experiment file."""
    schema: dict[str, Any] = json_schema()
    return _document(msgspec.json.encode(schema))


def _document(body: bytes) -> web.Response:
    return web.Response(
        body=body,
        content_type="application/json",
        headers={"Cache-Control": "max-age=300"},
    )


ROUTES: Final = (
    Route("GET", "/agents", list_agents, "List agents and their slots", api.AgentList),
    Route("GET", "/queue", list_queue, "List what waits for slots", api.Queue, query=PageQuery),
    Route("GET", "/status", show_status, "The installation in numbers", api.Status),
    Route("GET", "/openapi.json", show_openapi, "This document", open=True),
    Route(
        "GET",
        "/schema/experiment.json",
        show_experiment_schema,
        "JSON Schema of the experiment file",
        open=True,
    ),
)

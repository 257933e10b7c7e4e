"""The installation: agents, the queue, numbers; documents about the API, which want no token."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import version
from typing import Any, Final

import msgspec
from aiohttp import web

from rung import api
from rung.config import json_schema
from rung.gateway.access.authorization import access_of
from rung.gateway.context import context_of, reply
from rung.gateway.projections.experiments import ExperimentProjection, kept_checkpoints
from rung.gateway.projections.pools import (
    PoolProjection,
    count_waiting,
    list_waiting,
    read_pools,
)
from rung.gateway.requests.query import NoQuery, PageQuery, read_cursor, read_query, write_cursor
from rung.gateway.requests.read_trail import TRAIL
from rung.gateway.route import Route
from rung.gateway.serializers import pools as pool_serializers
from rung.ledger import root_of
from rung.runtime.health.checks import HEALTH

_OPERATES: Final = "cluster.view"
"""The permission with which the installation is shown in full."""
OPENAPI: Final[web.AppKey[Callable[[], bytes]]] = web.AppKey("openapi")
"""Returns the OpenAPI document, which is made of all routes."""


async def list_agents(request: web.Request) -> web.Response:
    """List the agents of all pools with the allocations of their slots."""
    read_query(request, NoQuery)
    pools = await context_of(request).models.read(PoolProjection, read_pools, waiting=False)
    names = {name: root_of(name) for pool in pools for name in pool.running}
    seen = await _seen(request, names.values())
    items = [
        agent
        for pool in pools
        for agent in pool_serializers.agents(pool, lambda name: names[name] in seen)
    ]
    return reply(api.AgentList(items=items))


async def _seen(request: web.Request, experiments: Iterable[str]) -> Collection[str]:
    """Return those of some experiments that the principal sees."""
    experiments, seen = dict.fromkeys(experiments), access_of(request).seen
    if seen is None:
        return experiments
    projects = await context_of(request).models.projects_of(experiments)
    return {name: None for name in experiments if projects.get(name) in seen}


async def list_queue(request: web.Request) -> web.Response:
    """List the queue."""
    query = read_query(request, PageQuery)
    models = context_of(request).models
    behind = models.behind() is not None
    after = read_cursor(query.cursor, (str, int, str, str))
    experiments = None
    if access_of(request).seen is not None:
        waiting = await models.read(PoolProjection, count_waiting)
        experiments = await _seen(request, (experiment for _, experiment in waiting))
    limit = query.limit + 1
    found = await models.read(PoolProjection, list_waiting, experiments, after, limit)
    shown = found[: query.limit]
    return reply(
        api.Queue(
            items=pool_serializers.waiting(shown, models.agents(), behind=behind),
            next_cursor=write_cursor(shown[-1][0]) if len(found) > query.limit else None,
        )
    )


async def show_status(request: web.Request) -> web.Response:
    """Show the installation in numbers: of experiments those that the principal sees."""
    read_query(request, NoQuery)
    context, access = context_of(request), access_of(request)
    seen, in_full = access.seen, access.may(_OPERATES)
    pools = await context.models.read(PoolProjection, read_pools, waiting=False)
    waiting = await _count_waiting(request)
    kept, kept_bytes = await context.models.read(ExperimentProjection, kept_checkpoints, seen)
    disk = context.parts.disk if in_full else None
    letters = access.may("deadletter.view")
    trail = request.app.get(TRAIL)
    untraced = None if trail is None else trail.problem()
    return reply(
        api.Status(
            version=version("rung"),
            ledger_id=context.ledger.id,
            experiments=context.models.count_experiments(seen),
            pools=[
                pool_serializers.pool_status(pool, waiting[pool.name], in_full=in_full)
                for pool in pools
            ],
            dead_letters=await context.models.count_dead_letters() if letters else 0,
            problems=(
                [
                    *context.parts.problems(),
                    *await HEALTH.problems(),
                    *([untraced] if untraced else []),
                    *(each for pool in pools for each in pool_serializers.problems(pool)),
                ]
                if in_full
                else []
            ),
            checkpoint_count=kept,
            checkpoint_bytes=kept_bytes,
            disk=None if disk is None else await disk(),
        )
    )


async def _count_waiting(request: web.Request) -> Counter[str]:
    """Return how many allocations of experiments that the principal sees wait in each pool."""
    waiting = await context_of(request).models.read(PoolProjection, count_waiting)
    seen = await _seen(request, (experiment for _, experiment in waiting))
    found: Counter[str] = Counter()
    for (pool, experiment), count in waiting.items():
        found[pool] += count if experiment in seen else 0
    return found


async def show_openapi(request: web.Request) -> web.Response:
    """Show the OpenAPI document."""
    return _document(await asyncio.to_thread(request.app[OPENAPI]))


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
    Route(
        "GET",
        "/agents",
        list_agents,
        "List agents and their slots",
        api.AgentList,
        needs="pool.view",
        about="cluster",
    ),
    Route(
        "GET",
        "/queue",
        list_queue,
        "List what waits for slots",
        api.Queue,
        query=PageQuery,
        needs="experiment.view",
        about="workspace",
    ),
    Route(
        "GET",
        "/status",
        show_status,
        "The installation in numbers",
        api.Status,
        needs="pool.view",
        about="cluster",
    ),
    Route("GET", "/openapi.json", show_openapi, "This document", about="anybody"),
    Route(
        "GET",
        "/schema/experiment.json",
        show_experiment_schema,
        "JSON Schema of the experiment file",
        about="anybody",
    ),
)

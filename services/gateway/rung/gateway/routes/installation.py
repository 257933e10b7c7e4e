"""The installation: agents, what waits, numbers."""

from importlib.metadata import version
from typing import Final

from aiohttp import web

from rung import api
from rung.gateway.context import context_of, reply
from rung.gateway.projections.deadletters import LetterProjection, count_open
from rung.gateway.projections.pools import PoolProjection, read_pools
from rung.gateway.requests.query import NoQuery, PageQuery, page, read_query
from rung.gateway.route import Route
from rung.gateway.serializers import pools as pool_serializers
from rung.runtime.health.checks import VITALS


async def list_agents(request: web.Request) -> web.Response:
    """List the agents of all pools and what holds their slots."""
    read_query(request, NoQuery)
    pools = await context_of(request).models.read(PoolProjection, read_pools)
    items = [agent for pool in pools for agent in pool_serializers.agents(pool)]
    return reply(api.AgentList(items=items))


async def list_queue(request: web.Request) -> web.Response:
    """List what waits for slots."""
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
            dead_letters=await context.models.read(LetterProjection, count_open),
            problems=[
                *context.parts.problems(),
                *await VITALS.problems(),
                *(each for pool in pools for each in pool_serializers.problems(pool)),
            ],
        )
    )


ROUTES: Final = (
    Route("GET", "/agents", list_agents, "List agents and their slots", api.AgentList),
    Route("GET", "/queue", list_queue, "List what waits for slots", api.Queue, query=PageQuery),
    Route("GET", "/status", show_status, "The installation in numbers", api.Status),
)

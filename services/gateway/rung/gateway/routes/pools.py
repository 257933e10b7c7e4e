"""Configuring a resource pool: by which policy the scheduler gives its slots.

The answer means that the policy is on record; it applies from the next fact of the pool on. A
policy that this release does not have, or options that it does not take, are refused: on record
they would stop the pool.
"""

from typing import Final

import msgspec
from aiohttp import web

from rung import api
from rung.api import ProblemItem
from rung.events.allocation import PoolConfigured
from rung.events.errors import InvalidConfig, invalid_field
from rung.gateway.context import Context, context_of, reply
from rung.gateway.problem import Problem, bad_parameter, unavailable
from rung.gateway.projections.pools import PoolProjection, request_of, request_text
from rung.gateway.requests.json_body import check_nesting
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.requests.upload import read_body
from rung.gateway.requests.writes import (
    is_repeated,
    key_of,
    once,
    pool_upgrade,
    stamp,
    write,
)
from rung.gateway.route import Body, Route

_BYTES_MAX: Final = 65_536
_NAME_MAX: Final = 200


async def configure_pool(request: web.Request) -> web.StreamResponse:
    """Choose a pool's policy."""
    read_query(request, NoQuery)
    context, key = context_of(request), key_of(request)
    name = request.match_info["pool"]
    if len(name) > _NAME_MAX or not name.isprintable():
        raise bad_parameter("pool", f"must be 1 to {_NAME_MAX} printable characters")
    wanted = _wanted(await read_body(request, _BYTES_MAX))
    _check(context, wanted)
    fact = PoolConfigured(pool=name, policy=wanted.policy, options=wanted.options)
    async with once(context, key):
        before = await context.models.read(PoolProjection, request_of, name, key)
        if not await is_repeated(context, request_text(fact), before, PoolProjection, name):
            upgrade = pool_upgrade(context, name, await context.level.read())
            await write(context, [*upgrade, stamp(context, key, fact)])
    known = any(pool.name == name and pool.agents for pool in context.models.agents())
    warnings: list[str] = []
    if not known and context.models.behind() is None:
        warnings.append(f"pool {name} has no agent so far; `rung status` lists pools")
    accepted = api.PoolConfigured(
        pool=name,
        policy=wanted.policy,
        options=wanted.options,
        warnings=warnings,
    )
    return reply(accepted, status=202)


def _wanted(body: bytes) -> api.PoolPolicy:
    check_nesting(body)
    try:
        return msgspec.json.decode(body, type=api.PoolPolicy)
    except msgspec.ValidationError as error:
        path, text = invalid_field(error)
        raise _refused([ProblemItem(path=path or "body", message=text)]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(400, "malformed", f"the body is no JSON: {error}") from None


def _check(context: Context, wanted: api.PoolPolicy) -> None:
    """Refuse a policy that the scheduler of this release does not have.

    Raises:
        Problem: why it could not.
    """
    if context.parts.policy_of is None:
        raise unavailable("this server configures no pools; ask `rung service gateway`")
    try:
        context.parts.policy_of(wanted.policy, wanted.options)
    except InvalidConfig as error:
        items = [ProblemItem(path=path, message=text) for path, text in error.problems]
        raise _refused(items) from None


def _refused(items: list[ProblemItem]) -> Problem:
    lines = "; ".join(f"{item.path}: {item.message}" for item in items)
    return Problem(422, "invalid-policy", lines, errors=items)


ROUTES: Final = (
    Route(
        "POST",
        "/pools/{pool}/configure",
        configure_pool,
        "Choose by which policy a pool's slots are given",
        api.PoolConfigured,
        status=202,
        body=Body("application/json", record=api.PoolPolicy),
        idempotent=True,
        problems=(404, 413, 422),
        needs="pool.configure",
        about="cluster",
    ),
)

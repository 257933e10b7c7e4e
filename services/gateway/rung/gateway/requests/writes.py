"""Writes: facts that clients ask for, appended to the ledger, once for each idempotency key.

A key becomes the origin of the fact that its request writes (`client/<key>`, sequence 1), so the
ledger holds that a key was used and for what; nothing else does. Two requests with one key are
answered here one after the other; of two gateways at once the ledger takes one fact.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from rung.events import Event, Payload, partition_of
from rung.events.installation import PoolUpgraded
from rung.gateway.context import Context
from rung.gateway.identity.principal import ADMIN, PRINCIPAL, Principal
from rung.gateway.problem import Problem, bad_parameter
from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.experiments import ExperimentProjection
from rung.gateway.requests import after
from rung.gateway.requests.after import Positions
from rung.ledger import Draft
from rung.runtime import FactWriter
from rung.runtime.projection import Projection
from rung.runtime.projection.merge import positions_of

HEADER: Final = "Idempotency-Key"
LENGTH_MAX: Final = 200

_principal: ContextVar[Principal | None] = ContextVar("principal", default=None)
"""Who sent the present request."""

_log = structlog.get_logger()


def key_of(request: web.Request) -> str | None:
    """Return the origin that the request's key stands for, None without a key.

    Raises:
        Problem: the header cannot be used.
    """
    values = request.headers.getall(HEADER, [])
    if not values:
        return None
    key = values[0]
    if len(values) > 1:
        raise bad_parameter(HEADER, "is given twice; give it once")
    if not 0 < len(key) <= LENGTH_MAX or not all("!" <= letter <= "~" for letter in key):
        raise bad_parameter(
            HEADER, f"must be 1 to {LENGTH_MAX} visible ASCII characters, such as a UUID"
        )
    return f"client/{_who(request)}{key}"


def _who(request: web.Request) -> str:
    """Return whose key it is, so that nobody meets the key of another.

    That of the administrator whom each installation has is as it was before there were others.
    No key has a space.
    """
    principal = request[PRINCIPAL]
    acting = principal.user_id
    if principal.on_behalf_of is not None:
        acting = f"{acting} for {principal.on_behalf_of}"
    return "" if acting == ADMIN.user_id else f"{acting} "


@contextlib.asynccontextmanager
async def once(context: Context, key: str | None) -> AsyncIterator[None]:
    """Let one request at a time go on with a key."""
    if key is None:
        yield
        return
    async with context.locks.setdefault(key, asyncio.Lock()):
        yield


async def is_repeated(  # noqa: PLR0913 - what was asked, and where that is found
    context: Context,
    asked: str,
    before: str | None,
    projection: type[Projection],
    subject: str,
    *,
    name: str | None = None,
) -> bool:
    """Return whether a request was done before, and how far its client is to read.

    Args:
        context: of the request.
        asked: what is asked for, in words.
        before: what was asked for under the same key, None if nothing was.
        projection: in which that was found.
        subject: key of the fact that was written.
        name: its topic; by default that of the projection's facts.

    Raises:
        Problem: the key was used for something else.
    """
    if before is None:
        return False
    if before != asked:
        raise reused(f"was used to {before}; draw a new key for another request")
    await read_from(context, projection, subject, name)
    return True


async def is_repeated_of(
    context: Context, key: str | None, experiment: Experiment, action: str
) -> bool:
    """Return whether a request about an experiment was done before: an action, in words.

    Raises:
        Problem: the key was used for something else.
    """
    about = f" experiment {experiment.id}"
    done = experiment.requests.get(key or "")
    before = None if done is None else done + about
    return await is_repeated(context, action + about, before, ExperimentProjection, experiment.id)


def reused(how: str) -> Problem:
    """Return the problem of an idempotency key that stands for another request."""
    return Problem(422, "idempotency-key-reused", f"this Idempotency-Key {how}")


async def read_from(
    context: Context, projection: type[Projection], subject: str, name: str | None = None
) -> None:
    """Note for the client how far to read what its request wrote when it was sent before.

    As far as the projection has folded is enough: it found the request there.
    """
    name = name or projection.facts
    partition = partition_of(subject, context.ledger.partitions(name))
    folded = await context.models.read(projection, positions_of, partition)
    position, _ = folded[name]
    after.note({(name, partition): position - 1})


@web.middleware
async def name_actor(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Have the facts that a request writes carry its principal as their actor."""
    token = _principal.set(request.get(PRINCIPAL))
    try:
        return await handler(request)
    finally:
        _principal.reset(token)


def stamp(context: Context, key: str | None, data: Payload, *, number: int = 1) -> Event:
    """Return a fact that a request with this key writes, the first or a later one.

    Its actor is the principal of the present request.
    """
    return stamp_by(context.writer, _principal.get(), key, data, number=number)


def stamp_by(
    writer: FactWriter,
    principal: Principal | None,
    key: str | None,
    data: Payload,
    *,
    number: int = 1,
) -> Event:
    """Return a fact that a principal asks for, None: the gateway itself, in nobody's name.

    Every fact of the gateway is made here.
    """
    return writer.stamp(
        data,
        actor=None if principal is None else principal.user_id,
        onbehalfof=None if principal is None else principal.on_behalf_of,
        origin=key,
        sequence=None if key is None else number,
    )


def pool_upgrade(context: Context, name: str, level: int) -> list[Event]:
    """Return the fact that raises a pool to a logic level, none if it is there already.

    It may be on record although the read model does not show it yet; twice is no harm.
    """
    pool = next((pool for pool in context.models.agents() if pool.name == name), None)
    if level <= (1 if pool is None else pool.level):
        return []
    return [stamp(context, None, PoolUpgraded(pool=name, level=level))]


async def write(context: Context, facts: Sequence[Event]) -> None:
    """Append facts in their order, and wait until the projections show them.

    One after another: they may lie in different partitions, and the last must not be on record
    without those that it builds on. By the last one a repeated request is recognised, so one
    that was cut short is written again as a whole; repeated facts are dropped by their readers.
    A server that still catches up does not wait: the answer says how far to read.

    Raises:
        LedgerUnavailable: not all were written, or nobody knows.
    """
    reached: Positions = {}
    for event in facts:
        (position,) = await context.ledger.append([Draft.of(event)])
        partition = partition_of(event.key, context.ledger.partitions(event.topic))
        reached[event.topic, partition] = position
    after.note(reached)
    last = facts[-1]
    _log.info("asked", id=last.id, type=last.type, subject=last.subject)
    wait_s = context.settings.seen_timeout
    if context.models.behind() is None and not await context.models.reached(
        reached, wait_s=wait_s
    ):
        _log.warning("projections are behind", id=last.id, waited_s=wait_s)

"""Writes what clients asked for into the ledger."""

from collections.abc import Sequence

import structlog

from rung.events import Event, encode, partition_of
from rung.events.installation import PoolUpgraded
from rung.gateway.context import Context
from rung.gateway.requests import after
from rung.gateway.requests.after import Positions
from rung.ledger import Draft
from rung.runtime.projection import Projection
from rung.runtime.projection.merge import positions_of

_log = structlog.get_logger()


def pool_upgrade(context: Context, name: str, level: int) -> list[Event]:
    """Return the fact that raises a pool to a logic level, none if it is there already.

    It may be on record although the read model does not show it yet; twice is no harm.
    """
    pool = next((pool for pool in context.models.agents() if pool.name == name), None)
    if level <= (1 if pool is None else pool.level):
        return []
    return [context.writer.stamp(PoolUpgraded(pool=name, level=level))]


async def recognized(context: Context, projection: type[Projection], key: str) -> None:
    """Tell the client how far to read what its request wrote when it was sent before.

    It is folded, or it would not have been recognised: that far is enough.

    Args:
        context: of the request.
        projection: by which it was recognised.
        key: of the fact that was written.
    """
    partition = partition_of(key, context.ledger.partitions(projection.facts))
    folded = await context.models.read(projection, positions_of, partition)
    position, _ = folded[projection.facts]
    after.note({(projection.facts, partition): position - 1})


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
        (position,) = await context.ledger.append([Draft(event.topic, event.key, encode(event))])
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

"""Writes what clients asked for into the ledger."""

from collections.abc import Sequence

import structlog

from rung.events import Event, encode
from rung.events.installation import PoolUpgraded
from rung.gateway.context import Context
from rung.ledger import Draft

_log = structlog.get_logger()


def pool_upgrade(context: Context, name: str, level: int) -> list[Event]:
    """Return the fact that raises a pool to a logic level, none if it is there already.

    It may be on record although the read model does not show it yet; twice is no harm.
    """
    pool = next((pool for pool in context.views.pools() if pool.name == name), None)
    if level <= (1 if pool is None else pool.level):
        return []
    return [context.writer.stamp(PoolUpgraded(pool=name, level=level))]


async def write(context: Context, facts: Sequence[Event]) -> None:
    """Append facts in their order, and wait until the read models show the last of them.

    One after another: they may lie in different partitions, and the last must not be on record
    without those that it builds on. By the last one a repeated request is recognised, so one
    that was cut short is written again as a whole; repeated facts are dropped by their readers.

    Raises:
        LedgerUnavailable: not all were written, or nobody knows.
    """
    positions = [0]
    for event in facts:
        positions = await context.ledger.append([Draft(event.topic, event.key, encode(event))])
    last = facts[-1]
    _log.info("asked", id=last.id, type=last.type, subject=last.subject)
    wait_s = context.settings.seen_timeout
    if not await context.views.seen(last.topic, last.key, positions[-1], wait_s=wait_s):
        _log.warning("read models are behind", id=last.id, waited_s=wait_s)

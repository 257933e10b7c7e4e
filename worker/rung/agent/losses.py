"""Hears when the scheduler takes an agent for lost that is alive after all.

An agent that stood still for longer than the scheduler waits (a stopped process, a machine that
slept) is declared lost, and what it runs is given to others. Nothing on `placements` would tell an
idle agent of that.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from rung.events import decode, partition_of, topic
from rung.events.allocation import AgentLost
from rung.host.supervise import supervise
from rung.ledger import Ledger

_MARK: Final = AgentLost.TYPE.encode()


async def follow_losses(
    ledger: Ledger, pool: str, lost: Callable[[AgentLost], Awaitable[None]]
) -> None:
    """Hand on each loss of an agent of the pool, from where the pool's facts end now, for ever."""
    partition = partition_of(pool, ledger.partitions(topic.POOLS))
    position: int | None = None

    async def follow() -> None:
        nonlocal position
        if position is None:
            position = await ledger.end(topic.POOLS, partition)
        async for records in ledger.follow(topic.POOLS, partition, position):
            for record in records:
                position = record.position + 1
                if record.key != pool or _MARK not in record.value:
                    continue
                data = decode(record.value).data
                if isinstance(data, AgentLost):
                    await lost(data)

    await supervise(follow, name="agent-losses")

"""The facts of a pool that concern its agents: who came and went, and where parts of gangs are.

An agent hears from the others of a gang how they can be reached, and from the pool's watch that
it was itself taken for lost, when it is alive after all. It sees, too, whether another agent uses
its id.

An agent that stood still for longer than the scheduler waits (a stopped process, a machine that
slept) is declared lost, and what it runs is given to others. Nothing on `placements` would tell an
idle agent of that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from rung.agent.membership import Fact
from rung.events import UndecodableEvent, decode, partition_of, topic
from rung.events.allocation import AgentJoined, AgentLeft, AgentLost, AllocationAddressed
from rung.ledger import Ledger, Record
from rung.runtime.retry import supervise

_MARKS: Final = tuple(
    kind.TYPE.encode() for kind in (AgentJoined, AgentLeft, AgentLost, AllocationAddressed)
)

_log = structlog.get_logger()


class PoolFacts:
    """Hands on each fact of a pool that concerns its agents, from where they end now."""

    def __init__(
        self,
        ledger: Ledger,
        pool: str,
        lost: Callable[[AgentLost], Awaitable[None]],
        addressed: Callable[[AllocationAddressed], Awaitable[None]],
        members: Callable[[Fact], None],
    ) -> None:
        self._ledger = ledger
        self._pool = pool
        self._lost = lost
        self._addressed = addressed
        self._members = members
        self._partition = partition_of(pool, ledger.partitions(topic.POOLS))
        self._position = 0
        self.following = asyncio.Event()
        """Whether nothing that is said from now on is missed."""

    async def follow(self) -> None:
        """Follow for ever, through absences of the ledger."""
        await supervise(self._follow, name="agent-pool-facts", patient=True)

    async def _follow(self) -> None:
        if not self.following.is_set():
            self._position = await self._ledger.end(topic.POOLS, self._partition)
            self.following.set()
        async for records in self._ledger.follow(topic.POOLS, self._partition, self._position):
            for record in records:
                self._position = record.position + 1
                if record.key == self._pool and any(mark in record.value for mark in _MARKS):
                    await self._take(record)

    async def _take(self, record: Record) -> None:
        try:
            data = decode(record.value).data
        except UndecodableEvent as error:
            _log.error("cannot read a pool's fact", position=record.position, error=str(error))
            return
        if isinstance(data, AgentJoined | AgentLeft | AgentLost):
            self._members(data)
        if isinstance(data, AgentLost):
            await self._lost(data)
        elif isinstance(data, AllocationAddressed):
            await self._addressed(data)

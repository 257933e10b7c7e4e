"""Pool facts: the subscription to joins and losses of agents, and to addresses of gangs.

They carry the addresses of the other agents of a gang, joins of other agents with the same id, and
the failure detector's record that this agent is lost although it is alive.

An agent that stood still for longer than the failure detector waits (a stopped process, a machine
that slept) is recorded as lost, and its runs are granted to others. An idle agent could not learn
that from `placements`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from rung.agent.membership.identity import Fact
from rung.events import UndecodableEvent, decode, partition_of, topic
from rung.events.allocation import AgentJoined, AgentLeft, AgentLost, AllocationAddressed
from rung.ledger import Ledger, Record
from rung.runtime.retry import supervise

_MARKS: Final = tuple(
    kind.TYPE.encode() for kind in (AgentJoined, AgentLeft, AgentLost, AllocationAddressed)
)

_log = structlog.get_logger()


class PoolFacts:
    """Delivers the facts of a pool that concern its agents."""

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
        """Set once no later fact can be missed."""

    @property
    def position(self) -> int:
        """The position of the first fact that was not delivered yet."""
        return self._position

    def resume_at(self, position: int) -> None:
        """Follow from a position that an earlier session of the agent has reached."""
        self._position = position
        self.following.set()

    async def follow(self) -> None:
        """Follow for ever, and retry while the ledger is away."""
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

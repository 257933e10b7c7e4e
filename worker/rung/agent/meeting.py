"""Where the ranks of a run meet: addresses, ports and the key, of all agents that have a part.

On one agent that is its own affair, over the loopback. Of a gang, each agent writes how its part
can be reached (`AllocationAddressed`) and waits for what the others write. The first agent's ports
are the ones where the ranks gather; its key is the run's.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from rung.agent.network import LOOPBACK, ReservedPort
from rung.events import RungError
from rung.events.allocation import AllocationAddressed, AllocationGranted, Share

PATIENCE_S: Final = 600.0
"""How long an agent waits for the others of a gang to say where they are."""
_KEPT: Final = 4096


class NotMet(RungError):
    """Not all agents of a gang said in time how they can be reached."""


class Part(Struct, frozen=True):
    """How the ranks of one agent can be reached."""

    host: str
    ports: list[int]
    """The first for the ranks' own words, then one for each rank."""


class Meeting(Struct, frozen=True):
    """What each rank must know to find the others."""

    parts: list[Part]
    """In the order of the agents' shares."""
    key: str

    @property
    def chief(self) -> str:
        """Where rank 0 waits for the others, for words of the script."""
        first = self.parts[0]
        return f"{first.host}:{first.ports[0]}"


class Introductions:
    """What the agents of a pool say about where their parts of gangs are."""

    def __init__(self) -> None:
        self._heard: dict[str, dict[tuple[str, int], AllocationAddressed]] = {}
        self._changed = asyncio.Condition()

    async def hear(self, fact: AllocationAddressed) -> None:
        """Take note of one."""
        async with self._changed:
            parts = self._heard.setdefault(fact.allocation_id, {})
            parts[fact.agent_id, fact.incarnation] = fact
            while len(self._heard) > _KEPT:
                del self._heard[next(iter(self._heard))]
            self._changed.notify_all()

    async def of(self, allocation_id: str, shares: Sequence[Share]) -> list[AllocationAddressed]:
        """Return what was said of each share, once all have been heard.

        Raises:
            NotMet: some were not heard of in time.
        """
        wanted = [(share.agent_id, share.incarnation) for share in shares]

        def heard() -> dict[tuple[str, int], AllocationAddressed]:
            return self._heard.get(allocation_id, {})

        try:
            async with asyncio.timeout(PATIENCE_S), self._changed:
                await self._changed.wait_for(lambda: all(who in heard() for who in wanted))
        except TimeoutError:
            missing = ", ".join(agent for agent, _ in wanted if not _any_of(agent, heard()))
            raise NotMet(
                f"agents did not say within {PATIENCE_S:g} s how they can be reached: {missing}"
            ) from None
        found = heard()
        return [found[who] for who in wanted]

    def forget(self, allocation_id: str) -> None:
        """Forget what is over."""
        self._heard.pop(allocation_id, None)


class Ports:
    """The ports of one agent's part of a run, kept free until it is over."""

    def __init__(self, ranks: int, *, loopback: bool) -> None:
        host = LOOPBACK if loopback else ""
        self._reserved = [ReservedPort(host) for _ in range(1 + ranks)]
        self.numbers: Final = [port.number for port in self._reserved]

    def close(self) -> None:
        """Give them back."""
        for port in self._reserved:
            port.close()


def alone(ports: Ports) -> Meeting:
    """Return the meeting of ranks that are all on this agent."""
    return Meeting([Part(LOOPBACK, ports.numbers)], secrets.token_hex(16))


def addressed(
    granted: AllocationGranted, share: Share, ports: Ports, host: str
) -> AllocationAddressed:
    """Return what to tell the other agents about this one's share."""
    return AllocationAddressed(
        pool=granted.pool,
        allocation_id=granted.allocation_id,
        agent_id=share.agent_id,
        incarnation=share.incarnation,
        host=host,
        ports=ports.numbers,
        key=secrets.token_hex(16) if share is granted.shares[0] else "",
    )


def met(facts: Sequence[AllocationAddressed]) -> Meeting:
    """Return the meeting that all agents' words make."""
    return Meeting([Part(fact.host, fact.ports) for fact in facts], facts[0].key)


def _any_of(agent_id: str, heard: dict[tuple[str, int], AllocationAddressed]) -> bool:
    return any(agent == agent_id for agent, _ in heard)

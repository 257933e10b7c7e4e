"""Where the ranks of a run meet: addresses, ports and the key, of all agents that have a part.

On one agent that is its own affair, over the loopback. Of a gang, each agent writes how its part
can be reached (`AllocationAddressed`) and waits for what the others write. The first agent's ports
are the ones where the ranks gather; its key is the run's.

An agent speaks once it has the run's data, which may take it hours longer than the others. So they
wait as long as the run is wanted: should the agent be lost, or its part fail, the scheduler ends
the run.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from rung.agent.network import LOOPBACK, ReservedPort
from rung.events.allocation import AllocationAddressed, AllocationGranted, Share

NOTED_EVERY_S: Final = 600.0
"""How often the log of a run that waits says for whom."""
_KEPT: Final = 4096
"""So many allocations of others, or that are not yet known to be granted here, are remembered."""


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
        self._expected: set[str] = set()
        self._changed = asyncio.Condition()

    async def hear(self, fact: AllocationAddressed) -> None:
        """Take note of one."""
        async with self._changed:
            parts = self._heard.setdefault(fact.allocation_id, {})
            parts[fact.agent_id, fact.incarnation] = fact
            others = [each for each in self._heard if each not in self._expected]
            for each in others[:-_KEPT]:
                del self._heard[each]
            self._changed.notify_all()

    def expect(self, allocation_id: str) -> None:
        """Keep what is said of an allocation until it is forgotten."""
        self._expected.add(allocation_id)

    async def of(
        self, allocation_id: str, shares: Sequence[Share], note: Callable[[str], None]
    ) -> list[AllocationAddressed]:
        """Return what was said of each share, once all have been heard.

        Args:
            allocation_id: that the shares are of.
            shares: of all agents.
            note: tells the run's log.
        """
        wanted = [(share.agent_id, share.incarnation) for share in shares]

        def heard() -> dict[tuple[str, int], AllocationAddressed]:
            return self._heard.get(allocation_id, {})

        while True:
            try:
                async with asyncio.timeout(NOTED_EVERY_S), self._changed:
                    await self._changed.wait_for(lambda: all(who in heard() for who in wanted))
            except TimeoutError:
                missing = ", ".join(who[0] for who in wanted if who not in heard())
                note(f"waits for other agents, which do not have the run's data yet: {missing}")
            else:
                return [heard()[who] for who in wanted]

    def forget(self, allocation_id: str) -> None:
        """Forget what is over."""
        self._heard.pop(allocation_id, None)
        self._expected.discard(allocation_id)


class Ports:
    """The ports of one agent's part of a run, kept free until it is over."""

    def __init__(self, ranks: int) -> None:
        self._reserved = [ReservedPort() for _ in range(1 + ranks)]
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

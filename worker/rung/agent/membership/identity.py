"""Identity: detects another agent with the same id in the pool, and when this one may join again.

Another agent may use the id: one with another folder (the id is the host's name if none is given),
or a copy of this agent's folder that was started elsewhere. The scheduler refuses the one that
comes later, if it can tell them apart. It cannot tell a copy from a restart: the copy replaces the
original, which reads the copy's join and stops offering slots. Whichever of them is not a member
waits until the other one has left or is recorded as lost, and then joins.
"""

import asyncio
import socket
from typing import Final, NamedTuple

from rung.agent.outbox.outbox import Outbox
from rung.events.allocation import AgentJoined, AgentLeft, AgentLost, JoinRefused

Fact = AgentJoined | AgentLeft | AgentLost


class Displaced(NamedTuple):
    """Why an agent is not a member of its pool."""

    known: int
    """The incarnation on record, above which it may join."""
    in_use: bool
    """Whether an agent of that incarnation is alive, and must leave first."""
    reason: str


class Identity:
    """The other agents with the id of this one."""

    def __init__(self, outbox: Outbox, folder: str) -> None:
        self._outbox = outbox
        self._folder: Final = folder
        self._ends: list[int] = []
        """Incarnations of this id that have left or were lost since this agent's last join."""
        self._news = asyncio.Event()

    def joining(self) -> None:
        """Forget the ends of earlier incarnations, before the agent joins."""
        self._ends.clear()

    def refused(self, decision: JoinRefused) -> Displaced | None:
        """Return why this agent was refused; None if the refusal is for another one."""
        outbox = self._outbox
        own = (outbox.agent_id, outbox.joined, outbox.incarnation)
        if (decision.agent_id, decision.session, decision.incarnation) != own:
            return None
        return Displaced(decision.known, decision.in_use, decision.reason)

    def see(self, fact: Fact) -> Displaced | None:
        """Take a fact of the pool; return why the agent is no longer a member, if it is not."""
        outbox = self._outbox
        if fact.agent_id != outbox.agent_id:
            return None
        if not isinstance(fact, AgentJoined):
            self._ends.append(fact.incarnation)
            self._news.set()
            return None
        if fact.session == outbox.session or fact.incarnation <= outbox.incarnation:
            return None
        if fact.folder_id and (fact.folder_id, fact.hostname) != (outbox.id, socket.gethostname()):
            return None  # the scheduler tells them apart, and refuses that one
        return Displaced(
            fact.incarnation,
            in_use=True,
            reason=(
                f"another agent has joined as {outbox.agent_id!r}, on host {fact.hostname} with "
                f"the folder {fact.folder or 'of an earlier release'}; this one has "
                f"{self._folder}, of which that is a copy: start one of them from an empty "
                "folder with another --agent-id; this one joins by itself once that has left or "
                "is lost"
            ),
        )

    async def free(self, known: int) -> None:
        """Return when an incarnation, or a later one, has left or is recorded as lost."""
        while not any(ended >= known for ended in self._ends):
            self._news.clear()
            await self._news.wait()

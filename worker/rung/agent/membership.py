"""Membership: whether the agent's id is its own in its pool, and when it may join again.

Another agent may use the id: one with another folder (the id is the host's name if none is given),
or a copy of this agent's folder that was started elsewhere. The scheduler refuses the one that
comes later, if it can tell them apart; a copy that it takes for a restart takes the place of the
original, which learns of it from the copy's join. Whichever has no place waits until the other's
life ends, and joins then.
"""

import asyncio
import socket
from typing import Final, NamedTuple

from rung.agent.spool import Spool
from rung.events.allocation import AgentJoined, AgentLeft, AgentLost, JoinRefused

Fact = AgentJoined | AgentLeft | AgentLost


class Displaced(NamedTuple):
    """Why an agent has no place in its pool."""

    known: int
    """The incarnation on record, above which it may join."""
    in_use: bool
    """Whether that one lives, so that its end is to be waited for."""
    reason: str


class Membership:
    """What becomes of the agents of one id."""

    def __init__(self, spool: Spool, folder: str) -> None:
        self._spool = spool
        self._folder: Final = folder
        self._ends: list[int] = []
        """Incarnations whose end was heard of since this agent joined last."""
        self._news = asyncio.Event()

    def joining(self) -> None:
        """Note that the agent is about to join: only what follows concerns its new life."""
        self._ends.clear()

    def refused(self, decision: JoinRefused) -> Displaced | None:
        """Return what a refusal means for this agent; None if it is about another one."""
        spool = self._spool
        own = (spool.agent_id, spool.session, spool.incarnation)
        if (decision.agent_id, decision.session, decision.incarnation) != own:
            return None
        return Displaced(decision.known, decision.in_use, decision.reason)

    def see(self, fact: Fact) -> Displaced | None:
        """Take note of a fact of the pool; return why the agent has lost its place, if it has."""
        spool = self._spool
        if fact.agent_id != spool.agent_id:
            return None
        if not isinstance(fact, AgentJoined):
            self._ends.append(fact.incarnation)
            self._news.set()
            return None
        if fact.session == spool.session or fact.incarnation <= spool.incarnation:
            return None
        if fact.folder_id and (fact.folder_id, fact.hostname) != (spool.id, socket.gethostname()):
            return None  # the scheduler tells them apart, and refuses that one
        return Displaced(
            fact.incarnation,
            in_use=True,
            reason=(
                f"another agent has joined as {spool.agent_id!r}, on host {fact.hostname} with "
                f"the folder {fact.folder or 'of an earlier release'}; this one has "
                f"{self._folder}, of which that is a copy: start one of them from an empty "
                "folder with another --agent-id; this one joins by itself once that has left or "
                "is lost"
            ),
        )

    async def free(self, known: int) -> None:
        """Return when the life of an incarnation, or of a later one, has ended."""
        while not any(ended >= known for ended in self._ends):
            self._news.clear()
            await self._news.wait()

"""What an agent says of itself to its pool: that it is there, lives, will go, and is gone.

Joining begins a new incarnation. Beats go straight to the ledger, past the spool: an old one is
worth nothing.
"""

import asyncio
import socket
from collections.abc import Collection, Sequence
from typing import Final

import structlog

from rung.agent.config import Settings
from rung.agent.slots import Device
from rung.agent.spool import Spool
from rung.events import LedgerError, LedgerRefused
from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentResumed,
    AgentSuspended,
    DrainRequested,
    Slot,
)
from rung.events.metric import AgentBeat
from rung.ledger import Ledger
from rung.runtime import FactWriter

_log = structlog.get_logger()


class Presence:
    """An agent as its pool knows it."""

    def __init__(
        self, settings: Settings, ledger: Ledger, spool: Spool, slots: Sequence[Device]
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._spool = spool
        self._slots = slots
        self._beats: FactWriter
        self.isolation = ""
        """How the agent isolates its runs, in words."""
        self.joined: Final = asyncio.Event()
        """Whether it has joined, and was not refused."""
        self._tried = False

    async def join(self, above: int = 0) -> int:
        """Begin a new incarnation, above one, and return it."""
        spool = self._spool
        incarnation = await spool.start_incarnation(above)
        self._beats = FactWriter(
            self._ledger, source=spool.source, origin=f"{spool.origin}/beats/{incarnation}"
        )
        spool.put(
            AgentJoined(
                pool=self._settings.pool,
                agent_id=spool.agent_id,
                incarnation=incarnation,
                hostname=socket.gethostname(),
                slots=[Slot(id=s.id, kind=s.kind, name=s.name) for s in self._slots],
                folder=str(self._settings.folder.absolute()),
                folder_id=spool.id,
                session=spool.session,
                isolation=self.isolation,
            )
        )
        self._tried = True
        _log.info("joined", agent=spool.agent_id, incarnation=incarnation, slots=len(self._slots))
        self.joined.set()
        return incarnation

    def refused(self) -> None:
        """Beat no more until it joins again: the id is another agent's."""
        self.joined.clear()

    async def beat(self, runs: Collection[str]) -> None:
        """Beat until cancelled.

        Args:
            runs: the allocations that are here, at any time.

        Raises:
            LedgerError: one that does not pass by itself; also one that lets nobody in, as long
                as it took no beat yet.
        """
        beaten = False
        while True:
            await self.joined.wait()
            try:
                await self._beats.write(
                    AgentBeat(
                        pool=self._settings.pool,
                        agent_id=self._spool.agent_id,
                        incarnation=self._spool.incarnation,
                        allocations=list(runs),
                    )
                )
            except LedgerError as error:
                refused = isinstance(error, LedgerRefused) and beaten
                if refused:
                    _log.error("no beat: the ledger refuses this agent", error=str(error))
                elif error.retriable:
                    _log.warning("no beat: the ledger is away", error=str(error))
                else:
                    raise
            else:
                beaten = True
            await asyncio.sleep(self._settings.beat_s)

    async def drain(self, reason: str) -> None:
        """Ask to be drained, once it joined."""
        await self.joined.wait()
        self._spool.put(
            DrainRequested(
                pool=self._settings.pool,
                agent_id=self._spool.agent_id,
                incarnation=self._spool.incarnation,
                reason=reason,
            )
        )

    def suspend(self, reason: str) -> None:
        """Say that the agent takes nothing new."""
        self._spool.put(
            AgentSuspended(
                pool=self._settings.pool,
                agent_id=self._spool.agent_id,
                incarnation=self._spool.incarnation,
                session=self._spool.session,
                reason=reason,
            )
        )

    def resume(self) -> None:
        """Say that the agent takes allocations again."""
        self._spool.put(
            AgentResumed(
                pool=self._settings.pool,
                agent_id=self._spool.agent_id,
                incarnation=self._spool.incarnation,
                session=self._spool.session,
            )
        )

    def leave(self) -> None:
        """Say goodbye, if it ever asked to join."""
        if self._tried:
            self._spool.put(
                AgentLeft(
                    pool=self._settings.pool,
                    agent_id=self._spool.agent_id,
                    incarnation=self._spool.incarnation,
                    session=self._spool.session,
                )
            )

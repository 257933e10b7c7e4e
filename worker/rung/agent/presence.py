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
from rung.events.allocation import AgentJoined, AgentLeft, DrainRequested, Slot
from rung.events.metric import AgentBeat
from rung.host import FactWriter
from rung.ledger import Ledger

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
        """Whether it ever joined."""

    async def join(self) -> int:
        """Begin a new incarnation and return it."""
        spool = self._spool
        incarnation = await spool.start_incarnation()
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
                isolation=self.isolation,
            )
        )
        _log.info("joined", agent=spool.agent_id, incarnation=incarnation, slots=len(self._slots))
        self.joined.set()
        return incarnation

    async def beat(self, runs: Collection[str]) -> None:
        """Beat until cancelled.

        Args:
            runs: the allocations that are here, at any time.

        Raises:
            LedgerError: one that does not pass by itself; also one that lets nobody in, as long
                as it took no beat yet.
        """
        await self.joined.wait()
        beaten = False
        while True:
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

    def leave(self) -> None:
        """Say goodbye, if it ever joined."""
        if self.joined.is_set():
            self._spool.put(
                AgentLeft(
                    pool=self._settings.pool,
                    agent_id=self._spool.agent_id,
                    incarnation=self._spool.incarnation,
                )
            )

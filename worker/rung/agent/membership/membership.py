"""Membership of an agent in its pool: joins, heartbeats, drains, leaves.

Joining begins a new incarnation. Heartbeats are appended directly to the ledger, not through the
outbox: an old one is worthless.
"""

import asyncio
import contextlib
import socket
from collections.abc import Collection, Sequence
from typing import Final

import structlog

from rung.agent.outbox.outbox import Outbox
from rung.agent.outbox.outbox_file import Marked
from rung.agent.settings import Settings
from rung.agent.slots import Device
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

_JOINED: Final = "joined"
"""The mark of the incarnation and session that have joined and not left."""

_SEEN: Final = "seen"
"""The file in the agent's folder that each heartbeat touches."""

_log = structlog.get_logger()


class Membership:
    """An agent's membership of its pool."""

    def __init__(
        self, settings: Settings, ledger: Ledger, outbox: Outbox, slots: Sequence[Device]
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._outbox = outbox
        self._slots = slots
        self._heartbeats: FactWriter
        self.isolation = ""
        """How the agent isolates its runs, as text."""
        self.joined: Final = asyncio.Event()
        """Set while it is joined and was not refused."""
        self._tried = False

    async def join(self, above: int = 0) -> int:
        """Begin a new incarnation, greater than `above`, and return it."""
        outbox = self._outbox
        incarnation = await outbox.start_incarnation(above)
        outbox.joined = outbox.session
        self._begin(incarnation)
        outbox.put(
            AgentJoined(
                pool=self._settings.pool,
                agent_id=outbox.agent_id,
                incarnation=incarnation,
                hostname=socket.gethostname(),
                slots=[Slot(id=s.id, kind=s.kind, name=s.name) for s in self._slots],
                folder=str(self._settings.folder.absolute()),
                folder_id=outbox.id,
                session=outbox.session,
                isolation=self.isolation,
                seen_ms=self._seen_ms(),
            ),
            changes=[Marked(_JOINED, f"{incarnation} {outbox.session}")],
        )
        self._tried = True
        _log.info("joined", agent=outbox.agent_id, incarnation=incarnation, slots=len(self._slots))
        self.joined.set()
        return incarnation

    def joined_before(self) -> bool:
        """Return whether an earlier session of the agent has joined, and has not left.

        If so, this session can continue under its incarnation.
        """
        incarnation, _, session = (self._outbox.mark(_JOINED) or "").partition(" ")
        if not session or incarnation != str(self._outbox.incarnation):
            return False
        self._outbox.joined = session
        return True

    def resume_incarnation(self) -> int:
        """Continue under the incarnation of an earlier session, and return it."""
        self._begin(self._outbox.incarnation)
        self._tried = True
        self.resume()
        _log.info(
            "joined before", agent=self._outbox.agent_id, incarnation=self._outbox.incarnation
        )
        self.joined.set()
        return self._outbox.incarnation

    def _begin(self, incarnation: int) -> None:
        origin = f"{self._outbox.origin}/beats/{incarnation}"
        self._heartbeats = FactWriter(self._ledger, source=self._outbox.source, origin=origin)

    def _seen_ms(self) -> int | None:
        """Return when the agent was last there, None if it never was in this folder."""
        try:
            return (self._settings.folder / _SEEN).stat().st_mtime_ns // 1_000_000
        except OSError:
            return None

    def refused(self) -> None:
        """Send no heartbeats until it joins again: the id is another agent's."""
        self.joined.clear()

    async def send_heartbeats(self, runs: Collection[str]) -> None:
        """Send heartbeats until cancelled.

        Args:
            runs: the current allocations of the agent; read for each heartbeat.

        Raises:
            LedgerError: one that retries do not cure; a refusal of the client counts as such only
                until the first heartbeat was accepted.
        """
        accepted = False
        while True:
            await self.joined.wait()
            with contextlib.suppress(OSError):  # a full disk ends no heartbeats
                (self._settings.folder / _SEEN).touch()
            try:
                await self._heartbeats.write(
                    AgentBeat(
                        pool=self._settings.pool,
                        agent_id=self._outbox.agent_id,
                        incarnation=self._outbox.incarnation,
                        allocations=list(runs),
                    )
                )
            except LedgerError as error:
                refused = isinstance(error, LedgerRefused) and accepted
                if refused:
                    _log.error("no beat: the ledger refuses this agent", error=str(error))
                elif error.retriable:
                    _log.warning("no beat: the ledger is away", error=str(error))
                else:
                    raise
            else:
                accepted = True
            await asyncio.sleep(self._settings.heartbeat_s)

    async def drain(self, reason: str) -> None:
        """Ask to be drained, once joined."""
        await self.joined.wait()
        self._outbox.put(
            DrainRequested(
                pool=self._settings.pool,
                agent_id=self._outbox.agent_id,
                incarnation=self._outbox.incarnation,
                reason=reason,
            )
        )

    def suspend(self, reason: str) -> None:
        """Record that the agent takes no new allocations."""
        self._outbox.put(
            AgentSuspended(
                pool=self._settings.pool,
                agent_id=self._outbox.agent_id,
                incarnation=self._outbox.incarnation,
                session=self._outbox.joined,
                reason=reason,
            )
        )

    def resume(self) -> None:
        """Record that the agent takes allocations again."""
        self._outbox.put(
            AgentResumed(
                pool=self._settings.pool,
                agent_id=self._outbox.agent_id,
                incarnation=self._outbox.incarnation,
                session=self._outbox.joined,
            )
        )

    def leave(self) -> None:
        """Record that the agent leaves, if it ever asked to join."""
        if self._tried:
            self._outbox.put(
                AgentLeft(
                    pool=self._settings.pool,
                    agent_id=self._outbox.agent_id,
                    incarnation=self._outbox.incarnation,
                    session=self._outbox.joined,
                ),
                changes=[Marked(_JOINED, "")],
            )

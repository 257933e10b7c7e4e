"""Carries the spool's facts to the ledger, in order, for as long as the agent lives.

A fact that is larger than the ledger takes would be refused for ever: it is given up, with an
error in the log, and those behind it go on. A ledger that no longer lets the agent in, because a
password was changed or a certificate ran out, is waited for like one that is away, for trials run.
"""

import asyncio
from typing import Final

import structlog

from rung.agent.spool import Spool
from rung.events import EventTooLarge, LedgerError, LedgerRefused
from rung.ledger import Draft, Ledger

_BATCH: Final = 512
_WAIT_S_MIN: Final = 0.05
_WAIT_S_MAX: Final = 5.0
_CLOSE_S: Final = 5.0

_log = structlog.get_logger()


class Drain:
    """Appends what the spool holds, batch by batch; a batch is forgotten once it was appended."""

    def __init__(self, spool: Spool, ledger: Ledger) -> None:
        self._spool = spool
        self._ledger = ledger
        self._drained = asyncio.Condition()
        self._after = 0
        self._served = False
        """Whether the ledger ever took something from this life of the agent."""
        self.refused: str | None = None
        """Why the ledger does not let the agent in now, None if it does or is merely away."""

    async def run(self) -> None:
        """Drain until cancelled; wait and try again while the ledger is away.

        Raises:
            LedgerError: one that does not pass by itself; also one that lets nobody in, as long
                as it took nothing yet.
        """
        self._after = self._spool.forgotten
        while True:
            spooled = await self._spool.read(self._after, _BATCH)
            await self._bring([item.draft for item in spooled])
            self._after = spooled[-1].number
            self._spool.forget(self._after)
            async with self._drained:
                self._drained.notify_all()

    async def empty(self) -> None:
        """Return when the ledger has all that the spool has taken so far."""
        async with self._drained:
            await self._drained.wait_for(lambda: self._spool.backlog == 0)

    async def close(self) -> None:
        """Return when the ledger has all, or after some seconds; the next life brings the rest."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.empty()
        except TimeoutError:
            _log.warning("left without the ledger: it hears of it at the next start")

    async def _bring(self, drafts: list[Draft]) -> None:
        """Append all but what the ledger cannot take."""
        try:
            await self._append(drafts)
        except EventTooLarge as error:
            if len(drafts) > 1:
                for draft in drafts:
                    await self._bring([draft])
                return
            _log.error(
                "a report is lost: the ledger does not take so large a one",
                topic=drafts[0].topic,
                key=drafts[0].key,
                error=str(error),
            )

    async def _append(self, drafts: list[Draft]) -> None:
        wait_s = _WAIT_S_MIN
        while True:
            try:
                await self._ledger.append(drafts)
            except LedgerError as error:
                refused = isinstance(error, LedgerRefused) and self._served
                if not (error.retriable or refused):
                    raise
                self.refused = str(error) if refused else None
                say = _log.error if refused else _log.warning
                what = "refuses this agent" if refused else "is away"
                say(
                    f"the ledger {what}; reports stay in the spool",
                    error=str(error),
                    backlog=self._spool.backlog,
                    wait_s=wait_s,
                )
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _WAIT_S_MAX)
            else:
                if wait_s > _WAIT_S_MIN:
                    _log.info("the ledger is back", backlog=self._spool.backlog)
                self._served, self.refused = True, None
                return

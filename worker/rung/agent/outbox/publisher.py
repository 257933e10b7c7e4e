"""Publisher: appends the outbox's events to the ledger, in order.

A fact that is too large for the ledger would be refused every time: it is dropped, with an error
in the log. A ledger that refuses the agent after it has accepted it, because a password was
changed or a certificate expired, is retried like one that is away, because trials go on.
"""

import asyncio
from typing import Final

import structlog

from rung.agent.outbox.outbox import Outbox
from rung.events import EventTooLarge, LedgerError, LedgerRefused
from rung.ledger import Draft, Ledger

_BATCH: Final = 512
_WAIT_S_MIN: Final = 0.05
_WAIT_S_MAX: Final = 5.0
_CLOSE_S: Final = 5.0

_log = structlog.get_logger()


class Publisher:
    """Appends what the outbox holds, batch by batch; a batch is forgotten once it was appended."""

    def __init__(self, outbox: Outbox, ledger: Ledger) -> None:
        self._outbox = outbox
        self._ledger = ledger
        self._drained = asyncio.Condition()
        self._after = 0
        self._served = False
        """Whether the ledger has accepted an append of this session."""
        self.refused: str | None = None
        """Why the ledger refuses the agent now, None if it does not, or is away."""

    async def run(self) -> None:
        """Publish until cancelled; retry with back-off while the ledger is away.

        Raises:
            LedgerError: one that retries do not cure; a refusal of the client counts as such only
                until the first append was accepted.
        """
        self._after = self._outbox.forgotten
        while True:
            entries = await self._outbox.read(self._after, _BATCH)
            await self._publish([item.draft for item in entries])
            self._after = entries[-1].number
            self._outbox.forget(self._after)
            async with self._drained:
                self._drained.notify_all()

    async def empty(self) -> None:
        """Return when the outbox is empty."""
        async with self._drained:
            await self._drained.wait_for(lambda: self._outbox.backlog == 0)

    async def published(self, number: int) -> None:
        """Return when the ledger has the outbox's facts up to that number."""
        async with self._drained:
            await self._drained.wait_for(lambda: self._outbox.forgotten >= number)

    async def close(self) -> None:
        """Return when the outbox is empty, or after some seconds.

        The next session publishes the rest.
        """
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.empty()
        except TimeoutError:
            _log.warning(
                "stopped before all reports were published; the next start publishes them",
                backlog=self._outbox.backlog,
            )

    async def _publish(self, drafts: list[Draft]) -> None:
        """Append all facts but those that are too large for the ledger."""
        try:
            await self._append(drafts)
        except EventTooLarge as error:
            if len(drafts) > 1:
                for draft in drafts:
                    await self._publish([draft])
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
                    f"the ledger {what}; reports stay in the outbox",
                    error=str(error),
                    backlog=self._outbox.backlog,
                    wait_s=wait_s,
                )
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _WAIT_S_MAX)
            else:
                if wait_s > _WAIT_S_MIN:
                    _log.info("the ledger is back", backlog=self._outbox.backlog)
                self._served, self.refused = True, None
                return

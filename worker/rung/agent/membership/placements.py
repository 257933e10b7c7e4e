"""Placements: the subscription to the scheduler's decisions about one pool."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from rung.events import LedgerError, UndecodableEvent, decode_from, partition_of, topic
from rung.events.allocation import (
    AllocationDropped,
    AllocationGranted,
    AllocationLost,
    AllocationSignaled,
    JoinRefused,
)
from rung.ledger import Ledger, Record
from rung.ledger.effective import NO_CAUSE, cause_of, is_new_decision
from rung.runtime import tracing
from rung.runtime.retry import supervise

Placement = (
    AllocationGranted | AllocationSignaled | AllocationLost | AllocationDropped | JoinRefused
)

_RETRY_S: Final = 0.5

_log = structlog.get_logger()


class Placements:
    """Delivers each decision about a pool once."""

    def __init__(self, ledger: Ledger, pool: str, handle: Callable[[Placement], None]) -> None:
        self._ledger = ledger
        self._pool = pool
        self._handle = handle
        self._partition = partition_of(pool, ledger.partitions(topic.PLACEMENTS))
        self._position = 0
        self._causes = {pool: NO_CAUSE}

    @property
    def mark(self) -> str:
        """The position after the last decision, for the next session of the agent."""
        return " ".join(map(str, (self._position, *self._causes[self._pool])))

    @property
    def cause(self) -> int:
        """The position, in the pool's facts, of the cause of the decision at hand."""
        return max(self._causes[self._pool][0], 0)

    def resume_at(self, mark: str) -> None:
        """Follow from the position of an earlier session of the agent.

        Its mark contains the cause of the last decision, because that one may be appended again.
        """
        self._position, *cause = map(int, mark.split())
        if cause:
            self._causes[self._pool] = (cause[0], cause[1])

    async def seek_to_end(self) -> None:
        """Start behind the decisions that are on record already."""
        while True:
            try:
                self._position = await self._ledger.end(topic.PLACEMENTS, self._partition)
            except LedgerError as error:
                if not error.retriable:
                    raise
                _log.warning("cannot join yet: the ledger is away", error=str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def follow(self) -> None:
        """Follow for ever, and retry while the ledger is away."""
        await supervise(self._follow, name="agent-placements", patient=True)

    async def _follow(self) -> None:
        stream = self._ledger.follow(topic.PLACEMENTS, self._partition, self._position)
        async for records in stream:
            for record in records:
                self._position = record.position + 1
                self._take(record)

    def _take(self, record: Record) -> None:
        try:
            event = decode_from(topic.PLACEMENTS, record.value)
        except UndecodableEvent as error:
            _log.error("cannot read a placement", position=record.position, error=str(error))
            return
        if event.key == self._pool and is_new_decision(cause_of(event), self._causes, event.key):
            assert isinstance(event.data, Placement), event
            with tracing.following(event.traceparent):
                self._handle(event.data)

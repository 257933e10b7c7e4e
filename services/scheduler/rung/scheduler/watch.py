"""Listens for the heartbeats of agents and reports those that stay away as lost.

It reads `pools` (who is there) and `heartbeats` (who is alive) once per tick, a twentieth of the
timeout. Silence is counted tick by tick, and a tick counts for no more than twice its length:
after a standstill of this process (suspended, starved, its ledger away) the agents get the time
to be heard again instead of being judged by a silence that was its own. Nobody's silence begins
before this watch did, so an agent that is gone when the scheduler starts has the full timeout.
"""

import asyncio
import time
from typing import Final, Protocol

import msgspec
import structlog

from rung.events import LedgerError, UndecodableEvent, decode, topic
from rung.ledger import Ledger, Record
from rung.runtime import FactWriter
from rung.scheduler.vigil import Vigil

TICKS_PER_TIMEOUT: Final = 20
_SNAPSHOT: Final = "scheduler-watch/1"
_SNAPSHOT_EVERY: Final = 10_000
_SAVES_WITHIN_S: Final = 2.0
_LOADS_WITHIN_S: Final = 15.0
_READ_MAX: Final = 1_000

_log = structlog.get_logger()


class Clock(Protocol):
    """Time that only moves forward."""

    def now(self) -> float:
        """Return the seconds since some moment."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


class Monotonic:
    """The machine's own clock; a suspended machine's stands still."""

    def now(self) -> float:
        """Return the seconds since some moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)


class Watch:
    """One watch over all agents of a ledger."""

    def __init__(
        self, ledger: Ledger, writer: FactWriter, *, timeout: float, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._timeout = timeout
        self._clock = clock
        self._vigil = Vigil()
        self._beats: list[int] = []
        self._unsaved = 0

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            LedgerError: the ledger failed; run again to start afresh.
        """
        await self._start()
        tick = self._timeout / TICKS_PER_TIMEOUT
        last = self._clock.now()
        while True:
            await self._clock.sleep(tick)
            now = self._clock.now()
            self._vigil.elapse(min(now - last, 2 * tick))
            last = now
            await self._read_pools()
            await self._read_beats()
            await self._report()

    async def _start(self) -> None:
        self._vigil = _restore(await self._load())
        partitions = self._ledger.partitions(topic.POOLS)
        self._vigil.positions += [0] * (partitions - len(self._vigil.positions))
        self._beats = [
            await self._ledger.end(topic.HEARTBEATS, partition)
            for partition in range(self._ledger.partitions(topic.HEARTBEATS))
        ]
        await self._read_pools()
        self._vigil.forgive()

    async def _read_pools(self) -> None:
        self._unsaved += await self._read(topic.POOLS, self._vigil.positions)
        if self._unsaved >= _SNAPSHOT_EVERY:
            self._unsaved = 0
            await self._save(msgspec.json.encode(self._vigil))

    async def _load(self) -> bytes | None:
        """Return the newest snapshot; where it cannot be had, reading from the beginning does."""
        try:
            async with asyncio.timeout(_LOADS_WITHIN_S):
                return await self._ledger.snapshot(_SNAPSHOT, 0)
        except (LedgerError, TimeoutError) as error:
            _log.warning("no snapshot loaded", name=_SNAPSHOT, reason=str(error))
            return None

    async def _save(self, value: bytes) -> None:
        """Save a snapshot; agents are watched on without one where it cannot be saved."""
        try:
            async with asyncio.timeout(_SAVES_WITHIN_S):
                await self._ledger.save_snapshot(_SNAPSHOT, 0, value)
        except (LedgerError, TimeoutError) as error:
            _log.warning("no snapshot saved", name=_SNAPSHOT, reason=str(error))

    async def _read_beats(self) -> None:
        await self._read(topic.HEARTBEATS, self._beats)

    async def _read(self, name: str, positions: list[int]) -> int:
        """Fold what is new in a topic; return how much it was."""
        count = 0
        for partition, position in enumerate(positions):
            next_position = position
            while records := await self._ledger.read(name, partition, next_position, _READ_MAX):
                for record in records:
                    self._fold(record)
                next_position = records[-1].position + 1
                count += len(records)
            positions[partition] = next_position
        return count

    def _fold(self, record: Record) -> None:
        try:
            event = decode(record.value)
        except UndecodableEvent:
            return  # the scheduler's host makes a dead letter of it
        self._vigil.fold(event.data)

    async def _report(self) -> None:
        for loss in self._vigil.overdue(self._timeout):
            _log.warning(
                "agent lost",
                pool=loss.pool,
                agent_id=loss.agent_id,
                incarnation=loss.incarnation,
                silent_ms=loss.silent_ms,
            )
            await self._writer.write(loss)
            self._vigil.fold(loss)


def _restore(snapshot: bytes | None) -> Vigil:
    if snapshot is None:
        return Vigil()
    try:
        return msgspec.json.decode(snapshot, type=Vigil)
    except msgspec.DecodeError as error:
        _log.warning("snapshot ignored", name=_SNAPSHOT, reason=str(error))
        return Vigil()

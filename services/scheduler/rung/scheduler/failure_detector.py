"""Failure detector: reports agents whose heartbeats stay away as lost.

It reads `pools` (which agents there are) and `heartbeats` (which are alive) once per tick, a
twentieth of the timeout. Silence is counted tick by tick, and a tick counts for no more than twice
its length: after a standstill of this process (suspended, starved, its ledger away) the agents get
the time to be heard again instead of being judged by a silence that was its own. No silence begins
before the detector did, so an agent that is gone when the scheduler starts has the full timeout.
"""

import asyncio
from typing import Final, Protocol

import msgspec
import structlog
from msgspec import Struct, field

from rung.events import LedgerError, Payload, UndecodableEvent, decode, topic
from rung.events.allocation import AgentJoined, AgentLeft, AgentLost
from rung.events.metric import AgentBeat
from rung.ledger import Ledger, Record
from rung.runtime import FactWriter
from rung.scheduler.membership import admits, speaks

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
    """The event loop's clock; a suspended machine's stands still."""

    def now(self) -> float:
        """Return the seconds since some moment."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)


class Life(Struct, kw_only=True):
    """The newest incarnation of an agent."""

    pool: str
    agent_id: str
    incarnation: int
    there: bool = True
    """It joined and has neither left nor been lost."""
    silent_s: float = 0.0
    join: AgentJoined | None = None
    """That it began with, where that has a session."""


class Agents(Struct, kw_only=True):
    """All agents of all pools, and how long each has been silent.

    The rules are the scheduler's: an incarnation begins once, by a join that is admitted; what
    names another one is ignored; and an incarnation that was lost stays lost, so it is reported
    once.
    """

    positions: list[int] = field(default_factory=list[int])
    """Of `pools`, by partition: the next record to fold."""
    lives: dict[str, Life] = field(default_factory=dict[str, Life])

    def fold(self, event: Payload) -> None:
        """Fold a heartbeat, or an event of the pool."""
        match event:
            case AgentJoined():
                self._begin(event)
            case AgentLeft():
                life = self._life(event.pool, event.agent_id)
                if life and speaks(event, known=life.incarnation, join=life.join):
                    life.there = False
            case AgentLost():
                life = self._life(event.pool, event.agent_id)
                if life and life.incarnation == event.incarnation:
                    life.there = False
            case AgentBeat():
                life = self._life(event.pool, event.agent_id)
                if life and life.incarnation == event.incarnation:
                    life.silent_s = 0.0
            case _:
                pass

    def elapse(self, seconds: float) -> None:
        """Count time in which no heartbeat came."""
        for life in self.lives.values():
            life.silent_s += seconds

    def reset(self) -> None:
        """Count every silence from now on."""
        for life in self.lives.values():
            life.silent_s = 0.0

    def overdue(self, timeout: float) -> list[AgentLost]:
        """Return the losses to report of those silent for so many seconds, or longer."""
        return [
            AgentLost(
                pool=life.pool,
                agent_id=life.agent_id,
                incarnation=life.incarnation,
                silent_ms=round(life.silent_s * 1000),
            )
            for life in self.lives.values()
            if life.there and life.silent_s >= timeout
        ]

    def _begin(self, event: AgentJoined) -> None:
        life = self._life(event.pool, event.agent_id)
        known, join, there = -1, None, False
        if life is not None:
            known, join, there = life.incarnation, life.join, life.there
        if admits(event, known=known, join=join, there=there):
            self.lives[f"{event.pool}/{event.agent_id}"] = Life(
                pool=event.pool,
                agent_id=event.agent_id,
                incarnation=event.incarnation,
                join=event if event.session else None,
            )

    def _life(self, pool: str, agent_id: str) -> Life | None:
        return self.lives.get(f"{pool}/{agent_id}")


class FailureDetector:
    """The failure detector of a ledger; of several replicas one runs it."""

    def __init__(
        self, ledger: Ledger, writer: FactWriter, *, timeout: float, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._timeout = timeout
        self._clock = clock
        self._agents = Agents()
        self._beats: list[int] = []
        self._unsaved = 0

    async def run(self) -> None:
        """Report losses until cancelled.

        Raises:
            LedgerError: the ledger failed; run again to start afresh.
        """
        await self._start()
        tick = self._timeout / TICKS_PER_TIMEOUT
        last = self._clock.now()
        while True:
            await self._clock.sleep(tick)
            now = self._clock.now()
            self._agents.elapse(min(now - last, 2 * tick))
            last = now
            await self._read_pools()
            await self._read_beats()
            await self._report()

    async def _start(self) -> None:
        self._agents = _restore(await self._load())
        partitions = self._ledger.partitions(topic.POOLS)
        self._agents.positions += [0] * (partitions - len(self._agents.positions))
        self._beats = [
            await self._ledger.end(topic.HEARTBEATS, partition)
            for partition in range(self._ledger.partitions(topic.HEARTBEATS))
        ]
        await self._read_pools()
        self._agents.reset()

    async def _read_pools(self) -> None:
        self._unsaved += await self._read(topic.POOLS, self._agents.positions)
        if self._unsaved >= _SNAPSHOT_EVERY:
            self._unsaved = 0
            await self._save(msgspec.json.encode(self._agents))

    async def _load(self) -> bytes | None:
        """Return the newest snapshot; where it cannot be had, reading from the beginning does."""
        try:
            async with asyncio.timeout(_LOADS_WITHIN_S):
                return await self._ledger.snapshot(_SNAPSHOT, 0)
        except (LedgerError, TimeoutError) as error:
            _log.warning("no snapshot loaded", name=_SNAPSHOT, reason=str(error))
            return None

    async def _save(self, value: bytes) -> None:
        """Save a snapshot; agents are observed without one where it cannot be saved."""
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
            return  # the processor makes a dead letter of it
        self._agents.fold(event.data)

    async def _report(self) -> None:
        for loss in self._agents.overdue(self._timeout):
            _log.warning(
                "agent lost",
                pool=loss.pool,
                agent_id=loss.agent_id,
                incarnation=loss.incarnation,
                silent_ms=loss.silent_ms,
            )
            await self._writer.write(loss)
            self._agents.fold(loss)


def _restore(snapshot: bytes | None) -> Agents:
    if snapshot is None:
        return Agents()
    try:
        return msgspec.json.decode(snapshot, type=Agents)
    except msgspec.DecodeError as error:
        _log.warning("snapshot ignored", name=_SNAPSHOT, reason=str(error))
        return Agents()

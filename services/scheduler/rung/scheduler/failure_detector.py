"""Failure detector: reports agents whose heartbeats stay away as lost.

Each replica watches the agents of the pools that it schedules. Once per tick, a twentieth of the
timeout, it takes the agents from the states of its processor and reads `heartbeats`. A tick counts
for no more than twice its length: a standstill of this process (suspended, starved, its ledger
away) is not taken for silence of the agents. No silence begins before the detector, so an agent
that is gone when a replica takes its pool over has the full timeout.

Two replicas that both own a pool for a moment may both report an agent; the scheduler takes the
first report and ignores the other.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from rung.events import UndecodableEvent, decode, topic
from rung.events.allocation import AgentLost
from rung.events.metric import AgentBeat
from rung.ledger import Ledger, Record
from rung.runtime import FactWriter
from rung.scheduler.state import State

TICKS_PER_TIMEOUT: Final = 20
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


class Life(NamedTuple):
    """One incarnation of an agent."""

    pool: str
    agent_id: str
    incarnation: int


class FailureDetector:
    """The failure detector of one replica of the scheduler."""

    def __init__(
        self,
        ledger: Ledger,
        writer: FactWriter,
        pools: Callable[[], Iterable[State]],
        *,
        timeout: float,
        clock: Clock,
    ) -> None:
        """Prepare it.

        Args:
            ledger: heartbeats are read from it.
            writer: writes the reports.
            pools: returns the states of the pools that this replica schedules.
            timeout: seconds of silence after which an agent is lost.
            clock: measures the silence.
        """
        self._ledger = ledger
        self._writer = writer
        self._pools = pools
        self._timeout = timeout
        self._clock = clock
        self._silent_s: dict[Life, float] = {}

    async def run(self) -> None:
        """Report losses until cancelled.

        Raises:
            LedgerError: the ledger failed; run again to start afresh.
        """
        positions = [
            await self._ledger.end(topic.HEARTBEATS, partition)
            for partition in range(self._ledger.partitions(topic.HEARTBEATS))
        ]
        self._silent_s = dict.fromkeys(self._present(), 0.0)
        tick = self._timeout / TICKS_PER_TIMEOUT
        last = self._clock.now()
        while True:
            await self._clock.sleep(tick)
            now = self._clock.now()
            self._elapse(min(now - last, 2 * tick))
            last = now
            for partition, position in enumerate(positions):
                positions[partition] = await self._read_heartbeats(partition, position)
            await self._report()

    def _present(self) -> list[Life]:
        """Return the agents that joined and have neither left nor been lost."""
        return [
            Life(pool.pool, agent_id, pool.incarnations[agent_id])
            for pool in self._pools()
            for agent_id in pool.runs_on
        ]

    def _elapse(self, seconds: float) -> None:
        """Count time in which no heartbeat came; begin with agents that joined meanwhile."""
        silent_s = self._silent_s
        self._silent_s = {
            life: silent_s[life] + seconds if life in silent_s else 0.0 for life in self._present()
        }

    async def _read_heartbeats(self, partition: int, position: int) -> int:
        """Read a partition from a position to its end; return the end."""
        while records := await self._ledger.read(topic.HEARTBEATS, partition, position, _READ_MAX):
            self._fold(records)
            position = records[-1].position + 1
        return position

    def _fold(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                beat = decode(record.value).data
            except UndecodableEvent:
                continue
            if isinstance(beat, AgentBeat):
                life = Life(beat.pool, beat.agent_id, beat.incarnation)
                if life in self._silent_s:
                    self._silent_s[life] = 0.0

    async def _report(self) -> None:
        overdue = [life for life, seconds in self._silent_s.items() if seconds >= self._timeout]
        for life in overdue:
            # Present until the scheduler has folded the loss: then its silence begins anew.
            silent_ms = round(self._silent_s.pop(life) * 1000)
            _log.warning("agent lost", **life._asdict(), silent_ms=silent_ms)
            await self._writer.write(AgentLost(**life._asdict(), silent_ms=silent_ms))

"""Silent agents are lost, exactly once, and only by their own silence."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from rung.events import Event, Payload, topic
from rung.events.allocation import AgentLost
from rung.events.metric import AgentBeat
from rung.ledger import Ledger, MemoryLedger
from rung.runtime import FactWriter
from rung.scheduler.failure_detector import TICKS_PER_TIMEOUT, FailureDetector
from scheduler.ledger_watch import ManualClock, all_of
from support.scheduler.scenario import POOL, Pool, joined, left, lost

_TIMEOUT = 30.0
_TICK = _TIMEOUT / TICKS_PER_TIMEOUT


class _Folded(FactWriter):
    """A writer whose facts the scheduler has folded when it returns."""

    def __init__(self, ledger: Ledger, pool: Pool) -> None:
        super().__init__(ledger, source="/rung/test", origin=f"test/{id(self)}")
        self._pool = pool

    async def write(self, data: Payload, **given: Any) -> Event:
        event = await super().write(data, **given)
        if event.topic == topic.POOLS:
            self._pool.tell(data)
        return event


class _World:
    """A ledger with a pool that the scheduler has folded."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger()
        self.pool = Pool()
        self.write = _Folded(self.ledger, self.pool).write

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[ManualClock]:
        clock = ManualClock()
        detector = FailureDetector(
            self.ledger,
            _Folded(self.ledger, self.pool),
            lambda: [self.pool.state],
            timeout=_TIMEOUT,
            clock=clock,
        )
        task = asyncio.create_task(detector.run())
        try:
            await clock.advance(0)
            yield clock
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def losses(self) -> list[Payload]:
        return await all_of(self.ledger, topic.POOLS, AgentLost)

    async def lost(self) -> list[tuple[str, int]]:
        return [
            (loss.agent_id, loss.incarnation)
            for loss in await self.losses()
            if isinstance(loss, AgentLost)
        ]


def _beat(agent_id: str = "a", incarnation: int = 1) -> AgentBeat:
    return AgentBeat(pool=POOL, agent_id=agent_id, incarnation=incarnation, allocations=[])


async def test_a_silent_agent_is_lost_once() -> None:
    """Silence as long as the timeout loses an agent, and never a second time."""
    world = _World()
    async with world.watching() as clock:
        await world.write(joined("a"))
        await clock.advance(_TIMEOUT - _TICK)
        assert await world.losses() == []

        await clock.advance(3 * _TIMEOUT)

    assert await world.losses() == [
        AgentLost(pool=POOL, agent_id="a", incarnation=1, silent_ms=30_000)
    ]


async def test_a_beating_agent_stays() -> None:
    """Beats at any distance below the timeout keep an agent; the one beside it is lost."""
    world = _World()
    async with world.watching() as clock:
        await world.write(joined("a"))
        await world.write(joined("b"))
        for _ in range(6):
            await clock.advance(_TIMEOUT * 0.9)
            await world.write(_beat("a"))

    assert await world.lost() == [("b", 1)]


async def test_the_beat_of_an_earlier_life_does_not_count() -> None:
    """A beat of another incarnation says nothing about the present one."""
    world = _World()
    async with world.watching() as clock:
        await world.write(joined("a", incarnation=2))
        for _ in range(4):
            await clock.advance(_TIMEOUT / 3)
            await world.write(_beat("a", incarnation=1))

    assert await world.lost() == [("a", 2)]


async def test_who_was_there_before_gets_the_full_timeout() -> None:
    """A scheduler that starts gives every agent on record the time to be heard."""
    world = _World()
    await world.write(joined("a"))
    await world.write(_beat("a"))
    async with world.watching() as clock:
        await clock.advance(_TIMEOUT - _TICK)
        assert await world.losses() == []

        await clock.advance(_TICK)

    assert len(await world.losses()) == 1


async def test_who_is_gone_is_not_lost_again() -> None:
    """Neither one that left, nor one that an earlier scheduler lost, nor a repeated joining."""
    world = _World()
    for fact in (joined("a"), left("a"), joined("b"), lost("b"), joined("b"), left("c")):
        await world.write(fact)
    async with world.watching() as clock:
        await world.write(joined("a"))
        await clock.advance(3 * _TIMEOUT)

    assert await world.losses() == [lost("b")]


async def test_who_comes_back_is_watched_again() -> None:
    """A higher incarnation of a lost agent is a new life, with a loss of its own."""
    world = _World()
    async with world.watching() as clock:
        await world.write(joined("a"))
        await clock.advance(2 * _TIMEOUT)
        await world.write(joined("a", incarnation=2))
        await clock.advance(_TIMEOUT)
        assert await world.lost() == [("a", 1)]

        await clock.advance(_TIMEOUT)

    assert await world.lost() == [("a", 1), ("a", 2)]


async def test_a_refused_agent_is_not_watched() -> None:
    """The agent that was admitted is watched, and that one alone."""
    world = _World()
    async with world.watching() as clock:
        await world.write(joined("a", 4, 1, folder="F"))
        await world.write(joined("a", 4, 9, folder="G"))
        await clock.advance(_TIMEOUT / 2)
        await world.write(_beat("a", 1))
        await world.write(left("a", 1, folder="G"))
        await clock.advance(_TIMEOUT - _TICK)
        assert await world.losses() == []

        await clock.advance(2 * _TICK)
        assert await world.lost() == [("a", 1)]

        await world.write(joined("a", 4, 10, folder="G"))
        await clock.advance(_TIMEOUT + _TICK)

    assert await world.lost() == [("a", 1), ("a", 10)]


async def test_a_standstill_of_the_detector_loses_no_agent() -> None:
    """A detector that was stopped itself does not take its own silence for that of the agents."""
    world = _World()
    async with world.watching() as clock:
        await world.write(joined("a"))
        await clock.advance(_TIMEOUT / 2)
        await clock.jump(100 * _TIMEOUT)
        assert await world.losses() == []

        await clock.advance(_TIMEOUT / 2)

    assert len(await world.losses()) == 1

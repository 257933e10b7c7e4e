"""Silent agents are lost, exactly once, and only by their own silence."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from rung.events import Payload, topic
from rung.events.allocation import AgentLost
from rung.events.metric import AgentBeat
from rung.ledger import Ledger, MemoryLedger
from rung.runtime import FactWriter
from rung.scheduler.failure_detector import TICKS_PER_TIMEOUT, Agents, FailureDetector
from scheduler.ledger_watch import ManualClock, all_of, writer
from scheduler.scenario import POOL, joined, left, lost, released

_TIMEOUT = 30.0
_TICK = _TIMEOUT / TICKS_PER_TIMEOUT


@contextlib.asynccontextmanager
async def _watching(ledger: Ledger) -> AsyncIterator[ManualClock]:
    clock = ManualClock()
    reporter = FactWriter(ledger, source="/rung/scheduler", origin=f"scheduler/{id(clock)}")
    detector = FailureDetector(ledger, reporter, timeout=_TIMEOUT, clock=clock)
    task = asyncio.create_task(detector.run())
    try:
        await clock.advance(0)
        yield clock
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _beat(agent_id: str = "a", incarnation: int = 1) -> AgentBeat:
    return AgentBeat(pool=POOL, agent_id=agent_id, incarnation=incarnation, allocations=[])


async def _losses(ledger: Ledger) -> list[Payload]:
    return await all_of(ledger, topic.POOLS, AgentLost)


async def test_a_silent_agent_is_lost_once() -> None:
    """Silence as long as the timeout loses an agent, and never a second time."""
    ledger = MemoryLedger()
    async with _watching(ledger) as clock:
        await writer(ledger).write(joined("a"))
        await clock.advance(_TIMEOUT - _TICK)
        assert await _losses(ledger) == []

        await clock.advance(3 * _TIMEOUT)

    assert await _losses(ledger) == [
        AgentLost(pool=POOL, agent_id="a", incarnation=1, silent_ms=30_000)
    ]


async def test_a_beating_agent_stays() -> None:
    """Beats at any distance below the timeout keep an agent; the one beside it is lost."""
    ledger = MemoryLedger()
    write = writer(ledger).write
    async with _watching(ledger) as clock:
        await write(joined("a"))
        await write(joined("b"))
        for _ in range(6):
            await clock.advance(_TIMEOUT * 0.9)
            await write(_beat("a"))

    assert [loss.agent_id for loss in await _losses(ledger)] == ["b"]  # type: ignore[union-attr]


async def test_the_beat_of_an_earlier_life_does_not_count() -> None:
    """A beat of another incarnation says nothing about the present one."""
    ledger = MemoryLedger()
    write = writer(ledger).write
    async with _watching(ledger) as clock:
        await write(joined("a", incarnation=2))
        for _ in range(4):
            await clock.advance(_TIMEOUT / 3)
            await write(_beat("a", incarnation=1))

    assert len(await _losses(ledger)) == 1


async def test_who_was_there_before_gets_the_full_timeout() -> None:
    """A scheduler that starts gives every agent on record the time to be heard."""
    ledger = MemoryLedger()
    await writer(ledger).write(joined("a"))
    await writer(ledger, "agent").write(_beat("a"))
    async with _watching(ledger) as clock:
        await clock.advance(_TIMEOUT - _TICK)
        assert await _losses(ledger) == []

        await clock.advance(_TICK)

    assert len(await _losses(ledger)) == 1


async def test_who_is_gone_is_not_lost_again() -> None:
    """Neither one that left, nor one that an earlier scheduler lost, nor a repeated joining."""
    ledger = MemoryLedger()
    write = writer(ledger).write
    for fact in (joined("a"), left("a"), joined("b"), lost("b"), joined("b"), left("c")):
        await write(fact)
    async with _watching(ledger) as clock:
        await write(joined("a"))
        await clock.advance(3 * _TIMEOUT)

    assert await _losses(ledger) == [lost("b")]


async def test_who_comes_back_is_watched_again() -> None:
    """A higher incarnation of a lost agent is a new life, with a loss of its own."""
    ledger = MemoryLedger()
    write = writer(ledger).write
    async with _watching(ledger) as clock:
        await write(joined("a"))
        await clock.advance(2 * _TIMEOUT)
        await write(joined("a", incarnation=2))
        await clock.advance(_TIMEOUT)
        assert len(await _losses(ledger)) == 1

        await clock.advance(_TIMEOUT)

    assert [loss.incarnation for loss in await _losses(ledger)] == [1, 2]  # type: ignore[union-attr]


async def test_a_standstill_of_the_detector_loses_no_agent() -> None:
    """A detector that was stopped itself does not take its own silence for that of the agents."""
    ledger = MemoryLedger()
    async with _watching(ledger) as clock:
        await writer(ledger).write(joined("a"))
        await clock.advance(_TIMEOUT / 2)
        await clock.jump(100 * _TIMEOUT)
        assert await _losses(ledger) == []

        await clock.advance(_TIMEOUT / 2)

    assert len(await _losses(ledger)) == 1


async def test_a_detector_goes_on_from_its_snapshot() -> None:
    """After thousands of records a new detector knows the agents without reading all of them."""
    ledger = MemoryLedger()
    write = writer(ledger).write
    await write(joined("a"))
    for _ in range(10_000):
        await write(released("e.0.1", "a"))
    async with _watching(ledger):
        pass
    value = await ledger.snapshot("scheduler-watch/1", 0)
    assert value is not None
    assert sum(msgspec.json.decode(value, type=Agents).positions) == 10_001

    async with _watching(ledger) as clock:
        await clock.advance(_TIMEOUT)

    assert len(await _losses(ledger)) == 1


async def test_an_unreadable_snapshot_is_passed_over() -> None:
    """A damaged snapshot costs time, nothing else."""
    ledger = MemoryLedger()
    await ledger.save_snapshot("scheduler-watch/1", 0, b"{")
    await writer(ledger).write(joined("a"))
    async with _watching(ledger) as clock:
        await clock.advance(_TIMEOUT)

    assert len(await _losses(ledger)) == 1

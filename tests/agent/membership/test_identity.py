"""Agents of one id, restored folders and copies, with the real scheduler."""

import asyncio
import contextlib
import itertools
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rung.events.allocation import AgentJoined, AgentLeft, AllocationReleased, JoinRefused
from rung.events.metric import AgentBeat, LogsPrinted
from rung.ledger import MemoryLedger
from rung.runtime.service import serve
from rung.scheduler.service import components
from rung.scheduler.settings import Settings
from support.agent_rig import Rig
from support.processes import eventually

pytestmark = pytest.mark.processes

_LIVES = itertools.count()


@pytest.fixture
async def ledger() -> AsyncIterator[MemoryLedger]:
    """Give a ledger with the scheduler on it, that takes agents for lost after a second."""
    made = MemoryLedger(partitions=1)
    serving = asyncio.create_task(serve(made, components(Settings(agent_timeout=1.0))))
    try:
        yield made
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


@contextlib.asynccontextmanager
async def _agent(folder: Path, ledger: MemoryLedger) -> AsyncIterator[Rig]:
    rig = Rig(folder, ledger)
    rig._runs = 10 * next(_LIVES)
    rig.start(heartbeat_s=0.1)
    try:
        yield rig
    finally:
        await rig.close()


async def _member(rig: Rig, above: int = 0) -> int:
    """Return the incarnation, above one, under which the agent has a place in its pool."""
    await eventually(lambda: rig.agent._displaced is None and (rig.agent._offering or 0) > above)
    offering = rig.agent._offering
    assert offering is not None
    # What grants follow: beats may overtake it.
    await rig.until(AgentJoined, lambda it: it.incarnation == offering)
    await rig.until(AgentBeat, lambda it: it.incarnation == offering, count=3)
    return offering


async def test_two_agents_of_one_name(tmp_path: Path, ledger: MemoryLedger) -> None:
    """The second is not ready, by a sentence that names both, and joins when the first leaves."""
    async with _agent(tmp_path / "1", ledger) as first:
        await _member(first)
        async with _agent(tmp_path / "2", ledger) as second:
            await eventually(lambda: second.agent._displaced is not None)
            said = await second.agent.unready() or ""
            for word in (socket.gethostname(), str(first.folder), str(second.folder), "agent-id"):
                assert word in said
            assert await first.agent.unready() is None
            assert (await first.run_script("print('here')")).printed() == ["here"]

            await first.stop()
            await _member(second)
            assert await second.agent.unready() is None


async def test_a_refused_agent_that_stops_takes_nothing_along(
    tmp_path: Path, ledger: MemoryLedger
) -> None:
    """The goodbye of the second ends no life of the first."""
    async with _agent(tmp_path / "1", ledger) as first:
        offering = await _member(first)
        async with _agent(tmp_path / "2", ledger) as second:
            await eventually(lambda: second.agent._displaced is not None)
            await second.stop()
        await first.until(AgentLeft)
        assert await _member(first) == offering


async def test_a_folder_restored_from_a_backup(tmp_path: Path, ledger: MemoryLedger) -> None:
    """Its agent joins above the incarnation on record, and what it reports is not dropped."""
    for life in range(3):
        async with _agent(tmp_path, ledger) as rig:
            newest = await _member(rig)
            await rig.run_script("print('before')")
            await rig.stop()
        if life == 0:
            shutil.copytree(tmp_path / "agent", tmp_path / "backup", symlinks=True)
    shutil.rmtree(tmp_path / "agent")
    (tmp_path / "backup").rename(tmp_path / "agent")

    async with _agent(tmp_path, ledger) as rig:
        await rig.until(JoinRefused)
        assert await _member(rig, newest) == newest + 1
        ended = await rig.run_script("print('after')")
        assert ended.printed() == ["after"]
        assert await rig.agent.unready() is None
        events = await rig.events()
        keys = [(event.origin, event.sequence) for event in events]
        assert len(keys) == len(set(keys))


async def test_a_running_copy_of_an_agent(tmp_path: Path, ledger: MemoryLedger) -> None:
    """The original steps back for it, says why, and comes back when the copy has gone."""
    async with _agent(tmp_path / "1", ledger) as first:
        await _member(first)
        await first.stop()
    shutil.copytree(tmp_path / "1", tmp_path / "2", symlinks=True)
    async with _agent(tmp_path / "1", ledger) as first:
        await _member(first)
        allocation = await first.grant(code=first.code(train="import time\ntime.sleep(600)"))
        await eventually(lambda: allocation in first.agent._runs)
        async with _agent(tmp_path / "2", ledger) as copy:
            await copy.until(JoinRefused)  # it counted the same incarnation
            assert "is a copy" in (await copy.agent.unready() or "")
            await copy.stop()
        async with _agent(tmp_path / "2", ledger) as copy:
            joined = (await copy.until(AgentJoined, count=4))[-1]
            assert await _member(copy) == joined.incarnation
            await eventually(lambda: first.agent._displaced is not None)
            assert "is a copy" in (await first.agent.unready() or "")
            await first.until(AllocationReleased, lambda it: it.allocation_id == allocation)
            await copy.stop()
        assert await _member(first) > joined.incarnation


async def test_facts_of_a_copy_and_its_original_are_different(
    tmp_path: Path, ledger: MemoryLedger
) -> None:
    """Two outboxes that count from one number have origins of their own: nothing is dropped."""
    async with _agent(tmp_path / "1", ledger) as first:
        await first.run_script("print('one')")
        await first.stop()
    shutil.copytree(tmp_path / "1", tmp_path / "2", symlinks=True)
    newest = 0
    for place in ("1", "2"):
        async with _agent(tmp_path / place, ledger) as rig:
            newest = await _member(rig, newest)
            await rig.run_script(f"print({place!r})")
            await rig.stop()
    lines = await Rig(tmp_path / "3", ledger).events(LogsPrinted.TOPIC)
    origins = [(event.origin, event.sequence) for event in lines]
    assert len(origins) == len(set(origins))

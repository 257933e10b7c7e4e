"""The scheduler on a ledger: what the searcher asks becomes grants, across restarts."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from rung.events import topic
from rung.events.allocation import (
    AgentLost,
    AllocationGranted,
    AllocationLost,
    AllocationSignaled,
)
from rung.events.experiment import Submission
from rung.events.trial import RunRequested, RunWithdrawn
from rung.ledger import Ledger, MemoryLedger, SqliteLedger
from rung.runtime import audit
from rung.runtime.service import serve
from rung.scheduler import Scheduler
from rung.scheduler.service import RELAY, components
from rung.scheduler.settings import Settings
from scheduler.ledger_watch import ManualClock, all_of, next_of, writer
from support.runtime.decided import append_decision
from support.scheduler.scenario import POOL, Pool, joined, requested


@contextlib.asynccontextmanager
async def _serving(ledger: Ledger) -> AsyncIterator[ManualClock]:
    clock = ManualClock()
    task = asyncio.create_task(serve(ledger, components(Settings(agent_timeout=30), clock=clock)))
    try:
        yield clock
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _run(allocation_id: str) -> RunRequested:
    request = requested(allocation_id)
    return RunRequested(
        experiment_id=request.experiment_id,
        pool=POOL,
        slots=1,
        priority=42,
        max_slots=None,
        reason="the search wants it",
        spec=request.spec,
    )


def _withdrawal(trial_id: str, run: int) -> RunWithdrawn:
    return RunWithdrawn(
        experiment_id=trial_id.split(".", maxsplit=1)[0],
        trial_id=trial_id,
        run=run,
        pool=POOL,
        how="preempt",
        reason="stopped",
    )


async def test_a_run_is_granted_signaled_and_lost() -> None:
    """What `searches` asks is placed, its withdrawal signaled, its agent's silence told."""
    ledger = MemoryLedger()
    write = writer(ledger).write
    async with _serving(ledger) as clock:
        await write(joined("a"))
        await append_decision(ledger, _run("e.0.1"))
        [grant] = await next_of(ledger, topic.PLACEMENTS, AllocationGranted)
        await append_decision(ledger, _withdrawal("e.0", 1))
        [signal_] = await next_of(ledger, topic.PLACEMENTS, AllocationSignaled)
        await clock.advance(60)
        [loss] = await next_of(ledger, topic.PLACEMENTS, AllocationLost)

    assert grant.data.spec == _run("e.0.1").spec  # type: ignore[union-attr]
    assert signal_.data.agents == ["a"]  # type: ignore[union-attr]
    assert loss.data.run == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("submission", [None, Submission(owner="ada", weight=2.0, time_ms=7)])
def test_a_request_carries_the_submission(submission: Submission | None) -> None:
    """What is asked for on a pool is for whom the run is; of an earlier release nobody knows."""
    run = msgspec.structs.replace(_run("e.0.1"), submission=submission)
    [request] = RELAY.translate(run)
    assert isinstance(request, RunRequested)
    assert request.submission == submission
    assert (b"submission" in msgspec.json.encode(request)) == (submission is not None)
    pool = Pool()
    pool.tell(request)
    [waiting] = pool.state.queue.waiting(pool.state.queue.line_of["e.0.1"])
    assert waiting.submission == (submission or Submission())


async def test_a_restart_repeats_nothing() -> None:
    """A scheduler that forgot how far it forwarded and decided asks and grants nothing twice."""
    ledger = MemoryLedger()
    write = writer(ledger).write
    async with _serving(ledger):
        await write(joined("a"))
        await append_decision(ledger, _run("e.0.1"))
        await next_of(ledger, topic.PLACEMENTS, AllocationGranted)
    for partition in range(ledger.partitions(topic.SEARCHES)):
        await ledger.commit("scheduler-intake", topic.SEARCHES, partition, 0)
    async with _serving(ledger):
        await append_decision(ledger, _run("e.1.1"))
        grants = await next_of(ledger, topic.PLACEMENTS, AllocationGranted, count=2)
    verdict = await audit(ledger, Scheduler())

    assert [g.data.allocation_id for g in grants] == ["e.0.1", "e.1.1"]  # type: ignore[union-attr]
    assert len(await all_of(ledger, topic.POOLS, RunRequested)) > 2
    assert (verdict.decisions, verdict.differences) == (2, [])


async def test_a_replica_that_takes_pools_over_watches_their_agents() -> None:
    """It learns of agents from the pools that it recovered, though none of them joins again."""
    ledger = MemoryLedger()
    async with _serving(ledger):
        await writer(ledger).write(joined("a"))
        await append_decision(ledger, _run("e.0.1"))
        await next_of(ledger, topic.PLACEMENTS, AllocationGranted)
    async with _serving(ledger) as clock:
        await append_decision(ledger, _run("e.1.1"))
        await next_of(ledger, topic.PLACEMENTS, AllocationGranted, count=2)
        await clock.advance(60)
        lost = await next_of(ledger, topic.PLACEMENTS, AllocationLost, count=2)

    assert {event.data.trial_id for event in lost} == {"e.0", "e.1"}  # type: ignore[union-attr]
    assert len(await all_of(ledger, topic.POOLS, AgentLost)) == 1


async def test_the_program_schedules_a_ledger_and_leaves_when_told(tmp_path: Path) -> None:
    """`python -m rung.scheduler` serves a ledger on disk and ends with code 0 at SIGTERM."""
    folder = tmp_path / "ledger"
    ledger = await SqliteLedger.open(folder)
    environment = {**os.environ, "RUNG_LEDGER": str(folder)}
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rung.scheduler", "--agent-timeout", "60", env=environment
    )
    try:
        write = writer(ledger).write
        await write(joined("a"))
        await append_decision(ledger, _run("e.0.1"))
        await next_of(ledger, topic.PLACEMENTS, AllocationGranted)
        program.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await program.wait() == 0
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
        await ledger.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("agent_timeout", 0.0),
        ("agent_timeout", -1.0),
        ("agent_timeout", float("nan")),
        ("agent_timeout", float("inf")),
        ("snapshot_every", 0),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    """A setting that makes no sense is named, with one that would."""
    with pytest.raises(ValueError, match=f"{name} is .*such as"):
        Settings(**{name: value})  # type: ignore[arg-type]

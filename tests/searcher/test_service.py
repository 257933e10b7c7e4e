"""The searcher on a ledger."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rung.events import decode, partition_of, topic
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.ledger import Ledger, MemoryLedger
from rung.runtime import FactWriter, audit
from rung.runtime.processor.processor import types_of
from rung.runtime.service import serve
from rung.searcher.processor import Searcher
from rung.searcher.service import RELAY, components
from rung.searcher.settings import Settings
from runtime.decided import append_decision
from searcher.scenario import EXPERIMENT, config, exited, submitted

POOL = "a"


@asynccontextmanager
async def serving(ledger: Ledger) -> AsyncIterator[None]:
    """Serve while the block runs."""
    task = asyncio.create_task(serve(ledger, components(Settings(snapshot_every=1))))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def decided(ledger: Ledger, count: int) -> list[str]:
    """Wait for a number of decisions and return the names of their types."""
    partition = partition_of(EXPERIMENT, ledger.partitions(topic.SEARCHES))
    names: list[str] = []
    async with asyncio.timeout(10):
        async for records in ledger.follow(topic.SEARCHES, partition, 0):
            names += [type(decode(record.value).data).__name__ for record in records]
            if len(names) >= count:
                break
    return names


def lost(run: int) -> AllocationLost:
    """Return the loss of a run of trial 0."""
    return AllocationLost(
        pool=POOL,
        allocation_id=f"{EXPERIMENT}.0.{run}",
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.0",
        run=run,
        reason="agent a1 was lost",
    )


async def test_a_search_on_a_ledger_audits() -> None:
    """Submission, a lost allocation and an exit lead to their decisions; all are decided again."""
    ledger = MemoryLedger()
    writer = FactWriter(ledger, source="/rung/gateway", origin="gateway/1")
    async with serving(ledger):
        await writer.write(submitted(config("single")))
        await decided(ledger, 3)
        await append_decision(ledger, lost(1))
        await decided(ledger, 4)
    async with serving(ledger):
        await writer.write(exited(0, 2, "finished"))
        names = await decided(ledger, 6)
    assert names == [
        "SearchPlanned",
        "TrialRequested",
        "RunRequested",
        "RunRequested",
        "TrialClosed",
        "ExperimentEnded",
    ]
    verdict = await audit(ledger, Searcher())
    assert verdict.same


def test_ends_that_no_agent_reports() -> None:
    """The intake turns what the scheduler decided into the end of a run, and nothing else."""
    about: dict[str, Any] = {"pool": POOL, "allocation_id": f"{EXPERIMENT}.0.1"}
    trial: dict[str, Any] = {"experiment_id": EXPERIMENT, "trial_id": f"{EXPERIMENT}.0", "run": 1}
    gone = AllocationLost(reason="agent a1 was lost", **about, **trial)
    dropped = AllocationDropped(reason="withdrawn", **about, **trial)
    assert [*RELAY.translate(gone), *RELAY.translate(dropped)] == [gone, dropped]
    assert types_of(RELAY.handles) == {AllocationLost.TYPE, AllocationDropped.TYPE}


def test_a_setting_out_of_range_is_refused() -> None:
    """The message names the setting and what would be right."""
    with pytest.raises(ValueError, match="snapshot_every is 0: give the number of facts"):
        Settings(snapshot_every=0)

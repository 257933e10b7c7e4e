"""The searcher on a ledger."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rung.events import Event, decode, partition_of, topic
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.events.experiment import SearchDeferred
from rung.events.trial import RunRequested, TrialRequested
from rung.ledger import Ledger, MemoryLedger
from rung.runtime import FactWriter, audit
from rung.runtime.processor.processor import types_of
from rung.runtime.service import Component, serve
from rung.searcher import processor
from rung.searcher.processor import Searcher
from rung.searcher.service import RELAY, components
from rung.searcher.settings import Settings
from support.runtime.decided import append_decision
from support.searcher.scenario import EXPERIMENT, config, exited, submitted

POOL = "a"


@asynccontextmanager
async def serving(
    ledger: Ledger, served: tuple[Component, ...] = components(Settings(snapshot_every=1))
) -> AsyncIterator[None]:
    """Serve while the block runs."""
    task = asyncio.create_task(serve(ledger, served))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def decided(ledger: Ledger, count: int) -> list[str]:
    """Wait for a number of decisions and return the names of their types."""
    events = await written(ledger, topic.SEARCHES, count)
    return [type(event.data).__name__ for event in events]


async def written(ledger: Ledger, name: str, count: int) -> list[Event]:
    """Wait for a number of events of the experiment on a topic, and return them."""
    partition = partition_of(EXPERIMENT, ledger.partitions(name))
    events: list[Event] = []
    async with asyncio.timeout(10):
        async for records in ledger.follow(name, partition, 0):
            events += [decode(record.value) for record in records]
            if len(events) >= count:
                break
    return events


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


async def test_a_search_in_steps_across_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between any two steps, the next service goes on: no trial twice, none missing."""
    monkeypatch.setattr(processor, "DECISIONS_MAX", 20)
    trials = 100
    ledger = MemoryLedger()
    writer = FactWriter(ledger, source="/rung/gateway", origin="gateway/1")
    search = config("random", max_trials=trials, max_concurrent_trials=0)
    await writer.write(submitted(search))
    deciders, relays = components()[:1], components()[1:]
    step, events = 0, list[Event]()
    while sum(event.type == RunRequested.TYPE for event in events) < trials:
        step += 1
        async with serving(ledger, deciders):
            events = await step_of(ledger, step, trials)
        for _ in range(2):  # the second time there is nothing left to relay
            async with serving(ledger, relays):
                await written(ledger, topic.EXPERIMENTS, min(step + 1, trials // 9 + 1))
    indices = [event.data.index for event in events if isinstance(event.data, TrialRequested)]
    assert indices == list(range(trials))
    assert step == trials // 9 + 1
    assert max(Counter(event.causeposition for event in events).values()) <= 20
    assert (await audit(ledger, Searcher())).same


async def step_of(ledger: Ledger, step: int, trials: int) -> list[Event]:
    """Wait for all decisions of a step; return them with those before."""
    count = 0
    while True:
        events = await written(ledger, topic.SEARCHES, count + 1)
        count = len(events)
        kinds = Counter(event.type for event in events)
        if kinds[SearchDeferred.TYPE] == step or kinds[RunRequested.TYPE] == trials:
            return events


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

"""How far deciders are, told from the ledger alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from rung.cli.operations.cluster.decider_status import Knowledge
from rung.events import Payload, partition_of
from rung.events.allocation import AgentJoined, Slot
from rung.events.experiment import ExperimentSubmitted, PauseRequested
from rung.ledger import Draft, MemoryLedger
from rung.runtime import FactWriter, Processor, host
from rung.scheduler.processor import Scheduler
from rung.searcher.processor import Searcher
from searcher.scenario import EXPERIMENT, config

PARTITION = partition_of(EXPERIMENT, 4)


@contextlib.asynccontextmanager
async def _hosting(ledger: MemoryLedger, process: Processor[Any]) -> AsyncIterator[None]:
    """Host until all that is there is decided."""
    task = asyncio.create_task(host(ledger, process, snapshot_every=1))
    for _ in range(50):
        await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _write(ledger: MemoryLedger, *data: Payload) -> None:
    writer = FactWriter(ledger, source="/rung/gateway", origin=f"gateway/{id(data)}")
    for item in data:
        await writer.write(item)


async def _known(
    ledger: MemoryLedger, process: Processor[Any], *, from_snapshots: bool = True
) -> Knowledge:
    known = Knowledge()
    await known.fold(ledger, process, from_snapshots=from_snapshots)
    return known


def _submitted(name: str = EXPERIMENT, level: int = 1) -> ExperimentSubmitted:
    return ExperimentSubmitted(
        experiment_id=name, config=config("single"), source="", code_digest=None, level=level
    )


async def test_an_empty_ledger_is_all_decided() -> None:
    """Nothing is due, and a snapshot that nobody needs is of no age."""
    (decider,) = (await _known(MemoryLedger(), Searcher())).deciders
    assert (decider.name, decider.facts, decider.pending) == ("searcher", 0, 0)
    assert (decider.since_decision, decider.since_snapshot, decider.snapshot_s) == (0, 0, 0.0)


async def test_decisions_that_nobody_took_are_due() -> None:
    """Without a replica, they are counted; nothing is written."""
    ledger = MemoryLedger()
    await _write(ledger, _submitted())
    known = await _known(ledger, Searcher())
    (decider,) = known.deciders
    assert (decider.facts, decider.pending, decider.since_decision) == (1, 3, 1)
    assert (decider.since_snapshot, decider.snapshot_s) == (1, None)
    assert known.experiments == {"active": 1}
    assert await ledger.end("searches", PARTITION) == 0


async def test_what_was_only_on_its_way_is_not_due() -> None:
    """What is on record a moment later is no longer counted; what is not, still is."""
    ledger = MemoryLedger()
    await _write(ledger, _submitted())
    late = await _known(ledger, Searcher())
    never = await _known(ledger, Searcher())
    await never.look_again(ledger)
    async with _hosting(ledger, Searcher()):
        await _write(ledger, PauseRequested(experiment_id=EXPERIMENT))
    await late.look_again(ledger)
    assert (never.deciders[0].pending, late.deciders[0].pending) == (3, 0)


async def test_what_was_decided_is_not_due() -> None:
    """With a snapshot or from the beginning, the same is known."""
    ledger = MemoryLedger()
    await _write(ledger, _submitted())
    async with _hosting(ledger, Searcher()):
        pass
    for from_snapshots in (True, False):
        known = await _known(ledger, Searcher(), from_snapshots=from_snapshots)
        (decider,) = known.deciders
        assert (decider.facts, decider.pending, decider.since_decision) == (1, 0, 0)
        assert decider.since_snapshot == (0 if from_snapshots else 1)
        assert (decider.snapshot_s is not None) == from_snapshots
        assert known.experiments == {"active": 1}


async def test_pools_are_as_the_scheduler_sees_them() -> None:
    """Agents, their slots, and those that are idle."""
    ledger = MemoryLedger()
    slots = [Slot(id=number, kind="cpu", name=f"CPU slot {number}") for number in range(3)]
    joined = AgentJoined(pool="default", agent_id="a1", incarnation=1, hostname="a1", slots=slots)
    await _write(ledger, joined)
    (pool,) = (await _known(ledger, Scheduler())).pools
    assert (pool.name, pool.agents, pool.slots, pool.idle, pool.waiting) == ("default", 1, 3, 3, 0)


async def test_keys_of_an_unknown_level_are_counted() -> None:
    """They are no fault of theirs: other keys are due, and these wait for a newer release."""
    ledger = MemoryLedger()
    await _write(ledger, _submitted("known"), _submitted("newer", 3), _submitted("newest", 4))
    (decider,) = (await _known(ledger, Searcher())).deciders
    assert (decider.left_alone, decider.level, decider.broken) == (2, 4, {})
    assert decider.pending == 3


async def test_a_key_that_cannot_be_folded_is_named() -> None:
    """A decision of a newer version keeps its experiment from being told about."""
    ledger = MemoryLedger()
    await _write(ledger, _submitted())
    await ledger.append([Draft("searches", EXPERIMENT, b"{")])
    (decider,) = (await _known(ledger, Searcher())).deciders
    assert list(decider.broken) == [EXPERIMENT]
    assert "not an event" in decider.broken[EXPERIMENT]

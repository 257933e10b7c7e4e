"""The survey of a cluster: processors, relays and sinks, dead letters, seals, imports."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rung.cli.operations.cluster.status import ClusterStatus, SealStatus
from rung.cli.operations.cluster.survey import (
    Progress,
    look_again,
    look_at_consumer,
    look_at_dead_letters,
    look_at_imports,
    look_at_seals,
)
from rung.events import LedgerDamaged, LedgerError, Payload, partition_of, topic
from rung.events.allocation import AgentJoined, Slot
from rung.events.deadletter import (
    FactDropped,
    MessageDropped,
    MessageRejected,
    MessageRetryRequested,
)
from rung.events.experiment import ExperimentSubmitted, PauseRequested
from rung.events.installation import LEVEL
from rung.events.ledger_import import ImportStarted
from rung.ledger import Draft, MemoryLedger
from rung.ledger.export.import_record import ImportRecord, check_imported, imports_of
from rung.ledger.seals import SealKey
from rung.runtime import FactWriter, PartitionFold, Processor, host
from rung.runtime.sealing.sealer import Sealer
from rung.scheduler.processor import Scheduler
from rung.searcher.processor import Searcher
from support.ledger.events import populate
from support.ledger.sealed import example
from support.searcher.scenario import EXPERIMENT, config

KEY = SealKey.generate()
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
) -> Progress:
    known = Progress()
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
    newest = LEVEL + 2
    newer = _submitted("newer", LEVEL + 1)
    await _write(ledger, _submitted("known"), newer, _submitted("newest", newest))
    (decider,) = (await _known(ledger, Searcher())).deciders
    assert (decider.left_alone, decider.level, decider.broken) == (2, newest, {})
    assert decider.pending == 3


async def test_a_key_that_cannot_be_folded_is_named() -> None:
    """A decision of a newer version keeps its experiment from being told about."""
    ledger = MemoryLedger()
    await _write(ledger, _submitted())
    await ledger.append([Draft("searches", EXPERIMENT, b"{")])
    (decider,) = (await _known(ledger, Searcher())).deciders
    assert list(decider.broken) == [EXPERIMENT]
    assert "not an event" in decider.broken[EXPERIMENT]


@pytest.mark.parametrize(
    ("name", "moved", "expected"),
    [
        ("scheduler-intake", 0, 1),
        ("scheduler-intake", 1, 0),
        ("scheduler-intake", 2, 0),
        ("checkpoint-gc-deleter", 0, 0),
    ],
)
async def test_whether_it_stands_still(name: str, moved: int, expected: int) -> None:
    """One that took nothing meanwhile does; to delete takes time, so that one is let be."""
    ledger = MemoryLedger()
    await ledger.append([Draft("searches", "k", b"1"), Draft("searches", "k", b"2")])
    consumer = await look_at_consumer(ledger, name, "searches")
    (partition,) = (number for number, lag in enumerate(consumer.lags) if lag)
    assert (consumer.lag, consumer.lags[partition]) == (2, 2)
    if moved:
        await ledger.commit(name, "searches", partition, moved)
    await look_again(ledger, consumer)
    assert consumer.still == [partition] * expected
    assert (consumer.problems() == []) == (not expected)


@pytest.mark.parametrize(("read", "found"), [(10_000, ["why 0"]), (3, [])])
async def test_open_dead_letters_are_counted(
    read: int, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was dropped is none any more, and a request is no letter; the newest are read."""
    monkeypatch.setattr("rung.cli.operations.cluster.survey._LETTERS_READ", read)
    ledger = MemoryLedger(partitions=2)
    writer = FactWriter(ledger, source="/rung/test", origin="test")
    place: dict[str, Any] = {"topic": "pools", "partition": 0, "key": "a", "reader": "scheduler"}
    for position in range(3):
        await writer.write(
            MessageRejected(**place, position=position, reason=f"why {position}", value="{")
        )
    await writer.write(MessageDropped(**place, position=1))
    await writer.write(MessageRetryRequested(**place, position=2))
    status = ClusterStatus(ledger="l")
    await look_at_dead_letters(ledger, status)

    assert status.dead_letters == len(found)
    assert [item.reason for item in status.newest_letters] == found


@pytest.mark.parametrize("from_heads", [True, False])
async def test_what_is_sealed_and_what_is_not(*, from_heads: bool) -> None:
    """Records behind the newest seals are counted, with or without the signed heads."""
    ledger = MemoryLedger(partitions=2)
    await populate(ledger, ["aaaaaaaa"])
    before = await look_at_seals(ledger, from_heads=from_heads)
    assert before.unsealed == before.records > 0
    await Sealer(ledger, KEY).finish()
    sealed = await look_at_seals(ledger, from_heads=from_heads)
    assert sealed == SealStatus(records=before.records, unsealed=0)
    draft = example("rung.trial.exited.v1")
    (position,) = await ledger.append([draft])
    after = await look_at_seals(ledger, from_heads=from_heads)
    assert (after.records, after.unsealed) == (before.records + 1, 1)
    partition = partition_of(draft.key, 2)
    await ledger.trim(topic.EXPERIMENTS, partition, position)
    assert (await look_at_seals(ledger, from_heads=from_heads)).unsealed == 1


async def test_seals_that_were_cut_off() -> None:
    """Signed heads that are further than the seals are told."""
    ledger = MemoryLedger(partitions=1)
    await populate(ledger, ["aaaaaaaa"])
    await Sealer(ledger, KEY).finish()
    ledger._stream(topic.SEALS, 0).records.pop()
    with pytest.raises(LedgerDamaged, match="seals were cut off"):
        await look_at_seals(ledger, from_heads=True)


async def test_an_import_that_was_left_unfinished() -> None:
    """It is told until it is complete; those that came along with an export are not."""
    ledger = MemoryLedger(partitions=2)
    started = ImportStarted(
        ledger_id=ledger.id,
        import_id="f00",
        exported_from="c0ffee",
        exported_by="1.0",
        experiment=None,
        records=7,
        experiments=1,
        starts={},
    )
    record = ImportRecord(ledger, started, "2026-01-01T00:00:00.000Z")
    await record.start([], None)
    (found,) = await look_at_imports(ledger)
    assert (found.exported_from, found.records) == ("c0ffee", 7)
    assert "Run the same `rung ledger import` again" in found.problem
    with pytest.raises(LedgerError, match="to give it up, go on under another prefix"):
        await check_imported(ledger)
    await record.complete(forwarded=0, lost=0, undeleted=0)
    assert await look_at_imports(ledger) == []
    assert len(await imports_of(ledger)) == 1


@pytest.mark.parametrize("from_snapshots", [True, False])
async def test_a_key_whose_message_was_dropped_is_not_broken(*, from_snapshots: bool) -> None:
    """The message is skipped, as by the processor itself."""
    ledger = MemoryLedger()
    await ledger.append([Draft(topic.EXPERIMENTS, EXPERIMENT, b"{")])
    await _write(ledger, _submitted())
    (decider,) = (await _known(ledger, Searcher(), from_snapshots=from_snapshots)).deciders
    assert list(decider.broken) == [EXPERIMENT]
    (record,) = await ledger.read(topic.EXPERIMENTS, PARTITION, 0, 1)
    (rejection,) = PartitionFold(Searcher()).fold(record).new
    drop = FactDropped(
        topic=topic.EXPERIMENTS,
        partition=PARTITION,
        position=0,
        key=EXPERIMENT,
        reader="searcher",
        rejection=rejection.id,
    )
    await ledger.append([Draft.of(rejection)])
    await _write(ledger, drop)
    (decider,) = (await _known(ledger, Searcher(), from_snapshots=from_snapshots)).deciders
    assert (decider.broken, decider.pending) == ({}, 4)

"""Several metrics services on one database: no harm where their partitions overlap."""

import asyncio
from collections.abc import Collection

import pytest

from metrics.lines import all_lines
from metrics.report import EXPERIMENT, draft, line, logs, metrics, record, row
from rung.ledger import Draft, Ledger
from rung.ledger.memory import MemoryLedger
from rung.metrics import SeriesDamaged, SeriesStore, Settings, serve
from rung.runtime.assignment.assignment import ChangingAssignment

pytestmark = pytest.mark.stores

TRIALS = 12
EVENTS = 120
QUICK = Settings(flush_seconds=0.02, flush_bytes=20_000)


def _both(partitions: Collection[int]) -> dict[str, Collection[int]]:
    """Return the same partitions of both topics."""
    return {"metrics": partitions, "logs": partitions}


def _drafts() -> list[Draft]:
    drafts: list[Draft] = []
    for number in range(EVENTS):
        trial, step = number % TRIALS, number // TRIALS
        drafts += [
            draft(metrics([row(step, loss=trial + step / 8)], trial=trial), 2 * number),
            draft(logs([line(f"{trial}/{step}", step)], trial=trial), 2 * number + 1),
        ]
    return drafts


async def _until_stored(ledger: Ledger, store: SeriesStore) -> None:
    ends = {
        (topic, partition): await ledger.end(topic, partition)
        for topic in ("metrics", "logs")
        for partition in range(ledger.partitions(topic))
    }
    async with asyncio.timeout(30):
        wanted = {key: end for key, end in ends.items() if end}
        while await store.positions() != wanted:  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.01)


async def _assert_everything_once(store: SeriesStore) -> None:
    assert await store.overlay(EXPERIMENT, "training", "loss", 100) == {
        f"{EXPERIMENT}.{trial}": [
            (step, trial + step / 8, 1_000 + step) for step in range(EVENTS // TRIALS)
        ]
        for trial in range(TRIALS)
    }
    assert len(await all_lines(store)) == EVENTS


async def test_replicas_whose_partitions_overlap_and_change_store_everything_once(
    server_place: str,
) -> None:
    """Partitions move between two replicas while reports come in, held by both for a time."""
    ledger = MemoryLedger(partitions=4, ledger_id="ledger-1")
    stores = [SeriesStore(server_place, ledger_id="ledger-1") for _ in range(2)]
    assignments = [ChangingAssignment(), ChangingAssignment()]
    await assignments[0].change(_both([0, 1, 2]))
    await assignments[1].change(_both([2, 3]))
    serving = [
        asyncio.create_task(serve(ledger, store, QUICK, assignment=assignment))
        for store, assignment in zip(stores, assignments, strict=True)
    ]
    drafts = _drafts()
    moves = [([0], [1, 2, 3]), ([0, 1, 2, 3], []), ([1, 3], [0, 1, 2, 3]), ([0, 1], [2, 3])]
    for move, start in zip(moves, range(0, len(drafts), len(drafts) // len(moves)), strict=True):
        for item in drafts[start : start + len(drafts) // len(moves)]:
            await ledger.append([item])
            await asyncio.sleep(0.001)
        for assignment, partitions in zip(assignments, move, strict=True):
            await assignment.change(_both(partitions))
    reader = SeriesStore(server_place, ledger_id="ledger-1", read_only=True)
    await _until_stored(ledger, reader)
    for task in serving:
        task.cancel()
    await asyncio.wait(serving)
    await _assert_everything_once(reader)
    for store in (*stores, reader):
        await store.close()


async def test_a_replica_that_writes_late_takes_nothing_back(server_place: str) -> None:
    """What it held back meanwhile does no harm: positions stay high, rows the newest."""
    late = SeriesStore(server_place, ledger_id="ledger-1")
    late.absorb([record(metrics([row(1, loss=1.0), row(2, loss=1.0)]), 0, sequence=1)])
    swift = SeriesStore(server_place, ledger_id="ledger-1")
    swift.absorb([record(metrics([row(1, loss=1.0), row(2, loss=1.0)]), 0, sequence=1)])
    swift.absorb([record(metrics([row(2, loss=2.0)]), 1, sequence=2)])
    await swift.flush()
    await late.flush()
    assert await swift.positions() == await late.positions() == {("metrics", 0): 2}
    curve = await swift.curve(f"{EXPERIMENT}.0", "training", "loss", 10)
    assert curve == [(1, 1.0, 1_001), (2, 2.0, 1_002)]
    for store in (late, swift):
        await store.close()


async def test_only_the_partitions_that_are_held_are_kept(server_place: str) -> None:
    """A replica without partitions stores nothing; it ends with the error of one that it holds."""
    ledger = MemoryLedger(partitions=2, ledger_id="ledger-1")
    await ledger.append(_drafts())
    store = SeriesStore(server_place, ledger_id="ledger-1")
    assignment = ChangingAssignment()
    serving = asyncio.create_task(serve(ledger, store, QUICK, assignment=assignment))
    await assignment.change(_both([1]))
    async with asyncio.timeout(30):
        while len(await store.positions()) < 2:  # noqa: ASYNC110 - a thread gets there
            await asyncio.sleep(0.01)
    assert {partition for _, partition in await store.positions()} == {1}
    store.absorb([record(logs([]), 5_000, partition=0)])
    await store.flush()
    await assignment.change(_both([0, 1]))
    with pytest.raises(SeriesDamaged, match="partition 0 of logs up to 5001, the ledger ends at"):
        await serving
    await store.close()

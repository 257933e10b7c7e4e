"""The metrics service or its server killed in the middle of writing: no gap, nothing twice."""

import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from metrics.lines import all_lines
from metrics.report import EXPERIMENT, draft, line, logs, metrics, row
from rung.ledger import Draft, Ledger
from rung.ledger.memory import MemoryLedger
from rung.ledger.sqlite.ledger import SqliteLedger
from rung.metrics import SeriesStore, SeriesUnavailable, Settings, serve
from rung.metrics.clickhouse.engine import Tables
from servers.clickhouse import ClickHouse

pytestmark = pytest.mark.stores

_KEEPER = Path(__file__).with_name("keeper.py")
_EVENTS = 600
_STEPS = 4
_KILLS = 5
_CHUNK = 20


def _drafts() -> list[Draft]:
    drafts: list[Draft] = []
    for number in range(_EVENTS):
        trial, batch = number % 3, number // 3
        steps = range(batch * _STEPS, (batch + 1) * _STEPS)
        rows = [row(step, loss=trial + 1 / (step + 1)) for step in steps]
        printed = [line(f"step {step}", step) for step in steps]
        drafts += [
            draft(metrics(rows, trial=trial), 2 * number),
            draft(logs(printed, trial=trial), 2 * number + 1),
        ]
    return drafts


async def _kill_a_keeper(
    ledger: SqliteLedger, folder: Path, place: str, drafts: Sequence[Draft], chance: random.Random
) -> None:
    """Have a keeper store some batches, and kill it a moment later, while more comes in."""
    keeper = await asyncio.create_subprocess_exec(
        sys.executable, str(_KEEPER), str(folder), place, stdout=asyncio.subprocess.PIPE
    )
    assert keeper.stdout
    before = chance.randint(1, 4) * _CHUNK
    try:
        for start in range(0, before, _CHUNK):
            await ledger.append(drafts[start : start + _CHUNK])
            assert await keeper.stdout.readline() == b"stored\n"
        feeding = asyncio.create_task(_feed(ledger, drafts[before:]))
        await asyncio.sleep(chance.uniform(0, 0.03))
    finally:
        keeper.kill()
    assert await keeper.wait() == -9
    await feeding


async def _feed(ledger: Ledger, drafts: Sequence[Draft]) -> None:
    """Append as agents do, event by event."""
    for item in drafts:
        await ledger.append([item])
        await asyncio.sleep(0.001)


def _sum(tables: Tables) -> int:
    rows = tables.rows("SELECT toInt64(sum(position)) FROM positions FINAL", tuple[int])
    return rows[0][0]


async def _stored(store: SeriesStore) -> int:
    try:
        return await store._run(_sum)
    except SeriesUnavailable:
        return 0


async def _catch_up(ledger: Ledger, store: SeriesStore) -> None:
    """Serve until everything is stored."""
    serving = asyncio.create_task(serve(ledger, store, Settings(flush_seconds=0.01)))
    await _until_all(store)
    serving.cancel()
    await asyncio.wait([serving])


async def _until_all(store: SeriesStore) -> None:
    async with asyncio.timeout(60):
        while await _stored(store) < 2 * _EVENTS:  # noqa: ASYNC110 - ClickHouse gets there
            await asyncio.sleep(0.01)


async def _assert_everything_once(store: SeriesStore) -> None:
    """Compare with what was fed: every report and every line, once."""
    steps = range(_EVENTS * _STEPS // 3)
    assert await store.overlay(EXPERIMENT, "training", "loss", 10_000) == {
        f"{EXPERIMENT}.{trial}": [(step, trial + 1 / (step + 1), 1_000 + step) for step in steps]
        for trial in range(3)
    }
    lines = await all_lines(store)
    assert sorted((entry.trial_id, entry.time_ms) for entry in lines) == sorted(
        (f"{EXPERIMENT}.{trial}", step) for trial in range(3) for step in steps
    )


@pytest.mark.e2e
async def test_kills_while_writing_leave_no_gap_and_nothing_twice(
    tmp_path: Path, place: str
) -> None:
    """After kills at random moments while agents report, every row is there exactly once."""
    chance = random.Random(7)  # noqa: S311 - a test's own chance
    ledger = await SqliteLedger.open(tmp_path / "ledger", partitions=2)
    *parts, rest = _parts(_KILLS + 1)
    for part in parts:
        await _kill_a_keeper(ledger, tmp_path / "ledger", place, part, chance)
    await ledger.append(rest)

    store = SeriesStore(place, ledger_id=ledger.id)
    before_rest = await _stored(store)
    await _catch_up(ledger, store)

    assert 0 < before_rest < 2 * _EVENTS, "the kills fell outside of the writing"
    await _assert_everything_once(store)
    await store.close()
    await ledger.close()


@pytest.mark.e2e
async def test_a_server_killed_while_writing_leaves_no_gap_and_nothing_twice(
    lone: ClickHouse,
) -> None:
    """Killed and started again and again under a service that goes on: every row, once."""
    chance = random.Random(11)  # noqa: S311 - a test's own chance
    ledger = MemoryLedger(partitions=2, ledger_id="ledger-1")
    store = SeriesStore(f"{lone.url}?timeout_s=5", ledger_id=ledger.id)
    settings = Settings(flush_seconds=0.01, flush_bytes=10_000)
    serving = asyncio.create_task(serve(ledger, store, settings))
    *parts, rest = _parts(_KILLS + 1)
    seen = []
    for part in parts:
        feeding = asyncio.create_task(_feed(ledger, part))
        await asyncio.sleep(chance.uniform(0.05, 0.3))
        lone.kill()
        await asyncio.to_thread(lone.start)
        seen.append(await _stored(store))
        await feeding
    await ledger.append(rest)
    await _until_all(store)
    serving.cancel()
    await asyncio.wait([serving])

    assert 0 < max(seen) < 2 * _EVENTS, "the kills fell outside of the writing"
    await _assert_everything_once(store)
    await store.close()


def _parts(count: int) -> list[list[Draft]]:
    drafts = _drafts()
    size = len(drafts) // count
    return [drafts[start : start + size] for start in range(0, size * count, size)]

"""Old rows go after the days that were set, and new ones stay."""

import asyncio
import time

import pytest

from metrics.lines import all_lines
from metrics.report import EXPERIMENT, draft, line, logs, metrics, record, row
from rung.events.metric import MetricsReported
from rung.ledger.memory import MemoryLedger
from rung.metrics import SeriesStore, Settings, serve
from rung.metrics.clickhouse.engine import Tables
from rung.metrics.clickhouse.schema import log_tables
from rung.metrics.retention import KNOWS_TTL, days_kept

pytestmark = pytest.mark.stores

TRIAL = f"{EXPERIMENT}.0"
DAY_MS = 86_400_000
_EVER = (-(1 << 62), 0, 1 << 62)
"""Clocks gone wrong: long before 1970, then, and long after every date that there is."""


def _merge(tables: Tables) -> None:
    """Have a TTL applied now; where rows are deleted, merging would only be in the way."""
    if tables.version >= KNOWS_TTL:
        for table in ("metrics", *log_tables(tables)):
            tables.execute(f"OPTIMIZE TABLE {table} FINAL")


async def _steps(store: SeriesStore) -> list[int]:
    await store._run(_merge)
    return [step for step, _, _ in await store.curve(TRIAL, "training", "loss", 100)]


async def _until(store: SeriesStore, steps: list[int]) -> None:
    async with asyncio.timeout(30):
        while await _steps(store) != steps:  # noqa: ASYNC110 - ClickHouse gets there
            await asyncio.sleep(0.01)


def _reports(now_ms: int, *, loss: float = 1.0) -> MetricsReported:
    """Return a report of one step per age in days: 0, 10, 20, 30, 40."""
    return metrics(
        [row(age, loss=loss, time_ms=now_ms - age * DAY_MS - 1_000) for age in range(0, 50, 10)]
    )


async def _report(store: SeriesStore, now_ms: int, *, loss: float = 1.0) -> None:
    store.absorb([record(_reports(now_ms, loss=loss), 0)])
    await store.flush()


async def test_old_reports_go_and_new_ones_stay(store: SeriesStore) -> None:
    """The days can be made fewer, and more again; what is gone stays gone."""
    now_ms = int(time.time() * 1_000)
    await _report(store, now_ms)
    await store.retain("metrics", 35, now_ms=now_ms)
    await _until(store, [0, 10, 20, 30])
    await store.retain("metrics", 15, now_ms=now_ms)
    await _until(store, [0, 10])
    await store.retain("metrics", 35, now_ms=now_ms)
    await store.retain("metrics", 0, now_ms=now_ms)
    assert await _steps(store) == [0, 10]
    await _report(store, now_ms, loss=2.0)
    assert 40 in await _steps(store)


async def test_printed_lines_have_days_of_their_own(store: SeriesStore) -> None:
    """Lines go while the reports of that time stay."""
    now_ms = int(time.time() * 1_000)
    await _report(store, now_ms)
    old, new = now_ms - 3 * DAY_MS, now_ms
    store.absorb(
        [record(logs([line("old", old, level="error"), line("new", new, level="error")]), 0)]
    )
    await store.flush()
    await store.retain("logs", 2, now_ms=now_ms)

    async def texts() -> list[str]:
        await store._run(_merge)
        found = await all_lines(store) + await all_lines(store, level="error")
        return [entry.text for entry in found]

    async with asyncio.timeout(30):
        while await texts() != ["new", "new"]:  # noqa: ASYNC110 - ClickHouse gets there
            await asyncio.sleep(0.01)
    assert len(await _steps(store)) == 5


@pytest.mark.parametrize("days", [1, 36_500])
async def test_clocks_gone_wrong_do_no_harm(store: SeriesStore, days: int) -> None:
    """A moment before all dates counts as old, one behind them as new; today stays in any case."""
    now_ms = int(time.time() * 1_000)
    rows = [row(step, loss=1.0, time_ms=moment) for step, moment in enumerate((*_EVER, now_ms))]
    store.absorb([record(metrics(rows), 0)])
    await store.flush()
    await store.retain("metrics", days, now_ms=now_ms)
    await _until(store, [2, 3] if days == 1 else [1, 2, 3])


async def test_serving_sets_the_days_and_leaves_them_when_not_told(store: SeriesStore) -> None:
    """With days, old rows go at the start of the service; without, what was set stays set.

    A server of before TTLs remembers no days: its old rows come back from the ledger.
    """
    every, new = [0, 10, 20, 30, 40], [0, 10]
    ledger = MemoryLedger(ledger_id="ledger-1")
    await ledger.append([draft(_reports(int(time.time() * 1_000)), 1)])
    quick = Settings(flush_seconds=0.01)
    kept = Settings(flush_seconds=0.01, metrics_days=15)
    remembered = await store._run(lambda tables: tables.version >= KNOWS_TTL)
    for settings, steps in ((quick, every), (kept, new), (quick, new if remembered else every)):
        serving = asyncio.create_task(serve(ledger, store, settings))
        await _until(store, steps)
        serving.cancel()
        await asyncio.wait([serving])
    assert await store._run(_days) in {15, None}


def _days(tables: Tables) -> int | None:
    """Return the days that the table itself knows; a server of before TTLs knows none."""
    return days_kept(tables, "metrics") if tables.version >= KNOWS_TTL else None


def test_settings_name_field_and_fix() -> None:
    """Days that cannot be are refused."""
    with pytest.raises(ValueError, match="metrics_days is -1: give the days"):
        Settings(metrics_days=-1)
    with pytest.raises(ValueError, match="logs_days is 100000: give the days"):
        Settings(logs_days=100_000)

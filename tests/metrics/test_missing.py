"""Rows that the series lack are found by comparison with the ledger, and written again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from metrics.lines import all_lines
from metrics.report import EXPERIMENT, draft, line, logs, metrics, record, row
from rung.events import topic
from rung.events.metric import EVER_MS, LogsDeleted, MetricsDeleted, deleted_text
from rung.ledger.memory import MemoryLedger
from rung.metrics import SeriesStore, Settings
from rung.metrics import missing as missing_module
from rung.metrics.clickhouse.engine import Tables
from rung.metrics.missing import Comparison, completing
from rung.metrics.retention import KNOWS_TTL
from rung.metrics.service import components
from rung.runtime.metrics import catalog
from rung.runtime.service import serve

pytestmark = pytest.mark.stores

TRIALS = [f"{EXPERIMENT}.{trial}" for trial in range(2)]
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have records compared a few at a time, without pauses."""
    monkeypatch.setattr(missing_module, "_REST", 0.0)
    monkeypatch.setattr(missing_module, "_RECORDS", 3)


@pytest.fixture
async def ledger(store: SeriesStore) -> MemoryLedger:
    """A ledger of reports and lines of two trials, all of which the series have."""
    ledger = MemoryLedger(partitions=1, ledger_id="ledger-1")
    for number in range(8):
        step, trial = number // 2, number % 2
        rows = [row(step, loss=1 / (step + 1)), row(step, kind="validation", accuracy=step)]
        texts = [line(f"{step}a", 1_000 + step), line(f"{step}b", 1_000 + step, level="error")]
        await ledger.append([draft(metrics(rows, trial=trial), 2 * number)])
        await ledger.append([draft(logs(texts, trial=trial), 2 * number + 1)])
    await _store(ledger, store)
    return ledger


async def _store(ledger: MemoryLedger, store: SeriesStore) -> None:
    """Have the series take what they have not."""
    stored = await store.positions()
    for name in (topic.METRICS, topic.LOGS):
        store.absorb(await ledger.read(name, 0, stored.get((name, 0), 0), 1_000))
    await store.flush()


async def _compare(
    ledger: MemoryLedger, store: SeriesStore, **settings: int
) -> list[tuple[str, int]]:
    """Compare everything, as at a start; return of which trial how many rows were reported."""
    with capture_logs() as said:
        for name in (topic.METRICS, topic.LOGS):
            await Comparison(ledger, store, Settings(**settings), name, 0).run()
    return [(it["trial"], it["rows"]) for it in said if "lacked" in it["event"]]


async def _delete(store: SeriesStore, table: str, condition: str) -> None:
    """Delete rows behind the service's back."""

    def delete(tables: Tables) -> None:
        if tables.version >= (23, 8):
            tables.execute(f"DELETE FROM {table} WHERE {condition}")  # noqa: S608 - a test's
        else:
            tables.execute(f"ALTER TABLE {table} DELETE WHERE {condition}")

    await store._run(delete)
    await _deleted(store)


async def _deleted(store: SeriesStore) -> None:
    """Wait until ClickHouse has deleted what it was told to."""
    under_way = (
        "SELECT count() FROM system.mutations WHERE database = currentDatabase() AND NOT is_done"
    )
    async with asyncio.timeout(30):
        while await store._run(lambda tables: tables.rows(under_way, tuple[int])) != [(0,)]:  # noqa: ASYNC110 - ClickHouse gets there
            await asyncio.sleep(0.01)


async def _everything(store: SeriesStore) -> tuple[object, ...]:
    return (
        await store.overlay(EXPERIMENT, "training", "loss", 100),
        await store.overlay(EXPERIMENT, "validation", "accuracy", 100),
        await all_lines(store),
        await all_lines(store, level="error"),
    )


async def test_what_is_complete_is_left_alone(store: SeriesStore, ledger: MemoryLedger) -> None:
    """Also where a step was reported again, by a later run, and where records come twice."""
    await ledger.append([draft(metrics([row(2, loss=5.0)], run=2), 100)])
    await ledger.append([draft(logs([line("0a", 1_000)], trial=0), 1)])
    await _store(ledger, store)
    whole = await _everything(store)
    assert await _compare(ledger, store) == []
    assert store.warning is None
    assert await _everything(store) == whole


async def test_rows_that_are_gone_are_said_and_written_again(
    store: SeriesStore, ledger: MemoryLedger
) -> None:
    """Of curves and of logs: of a trial all of them, of another one those of a step."""
    whole = await _everything(store)
    counted = [catalog.SERIES_LACKED.labels(table) for table in ("metrics", "logs")]
    before = [each._value.get() for each in counted]
    gone = f"trial_id = '{TRIALS[1]}' OR time_ms = 1002"
    for table in ("metrics", "logs"):
        await _delete(store, table, gone)
    assert await _everything(store) != whole
    found = await _compare(ledger, store)
    assert {trial for trial, _ in found} == set(TRIALS)
    assert sum(rows for _, rows in found) == 2 * (8 + 2)
    after = [each._value.get() for each in counted]
    assert [now - then for now, then in zip(after, before, strict=True)] == [10, 10]
    assert "lacked 20 rows of curves and logs: rebuilt from the ledger" in (store.warning or "")
    await store.recount()
    assert await _everything(store) == whole
    assert await _compare(ledger, store) == []


async def test_rows_that_are_gone_again_are_written_again(
    store: SeriesStore, ledger: MemoryLedger
) -> None:
    """Although the engine remembers the blocks in which they were written, and written again."""
    whole = await _everything(store)
    for _ in range(2):
        await _delete(store, "logs", f"trial_id = '{TRIALS[0]}'")
        assert await _compare(ledger, store) == [
            (TRIALS[0], 4),
            (TRIALS[0], 2),
            (TRIALS[0], 2),
        ]
        assert await _everything(store) == whole


async def test_what_was_deleted_on_purpose_is_not_missing(
    store: SeriesStore, ledger: MemoryLedger
) -> None:
    """Curves of a deleted experiment and older lines stay away, whatever else is missing."""
    of = {"experiment_id": EXPERIMENT, "trial_id": TRIALS[0]}
    await ledger.append([draft(MetricsDeleted(**of), 100)])
    deleted = LogsDeleted(**of, before_ms=1_002, lines=4, size_bytes=8)
    await ledger.append([draft(deleted, 101)])
    gone = LogsDeleted(
        experiment_id=EXPERIMENT, trial_id=TRIALS[1], before_ms=EVER_MS, lines=0, size_bytes=0
    )
    await ledger.append([draft(gone, 102)])
    await _store(ledger, store)
    await _deleted(store)
    whole = await _everything(store)
    assert list(await store.overlay(EXPERIMENT, "training", "loss", 100)) == [TRIALS[1]]
    left = [each.text for each in await all_lines(store, trial_id=TRIALS[0])]
    assert sorted(left) == ["2a", "2b", "3a", "3b", deleted_text(deleted)]
    assert await all_lines(store, trial_id=TRIALS[1]) == []
    assert await _compare(ledger, store) == []
    await _delete(store, "logs", f"trial_id = '{TRIALS[0]}'")
    assert sum(rows for _, rows in await _compare(ledger, store)) == 5, "four, and the mark"
    assert await _everything(store) == whole


async def test_what_retention_dropped_is_not_missing(
    store: SeriesStore, ledger: MemoryLedger
) -> None:
    """Its rows are from 1970: dropped after the days of the tables, or of the option."""
    await store.retain("metrics", 30, now_ms=50 * 365 * DAY_MS)
    await store.retain("logs", 30, now_ms=50 * 365 * DAY_MS)
    for table in ("metrics", "logs"):
        await _delete(store, table, "time_ms > 0")
    assert await _compare(ledger, store, metrics_days=30, logs_days=30) == []
    if await store._run(lambda tables: tables.version >= KNOWS_TTL):
        assert await _compare(ledger, store) == [], "the tables' own days hold"


async def test_what_the_ledger_trimmed_is_not_missing(
    store: SeriesStore, ledger: MemoryLedger
) -> None:
    """The ledger's oldest lines are gone: those behind them are compared."""
    await ledger.trim(topic.LOGS, 0, 4)
    assert await _compare(ledger, store) == []
    await _delete(store, "logs", f"trial_id = '{TRIALS[0]}'")
    assert sum(rows for _, rows in await _compare(ledger, store)) == 4


async def test_a_deletion_while_rows_are_compared_is_not_undone(
    store: SeriesStore, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored between the look at the ledger and the writing: the ledger is read again."""
    await _delete(store, "metrics", f"trial_id = '{TRIALS[0]}'")
    fill = store.fill
    asked: list[int] = []

    async def deleting(*given: object) -> object:
        if not asked:
            deleted = MetricsDeleted(experiment_id=EXPERIMENT, trial_id=TRIALS[0])
            await ledger.append([draft(deleted, 100)])
            await _store(ledger, store)
        asked.append(1)
        return await fill(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "fill", deleting)
    assert await _compare(ledger, store) == []
    assert list(await store.overlay(EXPERIMENT, "training", "loss", 100)) == [TRIALS[1]]


@asynccontextmanager
async def _serving(ledger: MemoryLedger, store: SeriesStore) -> AsyncIterator[None]:
    task = asyncio.create_task(serve(ledger, components(store, Settings(flush_seconds=0.01))))
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - another thread gets there
            await asyncio.sleep(0.01)


async def test_the_service_compares_at_its_start(store: SeriesStore, ledger: MemoryLedger) -> None:
    """What was lost before is there again, without a request."""
    whole = await _everything(store)
    await _delete(store, "metrics", f"trial_id = '{TRIALS[0]}' AND step = 1")

    async def complete() -> bool:
        return await _everything(store) == whole

    async with _serving(ledger, store):
        await _until(complete)
    assert store.warning is not None


async def test_new_records_are_compared_periodically(
    store: SeriesStore, ledger: MemoryLedger
) -> None:
    """What is lost while the service runs, of records that came since the last time."""

    async def compared() -> bool:
        return store.warning is not None

    task = asyncio.create_task(serve(ledger, (completing(store, Settings(), every_s=0.01),)))
    await ledger.append([draft(metrics([row(9, loss=0.5)]), 100)])
    store.absorb([record(metrics([]), 8)])
    await store.flush()
    await _until(compared)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    curve = await store.curve(TRIALS[0], "training", "loss", 100)
    assert [step for step, _, _ in curve] == [0, 1, 2, 3, 9]

"""Old lines leave the ledger, as far as nothing that is kept lies before them."""

import asyncio
import contextlib

import pytest

from metrics.report import EXPERIMENT, draft, line, logs
from rung.events import topic
from rung.events.metric import LogsDeleted
from rung.ledger.memory import MemoryLedger
from rung.ledger.seals import SealKey
from rung.ledger.seals.verify import Known, verify
from rung.metrics import SeriesStore
from rung.metrics.trimming import expired, remove, trimming
from rung.runtime.service import serve
from support.ledger.sealed import seal

pytestmark = pytest.mark.stores

DAY_MS = 86_400_000
NOW_MS = 1_763_000_000_000


async def _kept(store: SeriesStore, *days: int, keep_days: int = 0) -> MemoryLedger:
    """Return a ledger with one event for each age in days, all of which the series have."""
    ledger = MemoryLedger(partitions=1, ledger_id="ledger")
    for number, old in enumerate(days):
        data = logs([line("x", NOW_MS - old * DAY_MS)])
        data = type(data)(
            experiment_id=data.experiment_id,
            trial_id=data.trial_id,
            run=1,
            lines=data.lines,
            keep_days=keep_days,
        )
        await ledger.append([draft(data, number + 1)])
    store.absorb(await ledger.read(topic.LOGS, 0, 0, 100))
    await store.flush()
    return ledger


async def test_records_before_the_first_line_that_is_kept(store: SeriesStore) -> None:
    """Those behind it stay, although they are old: a partition is cut at its beginning alone."""
    ledger = await _kept(store, 40, 31, 10, 50)
    assert await expired(ledger, store, 0, 30, now_ms=NOW_MS) == 2
    assert await expired(ledger, store, 0, 9, now_ms=NOW_MS) == 4
    assert await expired(ledger, store, 0, 0, now_ms=NOW_MS) == 0


async def test_the_experiments_own_days(store: SeriesStore) -> None:
    """The shorter of both periods counts."""
    ledger = await _kept(store, 40, 5, 1, keep_days=3)
    assert await expired(ledger, store, 0, 0, now_ms=NOW_MS) == 2
    assert await expired(ledger, store, 0, 30, now_ms=NOW_MS) == 2


async def test_what_was_deleted_goes_and_what_is_not_stored_stays(store: SeriesStore) -> None:
    """A deletion lets its lines go, and itself; nothing goes that the series do not have."""
    ledger = await _kept(store, 3, 2)
    deleted = LogsDeleted(
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.0",
        before_ms=NOW_MS,
        lines=2,
        size_bytes=2,
    )
    await ledger.append([draft(deleted, 9)])
    assert await expired(ledger, store, 0, 0, now_ms=NOW_MS) == 0
    store.absorb(await ledger.read(topic.LOGS, 0, 2, 100))
    await store.flush()
    await ledger.append([draft(logs([line("old", 1)]), 10)])
    assert await expired(ledger, store, 0, 1, now_ms=NOW_MS) == 3


async def test_it_is_done_now_and_then(store: SeriesStore) -> None:
    """The ledger begins at the first line that is kept."""
    ledger = await _kept(store, 4000, 4000)
    task = asyncio.create_task(serve(ledger, (trimming(store, 30, every_s=0.01),)))
    async with asyncio.timeout(10):
        while await ledger.start(topic.LOGS, 0) != 2:  # noqa: ASYNC110 - a clock
            await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_sealed_ledger_verifies_after_it(store: SeriesStore) -> None:
    """What goes ends with a sealed range and is on record; without the key nothing goes."""
    ledger = await _kept(store, 40, 39, 38, 1)
    key = SealKey.generate()
    await seal(ledger, key, records=2)
    assert await remove(ledger, 0, 3, None) == 0
    assert await remove(ledger, 0, 3, key) == 2
    assert await ledger.start(topic.LOGS, 0) == 2
    report = await verify(ledger, Known(keys=key.trusted))
    assert report.whole
    await ledger.trim(topic.LOGS, 0, 4)
    assert not (await verify(ledger, Known(keys=key.trusted))).whole

"""From the ledger into the store: everything, once, whatever happens in between."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from metrics.lines import all_lines
from metrics.report import EXPERIMENT, draft, line, logs, metrics, record, row
from rung.events import LedgerUnavailable, decode, fact, topic
from rung.events.deadletter import MessageRejected, MessageRetryRequested
from rung.events.metric import MetricsReported
from rung.ledger import Draft
from rung.ledger.memory import MemoryLedger
from rung.ledger.seals import SealKey
from rung.metrics import (
    SeriesDamaged,
    SeriesError,
    SeriesStore,
    SeriesUnavailable,
    Settings,
    serve,
)
from rung.metrics.batch import MetricColumns
from rung.metrics.clickhouse.embedded import Embedded
from rung.metrics.trimming import remove
from rung.runtime.metrics import catalog
from support.ledger.sealed import seal

pytestmark = pytest.mark.stores

TRIAL = f"{EXPERIMENT}.0"
QUICK = Settings(flush_seconds=0.01)


@asynccontextmanager
async def _serving(
    ledger: MemoryLedger, store: SeriesStore, settings: Settings = QUICK
) -> AsyncIterator[None]:
    task = asyncio.create_task(serve(ledger, store, settings))
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _until(condition: Callable[[], Coroutine[None, None, bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - another thread and a file get there
            await asyncio.sleep(0.01)


async def _caught_up(ledger: MemoryLedger, store: SeriesStore) -> bool:
    stored = await store.positions()
    ends = {
        (topic, partition): await ledger.end(topic, partition)
        for topic in ("metrics", "logs")
        for partition in range(ledger.partitions(topic))
    }
    return stored == {key: end for key, end in ends.items() if end}


async def _everything(store: SeriesStore) -> tuple[object, object]:
    curves = await store.overlay(EXPERIMENT, "training", "loss", 100_000)
    return curves, await all_lines(store)


def _drafts(*, trials: int = 6, events: int = 20) -> list[Draft]:
    drafts: list[Draft] = []
    for number in range(trials * events):
        trial, batch = number % trials, number // trials
        steps = range(batch * 5, batch * 5 + 5)
        rows = [row(step, loss=trial + 1 / (step + 1)) for step in steps]
        drafts += [
            draft(metrics(rows, trial=trial), 2 * number),
            draft(
                logs([line(f"step {step}", step) for step in steps], trial=trial), 2 * number + 1
            ),
        ]
    return drafts


async def test_what_is_appended_is_stored(store: SeriesStore) -> None:
    """Records from before and during serving, of all partitions, arrive, with their positions."""
    ledger = MemoryLedger(ledger_id="ledger-1")
    drafts = _drafts()
    await ledger.append(drafts[:100])
    async with _serving(ledger, store):
        await ledger.append(drafts[100:])
        await _until(lambda: _caught_up(ledger, store))
        curves, lines = await _everything(store)
    assert curves == {
        f"{EXPERIMENT}.{trial}": [(s, trial + 1 / (s + 1), 1_000 + s) for s in range(100)]
        for trial in range(6)
    }
    assert isinstance(lines, list)
    assert len(lines) == 600


async def test_delivery_in_random_chunks_again_and_again_gives_the_same(tmp_path: Path) -> None:
    """However records are cut, repeated and interleaved by crashes: each row is there once."""
    drafts = _drafts(trials=3)
    ledger = MemoryLedger(partitions=2, ledger_id="ledger-1")
    await ledger.append(drafts)
    streams = [
        await ledger.read(topic, partition, 0, 10_000)
        for topic in ("metrics", "logs")
        for partition in range(2)
    ]
    expected = None
    for seed in range(6):
        chance = random.Random(seed)  # noqa: S311 - a test's own chance
        store = SeriesStore(tmp_path / f"series-{seed}", ledger_id="ledger-1")
        done = [0] * len(streams)
        while any(done[i] < len(stream) for i, stream in enumerate(streams)):
            i = chance.randrange(len(streams))
            start = max(0, done[i] - chance.randrange(8))
            end = min(len(streams[i]), start + chance.randrange(1, 12))
            store.absorb(streams[i][start:end])
            done[i] = max(done[i], end)
            if chance.random() < 0.2:
                await store.flush()
        if expected is None:
            expected = await _everything(store)
        assert await _everything(store) == expected, f"seed {seed}"
        await store.close()
    assert expected is not None


async def test_a_deleted_folder_is_built_again(tmp_path: Path) -> None:
    """The store has nothing that the ledger does not have."""
    ledger = MemoryLedger(ledger_id="ledger-1")
    await ledger.append(_drafts())
    contents: list[tuple[object, object]] = []
    for name in ("first", "second"):
        store = SeriesStore(tmp_path / name, ledger_id="ledger-1")
        async with _serving(ledger, store):
            await _until(lambda store=store: _caught_up(ledger, store))  # type: ignore[misc]
            contents.append(await _everything(store))
        await store.close()
    assert contents[0] == contents[1]


async def test_a_restart_goes_on_behind_what_is_stored(tmp_path: Path) -> None:
    """Serving again after a stop takes what came meanwhile, and nothing is missing or double."""
    ledger = MemoryLedger(ledger_id="ledger-1")
    drafts = _drafts()
    for end in (50, 130, len(drafts)):
        start = {50: 0, 130: 50}.get(end, 130)
        await ledger.append(drafts[start:end])
        store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
        async with _serving(ledger, store):
            await _until(lambda store=store: _caught_up(ledger, store))  # type: ignore[misc]
            curves, lines = await _everything(store)
        await store.close()
    assert isinstance(curves, dict)
    assert isinstance(lines, list)
    assert [len(curve) for curve in curves.values()] == [100] * 6
    assert len(lines) == 600


async def test_a_full_batch_is_written_without_waiting(store: SeriesStore) -> None:
    """Behind on a long ledger, batches go out by size, and memory stays bounded by it."""
    ledger = MemoryLedger(ledger_id="ledger-1")
    await ledger.append(_drafts())
    async with _serving(ledger, store, Settings(flush_seconds=3_600, flush_bytes=1)):
        await _until(lambda: _caught_up(ledger, store))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"not json", "not an event"),
        (b'{"specversion":"1.0"}', "not an event"),
        (
            draft(metrics([row(1 << 63, loss=1.0)]), 1).value,
            "step is 9223372036854775808: it must be from",
        ),
        (draft(metrics([row(1, loss=1.0)], run=-1), 1).value, "run is -1: it must be from 0"),
        (draft(logs([line("x", 1, rank=-1)]), 1).value, "rank is -1: it must be from 0"),
    ],
)
async def test_a_bad_record_goes_to_the_dead_letters(
    store: SeriesStore, value: bytes, reason: str
) -> None:
    """It is passed on with the reason, and those before and behind it are stored."""
    ledger = MemoryLedger(partitions=1, ledger_id="ledger-1")
    await ledger.append(
        [
            draft(metrics([row(1, loss=1.0)]), 1),
            Draft("metrics", TRIAL, value),
            draft(metrics([row(2, loss=2.0)]), 2),
        ]
    )
    async with _serving(ledger, store):
        await _until(lambda: _caught_up(ledger, store))
        curve = await store.curve(TRIAL, "training", "loss", 10)
    assert [step for step, _, _ in curve] == [1, 2]
    letters = await ledger.read("deadletter", 0, 0, 10)
    assert len(letters) == 1
    letter = decode(letters[0].value).data
    assert isinstance(letter, MessageRejected)
    assert (letter.reader, letter.topic, letter.position) == ("metrics", "metrics", 1)
    assert reason in letter.reason


async def test_code_that_raises_rejects_its_record_alone(
    store: SeriesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows were added before it raised; a release that can take it is asked to."""
    ledger = MemoryLedger(partitions=1, ledger_id="ledger-1")
    await ledger.append(
        [draft(metrics([row(step, loss=float(step))]), step) for step in (1, 2, 3)]
    )
    take = MetricColumns.take

    def breaks(self: MetricColumns, data: MetricsReported, version: int) -> None:
        take(self, data, version)
        if data.rows[0].step == 2:
            raise KeyError("loss")

    with monkeypatch.context() as patch:
        patch.setattr(MetricColumns, "take", breaks)
        async with _serving(ledger, store):
            await _until(lambda: _caught_up(ledger, store))
            curve = await store.curve(TRIAL, "training", "loss", 10)
    assert [step for step, _, _ in curve] == [1, 3]
    rejected = decode((await ledger.read("deadletter", 0, 0, 10))[0].value).data
    assert isinstance(rejected, MessageRejected)
    assert rejected.reason == "KeyError: 'loss'"

    asked = MessageRetryRequested(
        topic="metrics", partition=0, position=1, key=TRIAL, reader="metrics"
    )
    event = fact(asked, source="/rung/gateway", origin="g", sequence=1, time="t")
    await ledger.append([Draft.of(event)])

    async def taken() -> bool:
        return await ledger.end("deadletter", 0) == 3

    async with _serving(ledger, store):
        await _until(taken)
        curve = await store.curve(TRIAL, "training", "loss", 10)
    assert [step for step, _, _ in curve] == [1, 2, 3]
    assert await store.positions() == {("metrics", 0): 3}


class _Failing(Embedded):
    """An engine whose disk is full for the first few inserts of metrics."""

    failures = 3

    def insert(self, table: str, columns: object, *, again: bool = False) -> None:
        if table == "metrics" and self.failures:
            self.failures -= 1
            raise SeriesUnavailable("the disk is full")
        super().insert(table, columns, again=again)  # type: ignore[arg-type]


async def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """What cannot be written stays absorbed, queries still answer, and it is written later."""
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    engine = _Failing(tmp_path / "series")
    store._engine = engine  # type: ignore[misc]
    store.absorb([record(metrics([row(1, loss=1.0)]), 0)])
    assert await store.curve(TRIAL, "training", "loss", 10) == []
    with pytest.raises(SeriesUnavailable):
        await store.flush()
    store.absorb([record(metrics([row(2, loss=2.0)]), 1)])
    ledger = MemoryLedger(partitions=1, ledger_id="ledger-1")
    await ledger.append(
        [draft(metrics([row(step, loss=float(step))]), step) for step in (1, 2, 3)]
    )
    async with _serving(ledger, store):
        await _until(lambda: _caught_up(ledger, store))
        curve = await store.curve(TRIAL, "training", "loss", 10)
    assert [value for _, value, _ in curve] == [1.0, 2.0, 3.0]
    assert engine.failures == 0
    await store.close()


async def test_a_ledger_put_back_is_noticed(store: SeriesStore) -> None:
    """Series of records that the ledger does not have are refused, with what to do."""
    store.absorb([record(metrics([row(1, loss=1.0)]), 7)])
    await store.flush()
    ledger = MemoryLedger(partitions=1, ledger_id="ledger-1")
    with pytest.raises(SeriesDamaged, match="up to 8, the ledger ends at 0: was the ledger put"):
        await serve(ledger, store, QUICK)


async def test_what_the_ledger_dropped_is_not_waited_for(store: SeriesStore) -> None:
    """After an outage longer than the ledger keeps reports, the rest is stored all the same."""
    ledger = MemoryLedger(partitions=1, ledger_id="ledger-1")
    await ledger.append([draft(metrics([row(step, loss=1.0)]), step) for step in range(1, 11)])
    ledger._streams["metrics", 0].trim(keep=4)
    async with _serving(ledger, store):
        await _until(lambda: _caught_up(ledger, store))
        curve = await store.curve(TRIAL, "training", "loss", 20)
    assert [step for step, _, _ in curve] == [7, 8, 9, 10]


async def _said(ledger: MemoryLedger, store: SeriesStore) -> list[tuple[str, str, int]]:
    """Serve until all is stored; return the level, the message and the number that was said."""
    with structlog.testing.capture_logs() as logged:
        async with _serving(ledger, store):
            await _until(lambda: _caught_up(ledger, store))
    return [
        (each["log_level"], each["event"], each.get("count", each.get("lost")))
        for each in logged
        if each.get("topic") == "logs"
    ]


async def test_what_was_trimmed_on_purpose_is_no_loss(tmp_path: Path) -> None:
    """Of what the ledger has no more, that is told apart which retention put on record."""
    ledger = MemoryLedger(partitions=1, ledger_id="ledger-1")
    key = SealKey.generate()
    store = SeriesStore(tmp_path / "first", ledger_id="ledger-1")
    for number in range(1, 9):
        await ledger.append([draft(logs([line("x", number)]), number)])
    await seal(ledger, key, records=2)
    assert await remove(ledger, 0, 4, key) == 4

    rebuilt = SeriesStore(tmp_path / "rebuilt", ledger_id="ledger-1")
    removed = "old records were removed by retention, as is on record"
    assert await _said(ledger, rebuilt) == [("info", removed, 4)]
    await rebuilt.close()

    store.absorb([record(logs([line("x", 1)]), 0)])
    await store.flush()
    await ledger.trim(topic.LOGS, 0, 6)
    assert await _said(ledger, store) == [
        ("info", removed, 3),
        (
            "error",
            "reports are lost: the ledger removed them before they were stored",
            2,
        ),
    ]
    await store.close()

    new = SeriesStore(tmp_path / "new", ledger_id="ledger-1")
    begins = "the series begin where the ledger does: it has no older records"
    assert await _said(ledger, new) == [("info", removed, 4), ("warning", begins, 2)]
    assert await new.positions() == {("logs", 0): 8}
    await new.close()


class _Dumb(MemoryLedger):
    """A ledger that can be read and not be written."""

    async def append(self, drafts: object) -> list[int]:
        raise LedgerUnavailable("no")


async def _fails(store: SeriesStore) -> bool:
    try:
        await store.flush()
    except LedgerUnavailable:
        return True
    return False


async def test_a_dead_letter_that_cannot_be_written_holds_its_record_back(
    store: SeriesStore,
) -> None:
    """The position does not move past a rejected record that nobody was told about."""
    ledger = MemoryLedger(partitions=1, ledger_id="ledger-1")
    await ledger.append([Draft("metrics", TRIAL, b"not json")])
    dumb = _Dumb(partitions=1, ledger_id="ledger-1")
    dumb._streams = ledger._streams
    async with _serving(dumb, store):
        await _until(lambda: _fails(store))
        assert await store.positions() == {}
    async with _serving(ledger, store):
        await _until(lambda: _caught_up(ledger, store))
    assert await ledger.end("deadletter", 0) == 1


def test_settings_name_field_and_fix() -> None:
    """A wrong setting says which and what would be right."""
    with pytest.raises(ValueError, match="flush_seconds is 0: give the seconds"):
        Settings(flush_seconds=0)
    with pytest.raises(ValueError, match="flush_bytes is 0: give the size"):
        Settings(flush_bytes=0)


async def test_an_unusable_folder_ends_serving_with_its_error(tmp_path: Path) -> None:
    """`serve` raises the store's own error, not a group of errors."""
    (tmp_path / "file").write_text("")
    store = SeriesStore(tmp_path / "file", ledger_id="ledger-1")
    with pytest.raises(SeriesError, match="cannot be used"):
        await serve(MemoryLedger(ledger_id="ledger-1"), store, QUICK)
    await store.close()


async def test_what_prometheus_reads_is_counted(store: SeriesStore) -> None:
    """Rows by table, and how much waits."""
    ledger = MemoryLedger(partitions=1, ledger_id="ledger-1")
    await ledger.append(
        [
            draft(metrics([row(1, loss=1.0, accuracy=0.5)]), 1),
            draft(logs([line("x", 1), line("y", 2), line("z", 3)]), 2),
        ]
    )
    before = _counted()
    async with _serving(ledger, store):
        await _until(lambda: _caught_up(ledger, store))
        assert catalog.SERIES_PENDING_BYTES.read() == {(): 0.0}
    assert [now - then for now, then in zip(_counted(), before, strict=True)] == [2, 3]
    assert catalog.SERIES_PENDING_BYTES.read() == {}


def _counted() -> list[float]:
    """Return how many rows of metrics and of lines were counted."""
    lines = catalog.METER.expose().decode().splitlines()
    counts = dict(line.rsplit(" ", 1) for line in lines if line.startswith("rung_series_rows"))
    return [
        float(counts.get(f'rung_series_rows_total{{table="{table}"}}', 0))
        for table in ("metrics", "logs")
    ]


async def test_serving_ends_whenever_it_is_cancelled(store: SeriesStore) -> None:
    """However far it is: no cancellation is lost on the way, which would have it serve on."""
    ledger = MemoryLedger(partitions=1, ledger_id="ledger-1")
    await ledger.append(_drafts(trials=1))
    await store.open()
    for steps in range(120):
        serving = asyncio.create_task(serve(ledger, store, Settings(flush_seconds=0.001)))
        for _ in range(steps):
            await asyncio.sleep(0)
        serving.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait([serving])
        assert serving.cancelled()

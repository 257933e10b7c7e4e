"""Curves and best values from stretches are those from all reports, and read few rows."""

import math
import random
import time
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest

from metrics.reads import Reads
from metrics.report import EXPERIMENT, metrics, record, row
from rung.events.metric import MetricsDeleted
from rung.ledger import Record
from rung.metrics import Point, SeriesStore, SeriesUnavailable, curves, queries
from rung.metrics.clickhouse.embedded import Embedded
from rung.metrics.clickhouse.engine import Tables
from rung.metrics.clickhouse.schema import has_stretches, migrations, statements

pytestmark = pytest.mark.stores

TRIAL = f"{EXPERIMENT}.0"
_METRIC = curves.Metric(EXPERIMENT, "validation", "loss")
_STEPS = 20_000
_STRETCHES = "SELECT count() FROM stretches"
_VALUES = (0.0, 1.0, 1.0, 2.0, -1.0, 1e300, math.nan, math.inf, -math.inf)


def _history(chance: random.Random) -> list[tuple[int, dict[int, float], bool]]:
    """Return what one trial reports: per event the run, values by step, whether it comes twice."""
    stride = chance.choice([1, 1, 3, 40, 1_500, 1 << 50])
    step = chance.choice([0, 0, -700, (1 << 62) - 5, -(1 << 63)])
    events = []
    run = 1
    for _ in range(chance.randint(1, 6)):
        last = min(step + chance.randint(1, 400) * stride, (1 << 63) - 1)
        curve = dict.fromkeys(range(step, last, stride), chance.choice(_VALUES))
        for spiked in chance.sample(sorted(curve), min(len(curve), chance.randint(0, 4))):
            curve[spiked] = chance.choice(_VALUES)
        if curve:
            events.append((run, curve, chance.random() < 0.1))
        step = last
        if chance.random() < 0.2:  # restarted from a checkpoint
            run += 1
            step = max(step - chance.randint(0, 500) * stride, -(1 << 63))
    return events


def _thinned(curve: dict[int, tuple[float, int]], points: int) -> list[Point]:
    """Return the points that a curve (value and time by step) is thinned to."""
    steps = sorted(curve)
    if len(steps) <= points:
        return [(step, *curve[step]) for step in steps]
    finite = [step for step in steps if math.isfinite(curve[step][0])]
    stretches = (points - 2) // (2 if len(finite) == len(steps) else 3)
    width = curves.width_of(steps[0], steps[-1], stretches)
    kept = {steps[0], steps[-1]}
    for _, group in groupby(steps, lambda step: (step + (1 << 63)) >> width):
        found = [(curve[step][0], step) for step in group]
        kept |= set([step for value, step in found if not math.isfinite(value)][:1])
        if even := [(value, step) for value, step in found if math.isfinite(value)]:
            kept |= {min(even)[1], min((-value, step) for value, step in even)[1]}
    return [(step, *curve[step]) for step in sorted(kept)]


async def _check(
    store: SeriesStore, reported: dict[str, dict[int, tuple[float, int]]], points: int
) -> int:
    """Compare answers with what was reported; return how many curves are thinned and exact."""
    wanted = {trial: _thinned(curve, points) for trial, curve in reported.items() if curve}
    overlay = await store.overlay(EXPERIMENT, "validation", "loss", points)
    assert repr(sorted(overlay.items())) == repr(sorted(wanted.items()))
    for trial in sorted(reported)[:2]:
        curve = await store.curve(trial, "validation", "loss", points)
        assert repr(curve) == repr(wanted.get(trial, []))
    for sign in (1.0, -1.0):
        best = await store.best(EXPERIMENT, "loss", smaller_is_better=sign > 0)
        finite = {
            trial: [(sign * v, step) for step, (v, _) in curve.items() if math.isfinite(v)]
            for trial, curve in reported.items()
        }
        assert best == {
            trial: (min(values)[1], sign * min(values)[0])
            for trial, values in finite.items()
            if values
        }
    assert (("validation", "loss") in await store.names(EXPERIMENT)) == bool(wanted)
    found = await store._run(partial(curves._wholes, metric=_METRIC, level=0, chosen=None))
    return sum(not whole.doubtful and whole.total > points for whole in found)


@pytest.mark.parametrize("seed", range(8))
async def test_stretches_give_what_the_reports_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever was restarted, replaced, stored twice, deleted or migrated again, at any time."""
    monkeypatch.setattr(curves, "_TRIALS_MAX", 3)
    chance = random.Random(seed)  # noqa: S311 - a test's own chance
    points = chance.randint(5, 25)
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    reported: dict[str, dict[int, tuple[float, int]]] = {
        f"{EXPERIMENT}.{number}": {} for number in range(8)
    }
    coming = [
        (number, position, event)
        for number in range(8)
        for position, event in enumerate(_history(chance))
    ]
    coming.sort(key=lambda each: (each[1], each[0]))
    exact = 0
    for number, position, (run, curve, twice) in coming:
        trial = f"{EXPERIMENT}.{number}"
        time_ms = chance.choice([7, 1_000 * position])
        rows = [
            row(step, kind="validation", time_ms=time_ms, loss=value)
            for step, value in curve.items()
        ]
        event = record(metrics(rows, trial=number, run=run), position)
        store.absorb([event])
        reported[trial] |= {step: (value, time_ms) for step, value in curve.items()}
        if twice:
            await store.flush()
            store.absorb([event, record(metrics([row(1, other=1.0)]), position)])
        if chance.random() < 0.5:
            await store.flush()
        match chance.randint(0, 19):
            case 0:
                store.absorb([_deletion(number, position)])
                reported[trial].clear()
            case 1:
                await store.flush()
                await store.recount()
            case 2:
                await store.flush()
                await store._run(_fill_again)
            case 3:
                exact += await _check(store, reported, points)
            case _:
                pass
    exact += await _check(store, reported, points)
    await store.recount()
    assert await store._run(curves.doubtful) == []
    thinned = sum(len(curve) > points for curve in reported.values())
    assert await _check(store, reported, points) == thinned
    assert exact + thinned > 0
    await store.close()


def _deletion(trial: int, position: int) -> Record:
    deleted = MetricsDeleted(experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.{trial}")
    return record(deleted, position)


def _long(*, trial: int = 0, run: int = 1, start: int = 0, end: int = _STEPS) -> list[Point]:
    """Return a long curve."""
    return [(step, trial + run + math.sin(step / 900), 1_000 + step) for step in range(start, end)]


def _absorb(
    store: SeriesStore, curve: list[Point], position: int, *, trial: int = 0, run: int = 1
) -> None:
    rows = [row(step, kind="validation", loss=value) for step, value, _ in curve]
    store.absorb([record(metrics(rows, trial=trial, run=run), position)])


async def _fill(store: SeriesStore) -> None:
    """Store the curves of four trials, in several inserts."""
    for trial in range(4):
        for position, start in enumerate(range(0, _STEPS, 5_000)):
            curve = _long(trial=trial, start=start, end=start + 5_000)
            _absorb(store, curve, 10 * trial + position, trial=trial)
        await store.flush()


async def test_queries_read_few_rows(store: SeriesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names read a row per trial and metric; curves and best values a row per 64 reports."""
    reads = Reads(monkeypatch)
    await _fill(store)
    rows, names = await reads.of(store, store.names(EXPERIMENT))
    assert names == [("validation", "loss")]
    assert 0 < rows <= 100
    rows, curve = await reads.of(store, store.curve(TRIAL, "validation", "loss", 50))
    assert 20 <= len(curve) <= 50
    if not await store._run(has_stretches):  # a server before 23.8 reads the trial's reports twice
        assert 2 * _STEPS <= rows <= 2 * (_STEPS + 2 * 8_192)
        return
    most = 4 * 2 * (4 * _STEPS // 64)  # as many queries at most, and the coarser stretches
    assert 0 < rows <= most
    rows, overlay = await reads.of(store, store.overlay(EXPERIMENT, "validation", "loss", 50))
    assert len(overlay) == 4
    assert 0 < rows <= most
    rows, best = await reads.of(store, store.best(EXPERIMENT, "loss", smaller_is_better=True))
    assert len(best) == 4
    assert 0 < rows <= most


async def test_reports_stored_twice_are_counted_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill, a curve is answered from its reports until the service has counted them."""
    reads = Reads(monkeypatch)
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    await _fill(store)
    asked = partial(store.overlay, EXPERIMENT, "validation", "loss", 50)
    few, wanted = await reads.of(store, asked())
    rows = [row(step, kind="validation", loss=value) for step, value, _ in _long(end=5_000)]
    for other in (5, 6):  # twice, so that what is counted is what was counted before
        again = record(metrics(rows), 0)
        store.absorb([again, record(metrics([row(1, other=1.0)]), other)])  # in another batch
        many, found = await reads.of(store, asked())
        assert found == wanted
        assert many > _STEPS
        await store.recount()
        few_again, found = await reads.of(store, asked())
        assert found == wanted
        assert few_again < 2 * few
        assert await store._run(curves.doubtful) == []
    await store.close()


async def _restarted(store: SeriesStore) -> dict[str, dict[int, tuple[float, int]]]:
    """Store a curve whose highest value the next run replaced; return what was reported."""
    curve = _long()
    curve[15_000] = (15_000, 99.0, 16_000)
    again = _long(start=14_900, run=2, end=15_100)
    _absorb(store, curve, 0)
    assert (15_000, 99.0, 16_000) in await store.curve(TRIAL, "validation", "loss", 50)
    _absorb(store, again, 1, run=2)
    await store.flush()
    return {TRIAL: {step: (value, time_ms) for step, value, time_ms in curve + again}}


async def test_a_restarted_run_replaces_extremes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are gone at once, and after the next count the curve is in its stretches again."""
    reads = Reads(monkeypatch)
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    reported = await _restarted(store)
    asked = partial(store.curve, TRIAL, "validation", "loss", 50)
    many, found = await reads.of(store, asked())
    assert many > _STEPS
    assert max(value for _, value, _ in found) < 4.0
    assert await _check(store, reported, 50) == 0
    await store.recount()
    assert await _check(store, reported, 50) == 1
    few, again = await reads.of(store, asked())
    assert again == found
    assert few < _STEPS / 8
    await store.close()


@pytest.mark.parametrize("done", range(6))
async def test_a_count_that_is_interrupted_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """Killed behind any of its statements, it leaves the curve in doubt or exact."""
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    reported = await _restarted(store)
    left = done
    execute = Embedded.execute

    def killed(engine: Embedded, sql: str) -> None:
        nonlocal left
        if not left:
            raise SeriesUnavailable("killed")
        left -= 1
        execute(engine, sql)

    with monkeypatch.context() as patched:
        patched.setattr(Embedded, "execute", killed)
        with pytest.raises(SeriesUnavailable) if done < 4 else nullcontext():
            await store.recount()
    assert await _check(store, reported, 50) == (done >= 4)
    await store.recount()
    monkeypatch.setattr(time, "time_ns", lambda: 1 << 61)  # a day later, and more
    await store.recount()
    assert await store._run(curves.doubtful) == []
    assert await _check(store, reported, 50) == 1
    await store.close()


async def test_what_is_deleted_while_it_is_counted_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count that saw the reports before they were deleted does not bring the curve back."""
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    await _restarted(store)
    execute = Embedded.execute

    def late(engine: Embedded, sql: str) -> None:
        if "counted_stretches" not in sql:
            execute(engine, sql)
            return
        execute(engine, "CREATE TABLE late AS stretches")
        execute(engine, sql.replace("stretches", "late", 1))
        queries._delete_metrics(engine, [MetricsDeleted(experiment_id=EXPERIMENT, trial_id=TRIAL)])
        execute(engine, "INSERT INTO stretches SELECT * FROM late")

    with monkeypatch.context() as patched:
        patched.setattr(Embedded, "execute", late)
        await store.recount()
    assert await store._run(lambda tables: tables.rows(_STRETCHES, tuple[int])) == [(0,)]
    assert await store.overlay(EXPERIMENT, "validation", "loss", 50) == {}
    await store.close()


@pytest.mark.parametrize("alike", [True, False])
async def test_a_view_that_missed_an_insert_gets_it_when_it_is_repeated(
    tmp_path: Path, *, alike: bool
) -> None:
    """Killed between both, with a batch that is written again as it was, or cut differently."""
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    await _fill(store)
    wanted = await store.overlay(EXPERIMENT, "validation", "loss", 50)
    await store._run(lambda tables: tables.execute("DETACH TABLE reported_stretches"))
    curve = _long(start=_STEPS, end=_STEPS + 1_000)
    _absorb(store, curve, 90)
    await store.flush()
    await store._run(lambda tables: tables.execute("ATTACH TABLE reported_stretches"))
    assert await store.overlay(EXPERIMENT, "validation", "loss", 50) == wanted
    if not alike:
        store.absorb([record(metrics([row(1, other=1.0)]), 91)])
    _absorb(store, curve, 90)
    await store.flush()
    reported = {
        f"{EXPERIMENT}.{trial}": {
            step: (value, time_ms)
            for step, value, time_ms in _long(trial=trial, end=_STEPS + 1_000 * (not trial))
        }
        for trial in range(4)
    }
    assert await _check(store, reported, 50) == 4
    await store.close()


async def test_engines_that_name_what_is_in_a_tuple_give_the_same(tmp_path: Path) -> None:
    """ClickHouse 24.8 to 25 does so by itself; a row has its points in order all the same."""
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    await _fill(store)
    asked = [partial(store.curve, TRIAL, "validation", "loss", points) for points in (50, 15_000)]
    wanted = [await each() for each in asked]
    await store._run(
        lambda tables: tables.execute("SET enable_named_columns_in_function_tuple = 1")
    )
    assert [await each() for each in asked] == wanted
    await store.close()


async def test_an_older_store_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that is killed behind its last row and begun again gives the same answers."""
    reads = Reads(monkeypatch)
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    await _fill(store)
    few, wanted = await reads.of(store, store.overlay(EXPERIMENT, "validation", "loss", 50))
    await store._run(_forget_stretches)
    await store.close()

    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    await store.open()
    rows, found = await reads.of(store, store.overlay(EXPERIMENT, "validation", "loss", 50))
    assert found == wanted
    assert rows < 2 * few
    assert await store.names(EXPERIMENT) == [("validation", "loss")]
    await store._run(_forget_journal)
    await store.close()

    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    assert await store.overlay(EXPERIMENT, "validation", "loss", 50) == wanted
    await store.recount()
    rows, found = await reads.of(store, store.overlay(EXPERIMENT, "validation", "loss", 50))
    assert found == wanted
    assert rows < 4 * few  # until the rows of both fillings are merged
    await store.close()


def _forget_stretches(tables: Tables) -> None:
    """Take the tables back to before migration 8."""
    for view in ("reported_names", "reported_stretches", "counted_stretches"):
        tables.execute(f"DROP VIEW {view}")
    for table in ("names", "stretches"):
        tables.execute(f"DROP TABLE {table}")
    _forget_journal(tables)


def _fill_again(tables: Tables) -> None:
    """Fill the tables as a second process does that migrates at the same time."""
    for migration in migrations()[-2:]:
        for statement in statements(migration.text):
            if "sleep" not in statement:
                tables.execute(statement)


def _forget_journal(tables: Tables) -> None:
    tables.execute("ALTER TABLE migrations DELETE WHERE number >= 8 SETTINGS mutations_sync = 1")


async def test_a_batch_that_is_written_again_is_counted_once(tmp_path: Path) -> None:
    """One whose answer was lost is recognised by its digest, in the table of stretches, too."""
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    for _ in range(2):
        _absorb(store, _long(), 0)
        await store.flush()
    assert await store._run(curves.doubtful) == []
    await store.close()


async def test_stretches_of_a_deleted_trial_go(tmp_path: Path) -> None:
    """And so do its names and its best value."""
    store = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    await _fill(store)
    deleted = [_deletion(trial, 50 + trial) for trial in range(4)]
    store.absorb(deleted[1:])
    overlay = await store.overlay(EXPERIMENT, "validation", "loss", 50)
    assert list(overlay) == [TRIAL]
    assert list(await store.best(EXPERIMENT, "loss", smaller_is_better=True)) == [TRIAL]
    store.absorb(deleted)
    assert await store.names(EXPERIMENT) == []
    await store.close()


@pytest.mark.parametrize(
    ("first", "last", "stretches", "width"),
    [
        (0, 99, 100, 0),
        (0, 100, 100, 1),
        (1, 100, 50, 2),
        (-1, 0, 1, 64),
        (-1, 0, 2, 0),
        (-(1 << 63), (1 << 63) - 1, 2, 63),
        (-(1 << 63), (1 << 63) - 1, 3, 63),
        (5, 5, 3, 0),
    ],
)
def test_a_width_is_the_least_that_suffices(
    first: int, last: int, stretches: int, width: int
) -> None:
    """As many stretches as are allowed hold the curve, and at half the width they do not."""
    assert curves.width_of(first, last, stretches) == width

"""Tables of every version are brought to this one, or left alone with a word why."""

import asyncio
import re
from functools import partial
from pathlib import Path

import pytest

from metrics.lines import all_lines
from metrics.report import EXPERIMENT, line, logs, metrics, record, row
from rung.metrics import SeriesDamaged, SeriesError, SeriesStore, SeriesUnavailable, migrate_series
from rung.metrics.clickhouse.embedded import Embedded
from rung.metrics.clickhouse.engine import Tables
from rung.metrics.clickhouse.native import Column, texts
from rung.metrics.clickhouse.schema import Plan, migrate, migrations, plan, statements
from rung.metrics.retention import days_kept
from servers.clickhouse import ClickHouse

pytestmark = pytest.mark.stores

TRIAL = f"{EXPERIMENT}.0"

_FIRST_JOURNAL = (
    "CREATE TABLE migrations (number UInt32) ENGINE = ReplacingMergeTree ORDER BY number"
)
_FIRST_SETTINGS = "ALTER TABLE {} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1"


async def _opened(place: str | Path, *, migrates: bool = True) -> SeriesStore:
    store = SeriesStore(place, ledger_id="ledger-1", migrates=migrates)
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


def test_migrations_are_numbered_without_gaps() -> None:
    """The first one needs no newer ClickHouse: it holds all that queries ask for."""
    assert [item.number for item in migrations()] == list(range(1, len(migrations()) + 1))
    assert migrations()[0].since is None
    assert all(list(statements(item.text)) for item in migrations())


async def test_tables_are_made_once(place: str) -> None:
    """Opening again finds nothing to do; what the release cannot do is left for later."""
    store = await _opened(place)
    first: Plan = await store._run(plan)
    again: Plan = await store._run(migrate)
    await store.close()
    assert first.pending == again.pending == []
    assert sorted(first.done + first.later) == migrations()
    assert first.done[0].number == 1
    assert all(item.since and item.since > first.version for item in first.later)


async def test_two_replicas_may_migrate_at_once(server_place: str) -> None:
    """Both start on an empty database, and both can go on."""
    stores = await asyncio.gather(*(_opened(server_place) for _ in range(4)))
    stores[0].absorb([record(metrics([row(1, loss=1.0)]), 0)])
    await stores[0].flush()
    assert await stores[3].curve(TRIAL, "training", "loss", 10) == [(1, 1.0, 1_001)]
    for store in stores:
        await store.close()


async def test_a_folder_of_the_first_version_is_brought_up(tmp_path: Path) -> None:
    """One from before there were servers: its rows and positions stay, its tables are changed."""
    old = Embedded(tmp_path / "series")
    await old.run(_make_as_the_first_version_did)
    await old.close()

    store = await _opened(tmp_path / "series")
    assert [item.number for item in (await store._run(plan)).done] == [
        item.number for item in migrations()
    ]
    assert await store.curve(TRIAL, "training", "loss", 10) == [(1, 0.5, 7)]
    assert await store.positions() == {("metrics", 0): 1}
    store.absorb([record(metrics([row(2, loss=1.0)]), 1)])
    assert len(await store.curve(TRIAL, "training", "loss", 10)) == 2
    store.absorb([record(logs([line("later", 9, level="critical")]), 0)])
    for level in ("info", "warning", "error"):
        texts_found = [entry.text for entry in await all_lines(store, level=level)]
        assert texts_found == ["early", "later"]
    await store.close()


async def test_migrating_by_hand_keeps_severe_lines_as_long_as_all(tmp_path: Path) -> None:
    """The days that were set before there was a table of severe lines are this table's, too."""
    place = tmp_path / "series"
    store = await _opened(place)
    await store.retain("logs", 5, now_ms=0)
    await store._run(_forget_severe)
    await store.close()
    await migrate_series(place, days={}, now_ms=0, dry_run=False)
    store = await _opened(place)
    assert [await store._run(partial(days_kept, table=name)) for name in ("logs", "severe")] == [
        5,
        5,
    ]
    await store.close()


async def test_a_batch_that_is_written_again_fills_the_view(tmp_path: Path) -> None:
    """Killed between the table and its view, the batch comes again and is severe as well."""
    store = await _opened(tmp_path / "series")
    printed = record(logs([line("x", 1, level="error")]), 0)
    store.absorb([printed])
    await store.flush()
    await store._run(lambda tables: tables.execute("TRUNCATE TABLE severe"))
    assert await all_lines(store, level="error") == []
    store.absorb([printed])
    assert [entry.text for entry in await all_lines(store, level="error")] == ["x"]
    await store.close()


def _forget_severe(tables: Tables) -> None:
    """Take the tables back to before migration 7."""
    tables.execute("DROP VIEW severe_lines")
    tables.execute("DROP TABLE severe")
    tables.execute("ALTER TABLE migrations DELETE WHERE number = 7 SETTINGS mutations_sync = 1")


def _make_as_the_first_version_did(tables: Tables) -> None:
    tables.execute(_FIRST_JOURNAL)
    for statement in statements(migrations()[0].text):
        tables.execute(statement)
    for table in ("metrics", "logs", "positions", "ledgers"):
        tables.execute(_FIRST_SETTINGS.format(table))
    tables.insert("migrations", [Column("number", "UInt32", [1])])
    tables.insert("ledgers", [texts("id", ["ledger-1"])])
    tables.insert(
        "metrics",
        [
            texts("experiment_id", [EXPERIMENT]),
            texts("trial_id", [TRIAL]),
            texts("kind", ["training"]),
            texts("name", ["loss"]),
            Column("step", "Int64", [1]),
            Column("value", "Float64", [0.5]),
            Column("time_ms", "Int64", [7]),
            Column("run", "UInt32", [1]),
            Column("version", "UInt64", [1 << 44]),
        ],
    )
    tables.insert(
        "logs",
        [
            texts("experiment_id", [EXPERIMENT]),
            Column("time_ms", "Int64", [7]),
            texts("trial_id", [TRIAL]),
            Column("sequence", "UInt64", [1]),
            Column("line", "UInt32", [0]),
            texts("origin", ["agent/a/spool"]),
            Column("run", "UInt32", [1]),
            Column("rank", "UInt32", [0]),
            Column("stream", "Name", ["stdout"]),
            Column("level", "Name", ["error"]),
            texts("text", ["early"]),
        ],
    )
    tables.insert(
        "positions",
        [
            texts("topic", ["metrics"]),
            Column("partition", "UInt32", [0]),
            Column("position", "UInt64", [1]),
        ],
    )


async def test_tables_of_a_newer_version_are_refused(place: str) -> None:
    """A migration that this version does not know means: hands off, for writers and readers."""
    store = await _opened(place)
    await store._run(
        lambda tables: tables.insert("migrations", [Column("number", "UInt32", [9_999])])
    )
    await store.close()
    with pytest.raises(SeriesDamaged, match="written by a newer Rung"):
        await _opened(place)
    reader = SeriesStore(place, ledger_id="ledger-1", read_only=True)
    with pytest.raises(SeriesDamaged, match="written by a newer Rung"):
        await reader.names(EXPERIMENT)
    await reader.close()


async def test_series_of_another_ledger_are_refused(place: str) -> None:
    """They may be all that another cluster has: nothing in them is touched, nor told to be."""
    await (await _opened(place)).close()
    for read_only in (False, True):
        other = SeriesStore(place, ledger_id="ledger-2", read_only=read_only)
        with pytest.raises(
            SeriesDamaged, match="from the ledger ledger-1, not from ledger-2"
        ) as no:
            await other.open()
        assert not re.search("DROP|delete", str(no.value))
        await other.close()
    await (await _opened(place)).close()


async def test_who_may_not_change_tables_says_what_to_run(
    server_place: str, clickhouse: ClickHouse
) -> None:
    """Without migrating, a service refuses and a reader waits; neither makes a table."""
    with pytest.raises(
        SeriesError, match="lacks migration 1, 5, 8: run `rung metrics migrate`"
    ) as no:
        await _opened(server_place, migrates=False)
    assert not no.value.retriable
    reader = SeriesStore(server_place, ledger_id="ledger-1", read_only=True)
    with pytest.raises(SeriesUnavailable, match="or start the metrics service"):
        await reader.names(EXPERIMENT)
    database = server_place.rpartition("/")[2]
    assert clickhouse.query(f"SHOW TABLES FROM {database}") == ""

    await (await _opened(server_place)).close()
    assert await reader.names(EXPERIMENT) == []
    await reader.close()
    await (await _opened(server_place, migrates=False)).close()

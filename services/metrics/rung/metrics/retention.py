"""Retention of rows: by the table's TTL, or by deletions where ClickHouse is too old for that.

The tables are not partitioned by time: it is the trial's clock, and a wrong one would make
partitions by the thousand. A TTL works by rows and needs no partitions.
"""

import re
from typing import Final

from rung.metrics.clickhouse.engine import Tables
from rung.metrics.clickhouse.schema import log_tables, metric_tables

DAYS_MAX: Final = 36_500
TABLES: Final = ("metrics", "logs")

KNOWS_TTL: Final = (20, 12)
"""TTLs are older (19.6), but could not be taken away again before 20.12."""
_DAY_S: Final = 86_400
_DAY_MS: Final = 1_000 * _DAY_S
_TIME_MAX: Final = (1 << 32) - 1
_FOR_EVER_S: Final = (1 << 32) - 1
_TTL: Final = re.compile(
    r"\bTTL toDateTime\(.*?intDiv\(time_ms, 1000\) \+ (?:least\()?(\d+)", re.DOTALL
)

_DEFINITION: Final = """
SELECT create_table_query FROM system.tables
WHERE database = currentDatabase() AND name = {table:String}
"""
_DELETING: Final = """
SELECT count() FROM system.mutations
WHERE database = currentDatabase() AND table = {table:String} AND NOT is_done
"""


def retain(tables: Tables, table: str, days: int | None, *, now_ms: int) -> bool:
    """Have rows dropped that were reported longer ago than a number of days.

    Args:
        tables: of the database.
        table: `metrics` or `logs`.
        days: 0 keeps them for ever, but for lines of an experiment that asks for days of its own;
            None: as it was set before.
        now_ms: the present time, Unix time in milliseconds.

    Returns:
        Whether ClickHouse goes on by itself; if not, this has to be called now and then.
    """
    assert table in TABLES, table
    related = log_tables(tables) if table == "logs" else metric_tables(tables)
    if tables.version < KNOWS_TTL:
        for each in related if days else ():
            _delete(tables, each, before_ms=now_ms - (days or 0) * _DAY_MS)
        return not days
    kept = days_kept(tables, table) if days is None else days
    for each in related:
        _set_ttl(tables, each, kept)
    return True


def days_kept(tables: Tables, table: str) -> int:
    """Return the days after which the TTL drops rows of all experiments, 0: never."""
    found = _TTL.search(_definition(tables, table))
    kept_s = int(found[1]) if found else _FOR_EVER_S
    return 0 if kept_s == _FOR_EVER_S else kept_s // _DAY_S


def _definition(tables: Tables, table: str) -> str:
    [(definition,)] = tables.rows(_DEFINITION, tuple[str], table=table)
    return definition


def _set_ttl(tables: Tables, table: str, days: int) -> None:
    kept = days_kept(tables, table)
    if table in log_tables(tables):
        if days == kept and "keep_days * " in _definition(tables, table):
            return
        most = days * _DAY_S or _FOR_EVER_S
        kept_s = f"least({most}, if(keep_days = 0, {_FOR_EVER_S}, keep_days * {_DAY_S}))"
    elif days == kept:
        return
    elif days == 0:
        tables.execute(f"ALTER TABLE {table} REMOVE TTL")
        return
    else:
        kept_s = str(days * _DAY_S)
    # Times outside the range of DateTime are moved to its first or last second; not to zero,
    # which for a TTL means never.
    gone = f"intDiv(time_ms, 1000) + {kept_s}"
    tables.execute(
        f"ALTER TABLE {table} MODIFY TTL toDateTime(least(greatest({gone}, 1), {_TIME_MAX}))"
    )


def _delete(tables: Tables, table: str, *, before_ms: int) -> None:
    """Delete rows; that rewrites the parts in which they lie."""
    [(running,)] = tables.rows(_DELETING, tuple[int], table=table)
    if running:
        return
    old = f"SELECT count() FROM {table} WHERE time_ms < {{before:Int64}}"  # noqa: S608 - a constant
    [(found,)] = tables.rows(old, tuple[int], before=before_ms)
    if found:
        tables.execute(f"ALTER TABLE {table} DELETE WHERE time_ms < {before_ms}")

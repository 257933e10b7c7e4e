"""The tables: made by numbered migrations; those of a newer version are refused.

A migration is a file `sql/NNNN_name.sql`, or `NNNN_name.since_YY_N.sql` for what ClickHouse can do
since release YY.N: an older server goes without until it is upgraded. Migrations only go forward,
and each may be run twice, also by two processes at once.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from rung.metrics.clickhouse.engine import Tables
from rung.metrics.clickhouse.errors import SeriesDamaged, SeriesError, SeriesUnavailable
from rung.metrics.clickhouse.native import Column, texts

_MIGRATION: Final = re.compile(r"(\d{4})_([a-z_]+?)(?:\.since_(\d+)_(\d+))?\.sql")
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)

KEEP_DAYS: Final = 6
"""The migration that adds the column of the experiments' own days."""
SEVERE: Final = 7
"""The migration that adds the table of severe lines, and fills it."""

STRETCHES: Final = 9
"""The migration that adds the stretches of curves, and fills them."""

_JOURNAL: Final = """
CREATE TABLE IF NOT EXISTS migrations (number UInt32)
ENGINE = ReplacingMergeTree ORDER BY number
"""
_HAS_JOURNAL: Final = """
SELECT name FROM system.tables WHERE database = currentDatabase() AND name = 'migrations'
"""


class Migration(NamedTuple):
    """One step of the tables' layout."""

    number: int
    name: str
    since: tuple[int, int] | None
    """The release of ClickHouse that it needs; None: every one."""
    text: str


class Plan(NamedTuple):
    """Which migrations a database has, and which it lacks."""

    version: tuple[int, int]
    """Of ClickHouse."""
    done: list[Migration]
    pending: list[Migration]
    later: list[Migration]
    """Those that this release of ClickHouse cannot do."""


@cache
def query(name: str) -> str:
    """Return the text of a query: `curves`, `best` and so on."""
    return (files("rung.metrics") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


@cache
def migrations() -> list[Migration]:
    """Return every migration that this version knows, in order."""
    found = []
    folder = files("rung.metrics") / "sql"
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if match := _MIGRATION.fullmatch(entry.name):
            number, name, year, release = match.groups()
            since = (int(year), int(release)) if year else None
            found.append(Migration(int(number), name, since, entry.read_text(encoding="utf-8")))
    return found


def statements(text: str) -> Iterator[str]:
    """Yield a file's statements; none holds a semicolon within."""
    for statement in _COMMENT.sub("", text).split(";"):
        if statement.strip():
            yield statement.strip()


def applied(tables: Tables, migration: int) -> bool:
    """Return whether a migration was applied: an old server goes without some."""
    return tables.rows(query("applied"), tuple[int], migration=migration) != [(0,)]


def has_severe(tables: Tables) -> bool:
    """Return whether severe lines are in a table of their own."""
    return applied(tables, SEVERE)


def log_tables(tables: Tables) -> list[str]:
    """Return the tables that hold printed lines."""
    return ["logs", "severe"] if has_severe(tables) else ["logs"]


def has_stretches(tables: Tables) -> bool:
    """Return whether curves are kept in stretches, too."""
    return applied(tables, STRETCHES)


def metric_tables(tables: Tables) -> list[str]:
    """Return the tables that hold reports, or what follows from them."""
    return ["metrics", "names", "stretches"] if has_stretches(tables) else ["metrics", "names"]


def prepare(tables: Tables, *, ledger_id: str, read_only: bool, migrates: bool) -> None:
    """Make sure that the tables can be used; for the parameters see `SeriesStore`.

    Raises:
        SeriesError: they cannot; `SeriesUnavailable` where a reader has to wait for them.
    """
    if read_only:
        check(tables, waiting=True)
        check_owner(tables, ledger_id)
        return
    if migrates:
        migrate(tables)
    else:
        check(tables, waiting=False)
    claim(tables, ledger_id)


def plan(tables: Tables) -> Plan:
    """Return the migrations that a database has and lacks; change nothing.

    Raises:
        SeriesDamaged: a newer version made its tables.
    """
    numbers: set[int] = set()
    if tables.rows(_HAS_JOURNAL, tuple[str]):
        rows = tables.rows("SELECT DISTINCT number FROM migrations", tuple[int])
        numbers = {number for (number,) in rows}
    known = migrations()
    if max(numbers, default=0) > known[-1].number:
        raise SeriesDamaged(
            f"{tables.place} was written by a newer Rung (migration {max(numbers)}, this version "
            f"knows {known[-1].number}). Use that version; or: {tables.remedy}"
        )
    version = tables.version
    undone = [item for item in known if item.number not in numbers]
    return Plan(
        version,
        done=[item for item in known if item.number in numbers],
        pending=[item for item in undone if item.since is None or item.since <= version],
        later=[item for item in undone if item.since is not None and item.since > version],
    )


def migrate(tables: Tables) -> Plan:
    """Bring the tables to this version; return what was to be done.

    An interrupted migration is run again.

    Raises:
        SeriesDamaged: a newer version made them.
    """
    todo = plan(tables)
    if todo.pending:
        tables.execute(_JOURNAL)
    for migration in todo.pending:
        for statement in statements(migration.text):
            tables.execute(statement)
        tables.insert("migrations", [Column("number", "UInt32", [migration.number])])
    return todo


def check(tables: Tables, *, waiting: bool) -> None:
    """Make sure that the tables are of this version; change nothing.

    Args:
        tables: of the database.
        waiting: whether another process is expected to make them.

    Raises:
        SeriesUnavailable: they are older, and `waiting`.
        SeriesError: they are older.
        SeriesDamaged: a newer version made them.
    """
    needed = [item.number for item in plan(tables).pending if item.since is None]
    if needed:
        numbers = ", ".join(map(str, needed))
        message = f"{tables.place} lacks migration {numbers}: run `rung metrics migrate`"
        if waiting:
            raise SeriesUnavailable(f"{message}, or start the metrics service")
        raise SeriesError(message)


def claim(tables: Tables, ledger_id: str) -> None:
    """Make sure that the tables derive from this ledger and no other.

    Raises:
        SeriesDamaged: they derive from another.
    """
    if not check_owner(tables, ledger_id):
        tables.insert("ledgers", [texts("id", [ledger_id])])
        check_owner(tables, ledger_id)


def check_owner(tables: Tables, ledger_id: str) -> bool:
    """Return whether the tables derive from this ledger; False where no ledger is on record.

    Raises:
        SeriesDamaged: they derive from another.
    """
    owners = sorted(tables.rows("SELECT DISTINCT id FROM ledgers", tuple[str]))
    others = [owner for (owner,) in owners if owner != ledger_id]
    if others:
        raise SeriesDamaged(
            f"{tables.place} was derived from the ledger {others[0]}, not from {ledger_id}. "
            f"{tables.remedy}"
        )
    return bool(owners)

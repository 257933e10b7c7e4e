"""The tables: made by numbered migrations, and never opened by an older version than made them."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from rung.metrics.engine import Engine
from rung.metrics.errors import SeriesDamaged, remedy
from rung.metrics.native import Column

_MIGRATION: Final = re.compile(r"(\d{4})_\w+\.sql")
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_TABLES: Final = ("metrics", "logs", "positions", "ledgers")

_JOURNAL: Final = """
CREATE TABLE IF NOT EXISTS migrations (number UInt32)
ENGINE = ReplacingMergeTree ORDER BY number
"""


class _Number(NamedTuple):
    number: int


class _Ledger(NamedTuple):
    id: str


@cache
def query(name: str) -> str:
    """Return the text of a query: `curves`, `best` and so on."""
    return (files("rung.metrics") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def migrations() -> dict[int, str]:
    """Return the text of every migration by its number, in order."""
    texts: dict[int, str] = {}
    folder = files("rung.metrics") / "sql"
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if match := _MIGRATION.fullmatch(entry.name):
            texts[int(match[1])] = entry.read_text(encoding="utf-8")
    return texts


def statements(text: str) -> Iterator[str]:
    """Yield a file's statements; none holds a semicolon within."""
    for statement in _COMMENT.sub("", text).split(";"):
        if statement.strip():
            yield statement.strip()


def migrate(engine: Engine) -> None:
    """Bring the tables to this version; a migration cut short is run again.

    Raises:
        SeriesDamaged: a newer version made them.
    """
    engine.execute(_JOURNAL)
    done = [row.number for row in engine.rows("SELECT DISTINCT number FROM migrations", _Number)]
    known = migrations()
    if max(done, default=0) > max(known):
        raise SeriesDamaged(
            f"{engine.folder} was written by a newer Rung (migration {max(done)}, this version "
            f"knows {max(known)}). Use that version; or: {remedy(engine.folder)}"
        )
    for number, text in known.items():
        if number in done:
            continue
        for statement in statements(text):
            engine.execute(statement)
        _make_durable(engine)
        engine.insert("migrations", [Column("number", "UInt32", [number])])


def _make_durable(engine: Engine) -> None:
    """Have an insert on disk when it returns, so that positions never outrun their rows.

    Not in the migrations, for a ClickHouse server of before 20.10 does not know the settings.
    """
    for table in _TABLES:
        engine.execute(
            f"ALTER TABLE {table} MODIFY SETTING fsync_after_insert = 1, fsync_part_directory = 1"
        )


def claim(engine: Engine, ledger_id: str) -> None:
    """Make sure that the tables derive from this ledger and no other.

    Raises:
        SeriesDamaged: they derive from another.
    """
    owners = [row.id for row in engine.rows("SELECT DISTINCT id FROM ledgers", _Ledger)]
    if not owners:
        engine.insert("ledgers", [Column("id", "String", [ledger_id])])
    elif owners != [ledger_id]:
        raise SeriesDamaged(
            f"{engine.folder} was derived from the ledger {owners[0]}, not from {ledger_id}. "
            f"{remedy(engine.folder)}"
        )

"""Opening the series wherever they are: a folder of chDB's, or a database of a server."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rung.metrics.clickhouse.address import is_address, read_address
from rung.metrics.clickhouse.embedded import Embedded
from rung.metrics.clickhouse.engine import Engine
from rung.metrics.clickhouse.errors import SeriesError
from rung.metrics.clickhouse.schema import Plan, migrate, plan
from rung.metrics.clickhouse.server import Server
from rung.metrics.retention import retain
from rung.metrics.store import SeriesStore


def open_series(
    place: str | Path, *, ledger_id: str, read_only: bool = False, migrates: bool = True
) -> SeriesStore:
    """Return the series of a ledger; they are opened at their first use.

    Args:
        place: `clickhouse://user@host:9000/database`, with the password in
            RUNG_CLICKHOUSE_PASSWORD, or the path of a chDB folder, made if need be.
        ledger_id: the ledger from which they derive; those of another are refused.
        read_only: only queries are asked; nothing is written, made or changed.
        migrates: bring the tables to this version; if not, older ones are refused.

    Raises:
        ValueError: `place` is neither; the message says what would be right.
    """
    engine = _engine(place, read_only=read_only)
    return SeriesStore(engine, ledger_id=ledger_id, read_only=read_only, migrates=migrates)


async def migrate_series(
    place: str | Path, *, days: Mapping[str, int], now_ms: int, dry_run: bool
) -> Plan:
    """Bring the tables of a database or folder to this version; return what was to be done.

    Args:
        place: see `open_series`.
        days: for tables whose retention is to be set, the days; 0: for ever.
        now_ms: the present time, Unix time in milliseconds.
        dry_run: change nothing.

    Raises:
        ValueError: `place` is neither an address nor a path.
        SeriesError: it cannot be opened, or a newer version made its tables.
    """
    engine = _engine(place, read_only=dry_run)
    if isinstance(engine, Embedded) and not engine.folder.is_dir():
        raise SeriesError(f"{engine.folder}: there is no such folder")
    try:
        if dry_run:
            return await engine.run(plan)
        todo = await engine.run(migrate)
        for table, kept in ({"logs": None} | dict(days)).items():
            await engine.run(partial(retain, table=table, days=kept, now_ms=now_ms))
        return todo
    finally:
        await engine.close()


def _engine(place: str | Path, *, read_only: bool) -> Engine:
    if isinstance(place, str) and is_address(place):
        return Server(read_address(place), read_only=read_only)
    return Embedded(Path(place))

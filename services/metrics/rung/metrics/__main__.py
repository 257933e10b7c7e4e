"""Runs metrics as a process of its own: `python -m rung.metrics --ledger DIR --series PLACE`."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import click

from rung.events import RungError
from rung.ledger.sqlite import SqliteLedger
from rung.metrics.config import Settings
from rung.metrics.opening import open_series
from rung.metrics.service import serve


async def _run(ledger_folder: Path, series: str, settings: Settings, *, migrates: bool) -> None:
    ledger = await SqliteLedger.open(ledger_folder)
    try:
        store = open_series(series, ledger_id=ledger.id, migrates=migrates)
        serving = asyncio.create_task(serve(ledger, store, settings))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        try:
            await asyncio.wait([serving])
            if not serving.cancelled():
                serving.result()
        finally:
            await store.close()
    finally:
        await ledger.close()


_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(context_settings={"auto_envvar_prefix": "RUNG_METRICS", "show_default": True})
@click.option(
    "--ledger", type=_FOLDER, required=True, envvar="RUNG_LEDGER", help="Folder of the ledger."
)
@click.option(
    "--series", required=True, envvar="RUNG_SERIES", help="clickhouse://USER@HOST/DB, or a folder."
)
@click.option("--flush-seconds", default=1.0, help="Longest wait of a record.")
@click.option("--flush-bytes", default=8 << 20, help="Size of a batch.")
@click.option("--metrics-days", type=int, help="Drop older reports, 0: none.  [default: as it is]")
@click.option("--logs-days", type=int, help="Drop older lines, 0: none.  [default: as it is]")
@click.option("--migrate/--no-migrate", default=True, help="Bring the tables to this version.")
def main(*, ledger: Path, series: str, migrate: bool, **settings: Any) -> None:
    """Keep the metrics and logs of a ledger in ClickHouse until SIGTERM."""
    try:
        asyncio.run(_run(ledger, series, Settings(**settings), migrates=migrate))
    except (ValueError, RungError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()

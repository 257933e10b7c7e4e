"""Runs metrics as a process of its own: `python -m rung.metrics --ledger DIR --series DIR`."""

import asyncio
import signal
from pathlib import Path

import click

from rung.events import RungError
from rung.ledger.sqlite import SqliteLedger
from rung.metrics.config import Settings
from rung.metrics.service import serve
from rung.metrics.store import SeriesStore


async def _run(ledger_folder: Path, series_folder: Path, settings: Settings) -> None:
    ledger = await SqliteLedger.open(ledger_folder)
    store = SeriesStore(series_folder, ledger_id=ledger.id)
    serving = asyncio.create_task(serve(ledger, store, settings))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
    finally:
        await store.close()
        await ledger.close()


_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(context_settings={"auto_envvar_prefix": "RUNG_METRICS", "show_default": True})
@click.option(
    "--ledger", type=_FOLDER, required=True, envvar="RUNG_LEDGER", help="Folder of the ledger."
)
@click.option("--series", type=_FOLDER, required=True, help="Folder of chDB, made if need be.")
@click.option("--flush-seconds", default=1.0, help="Longest wait of a record.")
@click.option("--flush-bytes", default=8 << 20, help="Size of a batch.")
def main(ledger: Path, series: Path, flush_seconds: float, flush_bytes: int) -> None:
    """Keep the metrics and logs of a ledger in chDB until SIGTERM."""
    try:
        settings = Settings(flush_seconds=flush_seconds, flush_bytes=flush_bytes)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        asyncio.run(_run(ledger, series, settings))
    except RungError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()

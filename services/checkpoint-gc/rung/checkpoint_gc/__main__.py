"""Runs checkpoint-gc as a process of its own: `python -m rung.checkpoint_gc --ledger FOLDER …`."""

import asyncio
import signal
from pathlib import Path

import click

from rung.checkpoint_gc.config import Settings
from rung.checkpoint_gc.service import serve
from rung.events import RungError
from rung.ledger import SqliteLedger
from rung.objects import open_store


async def _run(folder: Path, objects: str, settings: Settings) -> None:
    store = open_store(objects)
    ledger = await SqliteLedger.open(folder)
    serving = asyncio.create_task(serve(ledger, store, settings))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
    finally:
        await ledger.close()


@click.command(context_settings={"auto_envvar_prefix": "RUNG_CHECKPOINT_GC", "show_default": True})
@click.option(
    "--ledger",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    envvar="RUNG_LEDGER",
    help="Folder of the ledger.",
)
@click.option("--objects", required=True, envvar="RUNG_OBJECTS", help="URL of the object store.")
@click.option("--retry-max", default=60.0, help="Most seconds between two tries of a deletion.")
@click.option("--snapshot-every", default=10_000, help="Facts between two snapshots.")
def main(ledger: Path, objects: str, retry_max: float, snapshot_every: int) -> None:
    """Delete the checkpoints that nobody wants any more, until SIGTERM."""
    try:
        settings = Settings(retry_max=retry_max, snapshot_every=snapshot_every)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        asyncio.run(_run(ledger, objects, settings))
    except RungError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()

"""Runs the scheduler as a process of its own: `python -m rung.scheduler --ledger FOLDER`."""

import asyncio
import signal
from pathlib import Path

import click

from rung.events import RungError
from rung.ledger import SqliteLedger
from rung.scheduler.config import Settings
from rung.scheduler.service import serve


async def _run(folder: Path, settings: Settings) -> None:
    ledger = await SqliteLedger.open(folder)
    serving = asyncio.create_task(serve(ledger, settings))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
    finally:
        await ledger.close()


@click.command(context_settings={"auto_envvar_prefix": "RUNG_SCHEDULER", "show_default": True})
@click.option(
    "--ledger",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    envvar="RUNG_LEDGER",
    help="Folder of the ledger.",
)
@click.option("--agent-timeout", default=30.0, help="Seconds of silence until an agent is lost.")
@click.option("--snapshot-every", default=10_000, help="Facts between two snapshots.")
def main(ledger: Path, agent_timeout: float, snapshot_every: int) -> None:
    """Schedule the pools of a ledger until SIGTERM."""
    try:
        settings = Settings(agent_timeout=agent_timeout, snapshot_every=snapshot_every)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        asyncio.run(_run(ledger, settings))
    except RungError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()

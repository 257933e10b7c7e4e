"""Runs the gateway as a process of its own: `python -m rung.gateway --ledger FOLDER …`."""

import asyncio
import signal
import socket
from pathlib import Path

import click

from rung.events import RungError
from rung.gateway.config import Settings
from rung.gateway.service import serve
from rung.ledger.sqlite import SqliteLedger
from rung.objects import open_store


async def _run(
    folder: Path, objects: str, listener: socket.socket, token: str, settings: Settings
) -> None:
    store = open_store(objects)
    ledger = await SqliteLedger.open(folder)
    serving = asyncio.create_task(
        serve(ledger, store, listener=listener, token=token, settings=settings)
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
    finally:
        await ledger.close()


@click.command(context_settings={"auto_envvar_prefix": "RUNG_GATEWAY", "show_default": True})
@click.option("--ledger", required=True, envvar="RUNG_LEDGER", help="Folder of the ledger.")
@click.option("--objects", required=True, envvar="RUNG_OBJECTS", help="URL, file:///srv/objects.")
@click.option("--token", required=True, envvar="RUNG_TOKEN", help="What a client must know.")
@click.option("--bind", default="127.0.0.1:8080", help="Address and port to listen on.")
@click.option("--host-name", multiple=True, help="Name that clients use, besides loopback's.")
def main(ledger: str, objects: str, token: str, bind: str, host_name: tuple[str, ...]) -> None:
    """Serve the API and the page of a ledger until SIGTERM."""
    address, _, port = bind.rpartition(":")
    if not address or not port.isdigit() or not token:
        raise click.UsageError("--bind takes ADDRESS:PORT, and --token must not be empty")
    try:
        settings = Settings(host_names=host_name)
        listener = socket.create_server((address, int(port)))
        asyncio.run(_run(Path(ledger), objects, listener, token, settings))
    except (RungError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()

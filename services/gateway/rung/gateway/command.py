"""The gateway's command line, without the parts of other services."""

import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import click

from rung.gateway.context import Parts
from rung.gateway.service import serve
from rung.gateway.settings import Settings
from rung.ledger import Ledger
from rung.runtime.bootstrap import Opened, Place, checked, launch, placed
from rung.runtime.http.limits import Limits

Compose = Callable[[Ledger], AbstractAsyncContextManager[Parts]]

CONTEXT: Final = {"auto_envvar_prefix": "RUNG_GATEWAY", "show_default": True}


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the gateway's own options."""
    for option in (
        click.option(
            "--connections",
            default=Limits().connections,
            help="Open connections in all; at most half of the open files that are allowed.",
        ),
        click.option(
            "--connections-per-address",
            default=Limits().connections_per_address,
            help="Open connections of one address. Behind a proxy all clients have the proxy's: "
            "give as many as --connections.",
        ),
        click.option(
            "--host-name", multiple=True, help="Name that clients use, besides loopback."
        ),
        click.option("--bind", default="127.0.0.1:8080", help="Address and port to listen on."),
        click.option(
            "--token", required=True, envvar="RUNG_TOKEN", help="What clients must know."
        ),
        click.option(
            "--projections",
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder of this replica's projections, to go on from after a restart. "
            "[default: a temporary one]",
        ),
        placed(objects=True),
    ):
        command = option(command)
    return command


def run(  # noqa: PLR0913 - the options of the command
    place: Place,
    token: str,
    bind: str,
    *,
    names: tuple[str, ...],
    projections: Path | None,
    connections: int,
    connections_per_address: int,
    compose: Compose,
) -> None:
    """Serve the API and the page of a ledger until SIGTERM."""
    address, _, port = bind.rpartition(":")
    if not address or not port.isdigit() or not token:
        raise click.UsageError("--bind takes ADDRESS:PORT, and --token must not be empty")
    limits = checked(
        Limits, connections=connections, connections_per_address=connections_per_address
    )
    settings = checked(Settings, host_names=names, limits=limits)
    try:
        listener = socket.create_server((address, int(port)))
    except (OSError, OverflowError) as error:
        raise click.ClickException(f"--bind {bind}: {error}") from error

    async def work(opened: Opened) -> None:
        async with compose(opened.ledger) as parts:
            await serve(
                opened.ledger,
                opened.objects,
                listener=listener,
                token=token,
                parts=parts,
                settings=settings,
                folder=projections,
            )

    with listener:
        launch(place, work, service="gateway")

"""The gateway's command line, without the parts of other services."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Unpack

import click

from rung.gateway.context import Parts
from rung.gateway.identity.options import IdentityOptions, identity_options, identity_settings
from rung.gateway.requests.rate import Rates
from rung.gateway.requests.read_trail import ReadTrailSettings
from rung.gateway.service import NAME, components, serve
from rung.gateway.settings import DAY_S, Settings
from rung.ledger import Ledger
from rung.runtime.bootstrap import Opened, Place, checked, launch, placed
from rung.runtime.http.limits import Limits
from rung.runtime.secrets_key import secrets_key_option
from rung.runtime.service import serve as serve_components
from rung.runtime.service import topics_of
from rung.secrets.master_key import MasterKey
from rung.subscription.address import rule_of

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
            "--reads-per-second",
            default=300.0,
            help="That one token may send to this replica, with ten seconds' reads at once after "
            "a pause; beyond, 429. 0: any number.",
        ),
        click.option(
            "--writes-per-second", default=50.0, help="The same for requests that write."
        ),
        click.option(
            "--read-trail",
            type=click.Path(dir_okay=False, path_type=Path),
            help="File of the trail of reads: a line of JSON for each; ten files of 100 MiB are "
            "kept. [default: none]",
        ),
        click.option(
            "--read-trail-required",
            is_flag=True,
            help="Refuse reads while the trail cannot be written.",
        ),
        click.option(
            "--deletion-delay-days",
            default=3.0,
            help="How long `rung restore` brings back an experiment that was deleted; 0: not at "
            "all.",
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
        click.option(
            "--webhooks-allow-network",
            envvar="RUNG_WEBHOOKS_ALLOW_NETWORK",
            multiple=True,
            metavar="CIDR",
            help="Network that webhooks may lead to although it is not public, as the service "
            "webhooks has it; can be repeated.",
        ),
        click.option(
            "--webhooks-allow-http/--no-webhooks-allow-http",
            envvar="RUNG_WEBHOOKS_ALLOW_HTTP",
            default=False,
            help="Webhooks may have addresses without encryption.",
        ),
        identity_options,
        secrets_key_option,
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
    secrets_key: MasterKey | None,
    connections: int,
    connections_per_address: int,
    reads_per_second: float,
    writes_per_second: float,
    read_trail: Path | None,
    read_trail_required: bool,
    webhooks_allow_network: tuple[str, ...],
    webhooks_allow_http: bool,
    deletion_delay_days: float,
    compose: Compose,
    **identity: Unpack[IdentityOptions],
) -> None:
    """Serve the API and the page of a ledger until SIGTERM."""
    address, _, port = bind.rpartition(":")
    if not address or not port.isdigit() or not token:
        raise click.UsageError("--bind takes ADDRESS:PORT, and --token must not be empty")
    limits = checked(
        Limits, connections=connections, connections_per_address=connections_per_address
    )
    rates = checked(Rates, reads_per_s=reads_per_second, writes_per_s=writes_per_second)
    if read_trail is None and read_trail_required:
        raise click.UsageError("--read-trail-required needs --read-trail FILE")
    trail = read_trail and ReadTrailSettings(path=read_trail, required=read_trail_required)
    webhooks = checked(lambda: rule_of(webhooks_allow_network, allow_http=webhooks_allow_http))
    settings = checked(
        Settings,
        webhooks=webhooks,
        host_names=names,
        limits=limits,
        identity=identity_settings(identity),
        rates=rates,
        read_trail=trail,
        deletion_delay=deletion_delay_days * DAY_S,
    )
    try:
        listener = socket.create_server((address, int(port)))
    except (OSError, OverflowError) as error:
        raise click.ClickException(f"--bind {bind}: {error}") from error

    async def work(opened: Opened) -> None:
        async with compose(opened.ledger) as parts, asyncio.TaskGroup() as group:
            deciding = components(opened.objects)
            group.create_task(serve_components(opened.ledger, deciding, opened.assignment))
            group.create_task(
                serve(
                    opened.ledger,
                    opened.objects,
                    listener=listener,
                    token=token,
                    parts=parts,
                    settings=settings,
                    folder=projections,
                    publishes=True,
                    secrets_key=secrets_key,
                )
            )

    with listener:
        launch(place, work, service=NAME, topics=topics_of(components(None)))

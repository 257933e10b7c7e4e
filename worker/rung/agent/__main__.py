"""Runs an agent: `python -m rung.agent --ledger FOLDER|kafka://… --objects URL …`."""

import asyncio
import math
import os
import socket
from pathlib import Path
from typing import get_args

import click

from rung.agent import isolation as isolated
from rung.agent.child import become_subreaper
from rung.agent.config import EXIT_REFUSED, Settings
from rung.agent.life import live
from rung.agent.log_quota import MAX_BYTES
from rung.agent.size import Size
from rung.agent.spool_file import SpoolRefused
from rung.agent.spot import Choice
from rung.events import RungError
from rung.runtime import logs
from rung.runtime.bootstrap import Place, placed
from rung.runtime.http.limits import raise_open_files


@click.command(context_settings={"auto_envvar_prefix": "RUNG_AGENT", "show_default": True})
@placed(objects=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="The agent's own.")
@click.option("--pool", default="default", help="Resource pool.")
@click.option("--slots", type=int, help="Slots of the CPU. [default: one per CUDA device or core]")
@click.option("--agent-id", help="Name of the agent. [default: the host's]")
@click.option("--grace", default=math.inf, help="Longest grace period of a preemption, in s.")
@click.option("--leave", default=5.0, help="Seconds for checkpoints when the agent is stopped.")
@click.option("--address", help="How other agents reach this machine. [default: --interface's]")
@click.option("--interface", help="Network interface of trials that span machines.")
@click.option(
    "--spot",
    type=click.Choice(get_args(Choice)),
    default="auto",
    help="Whose notice that this machine will be taken away to wait for.",
)
@click.option("--metadata-url", help="The cloud's metadata service. [default: where it always is]")
@click.option("--cache", type=click.Path(path_type=Path), help="Data cache. [default: its own]")
@click.option(
    "--cache-bytes", type=Size(), help="Its size, such as 500GB. [default: half the disk]"
)
@click.option(
    "--logs-max-bytes",
    type=Size(),
    default=MAX_BYTES,
    help="How much of a run's log is stored, such as 64MiB, whatever an experiment asks for.",
)
@click.option(
    "--isolation",
    type=click.Choice(get_args(isolated.Choice)),
    default="auto",
    help="What keeps trials from acting as the agent and as each other.",
)
@click.option("--trial-uids", default="60000-60999", help="User ids of trials, each its own.")
@click.option(
    "--trial-groups",
    default="",
    help="Groups of such trials, by name or id, as video,1500. [default: none]",
)
@click.option(
    "--hide",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Folder that trials in namespaces do not see. Repeatable.",
)
@click.option(
    "--parent",
    type=int,
    help="Descriptor of a socket: the process at its other end appends to the ledger in the"
    " agent's place; when it is gone, the agent stops.",
)
@click.option("--cold", is_flag=True, help="Do not import frameworks ahead of the trials.")
def main(  # noqa: PLR0913 - one for each option
    *,
    place: Place,
    folder: Path,
    pool: str,
    slots: int | None,
    agent_id: str | None,
    grace: float,
    leave: float,
    address: str | None,
    interface: str | None,
    spot: Choice,
    metadata_url: str | None,
    cache: Path | None,
    cache_bytes: int | None,
    logs_max_bytes: int,
    isolation: isolated.Choice,
    trial_uids: str,
    trial_groups: str,
    hide: tuple[Path, ...],
    parent: int | None,
    cold: bool,
) -> None:
    """Offer this machine's slots to a resource pool until SIGTERM."""
    become_subreaper()
    umask = os.umask(0o077)  # what it writes is for its owner; its trials keep the user's
    try:
        logs.log_to(service="agent")
        raise_open_files()
        settings = Settings(
            folder=folder,
            objects_url=place.objects or "",
            pool=pool,
            slots=slots,
            agent_id=agent_id,
            grace_s_max=grace,
            leave_s=leave,
            address=address,
            interface=interface,
            spot=spot,
            metadata_url=metadata_url,
            cache=cache,
            cache_bytes=cache_bytes,
            logs_max_bytes=logs_max_bytes,
            isolation=isolation,
            trial_uids=isolated.UserIds.parse(trial_uids),
            trial_groups=isolated.groups_of(trial_groups),
            hide=hide,
            cold=cold,
            trial_umask=umask,
        )
        connection = None if parent is None else socket.socket(fileno=parent)
        if connection is not None:
            connection.set_inheritable(False)  # trials have no part in it
        asyncio.run(live(place, settings, connection))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except RungError as error:
        refusal = click.ClickException(str(error))
        if isinstance(error, SpoolRefused | isolated.IsolationRefused):
            refusal.exit_code = EXIT_REFUSED
        raise refusal from error


if __name__ == "__main__":
    main()

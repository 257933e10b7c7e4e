"""Runs an agent: `python -m rung.agent --ledger FOLDER|kafka://… --objects URL …`."""

import asyncio
import math
import os
import signal
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, get_args

import click

from rung.agent.agent import Agent
from rung.agent.forkserver.child import become_subreaper
from rung.agent.isolation import isolation as isolated
from rung.agent.logs.quota import MAX_BYTES
from rung.agent.membership.spot_notice import Choice
from rung.agent.outbox.outbox_file import OutboxRefused
from rung.agent.settings import EXIT_REFUSED, Settings
from rung.agent.size import Size
from rung.events import RungError
from rung.ledger import Ledger
from rung.ledger.factory import open_remote_append
from rung.runtime import logs
from rung.runtime.bootstrap import Place, observed, open_when_ready, placed
from rung.runtime.health.checks import HEALTH
from rung.runtime.health.probe import probe
from rung.runtime.http.limits import raise_open_files
from rung.runtime.secrets_key import secrets_key_option
from rung.secrets.master_key import MasterKey


async def run_agent(
    place: Place,
    settings: Settings,
    parent: socket.socket | None,
    secrets_key: MasterKey | None = None,
) -> None:
    """Run an agent until SIGTERM or SIGINT, or until the process that started it is gone.

    Args:
        place: the addresses of its ledger and its object store.
        settings: of the agent.
        parent: a socket to that process, which appends to the ledger on behalf of this one; None
            where this one appends by itself, and does not end with it.
        secrets_key: decrypts the secrets of experiments.

    Raises:
        AgentRefused: another agent uses the folder, or it cannot be written.
        LedgerError: one that retries do not cure.
    """
    loop = asyncio.get_running_loop()
    stop, gone = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with probe(place.probe, service="agent"):
        if parent is None:
            opening = open_when_ready(place.ledger)
        else:
            opening = open_remote_append(place.ledger, parent, gone.set)
        ledger = await _open(observed(opening), stop, gone)
        if ledger is None:
            return
        logs.bind(ledger=ledger.id)
        try:
            agent = Agent(settings, ledger, secrets_key)
            with HEALTH.check("pool", agent.unready):
                await agent.run(stop, gone)
        finally:
            await ledger.close()


async def _open(work: Coroutine[Any, Any, Ledger], *ends: asyncio.Event) -> Ledger | None:
    """Open the ledger, waiting for its brokers; None if one of `ends` is set meanwhile."""
    opening = asyncio.create_task(work)
    waiting = [asyncio.create_task(end.wait()) for end in ends]
    await asyncio.wait([opening, *waiting], return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    if opening.done():
        return opening.result()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    return None


@click.command(context_settings={"auto_envvar_prefix": "RUNG_AGENT", "show_default": True})
@placed(objects=True)
@secrets_key_option
@click.option(
    "--folder", type=click.Path(path_type=Path), required=True, help="Folder of this agent alone."
)
@click.option("--pool", default="default", help="Resource pool.")
@click.option("--slots", type=int, help="Slots of the CPU. [default: one per CUDA device or core]")
@click.option("--agent-id", help="Name of the agent. [default: the host's]")
@click.option("--grace", default=math.inf, help="Longest grace period of a preemption, in s.")
@click.option("--leave", default=5.0, help="Seconds for checkpoints when the agent is stopped.")
@click.option(
    "--unattended",
    default=3600.0,
    help="Seconds that trials go on training without an agent before they checkpoint and exit;"
    " 0: none.",
)
@click.option(
    "--keep-trials/--end-trials",
    help="Whether trials go on training for the next agent when this one is stopped.",
)
@click.option("--address", help="How other agents reach this machine. [default: --interface's]")
@click.option("--interface", help="Network interface of trials that span machines.")
@click.option(
    "--spot",
    type=click.Choice(get_args(Choice)),
    default="auto",
    help="Cloud whose preemption notice (spot instance) to wait for.",
)
@click.option(
    "--metadata-url", help="The cloud's metadata service. [default: the cloud's usual address]"
)
@click.option("--cache", type=click.Path(path_type=Path), help="Data cache. [default: its own]")
@click.option(
    "--cache-bytes", type=Size(), help="Its size, such as 500GB. [default: half the disk]"
)
@click.option(
    "--logs-max-bytes",
    type=Size(),
    default=MAX_BYTES,
    help="Limit of a run's stored log, such as 64MiB; an experiment may ask for less.",
)
@click.option(
    "--isolation",
    type=click.Choice(get_args(isolated.Choice)),
    default="auto",
    help="How trials are separated from the agent and from each other.",
)
@click.option(
    "--trial-uids", default="60000-60999", help="Range of user ids; each trial gets its own."
)
@click.option(
    "--trial-groups",
    default="",
    help="Supplementary groups of such trials, by name or id: video,1500. [default: none]",
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
@click.option(
    "--frameworks-idle",
    default=math.inf,
    help="Seconds after which imported frameworks that no trial uses leave the memory.",
)
def main(  # noqa: PLR0913 - one for each option
    *,
    place: Place,
    secrets_key: MasterKey | None,
    folder: Path,
    pool: str,
    slots: int | None,
    agent_id: str | None,
    grace: float,
    leave: float,
    unattended: float,
    keep_trials: bool,
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
    frameworks_idle: float,
) -> None:
    """Offer this machine's slots to a resource pool until SIGTERM."""
    become_subreaper()
    umask = os.umask(0o077)  # the agent's files are for its owner; trials keep the user's umask
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
            unattended_s=unattended,
            keep_trials=keep_trials and unattended > 0,
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
            frameworks_idle_s=frameworks_idle,
            trial_umask=umask,
        )
        connection = None if parent is None else socket.socket(fileno=parent)
        if connection is not None:
            connection.set_inheritable(False)  # trials must not inherit it
        asyncio.run(run_agent(place, settings, connection, secrets_key))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except RungError as error:
        refusal = click.ClickException(str(error))
        if isinstance(error, OutboxRefused | isolated.IsolationRefused):
            refusal.exit_code = EXIT_REFUSED
        raise refusal from error


if __name__ == "__main__":
    main()

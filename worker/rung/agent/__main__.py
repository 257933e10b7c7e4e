"""Runs an agent: `python -m rung.agent --ledger FOLDER --objects URL --folder FOLDER`."""

import asyncio
import math
import os
import signal
from pathlib import Path

import click

from rung.agent.agent import Agent
from rung.agent.child import become_subreaper
from rung.agent.config import Settings
from rung.agent.journal import log_to_stderr
from rung.events import RungError
from rung.ledger import SqliteLedger


async def _run(folder: Path, settings: Settings, parent_pipe: int | None) -> None:
    loop = asyncio.get_running_loop()
    stop, gone = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if parent_pipe is not None:
        loop.add_reader(parent_pipe, _hear_parent, parent_pipe, gone)
    ledger = await SqliteLedger.open(folder)
    try:
        await Agent(settings, ledger).run(stop, gone)
    finally:
        await ledger.close()


def _hear_parent(pipe: int, gone: asyncio.Event) -> None:
    if not os.read(pipe, 4096):
        asyncio.get_running_loop().remove_reader(pipe)
        gone.set()


@click.command(context_settings={"auto_envvar_prefix": "RUNG_AGENT", "show_default": True})
@click.option("--ledger", type=click.Path(path_type=Path), required=True, help="Its folder.")
@click.option("--objects", required=True, help="URL of the object store: file:///…")
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="The agent's own.")
@click.option("--pool", default="default", help="Resource pool.")
@click.option("--slots", type=int, help="Slots of the CPU. [default: one per CUDA device or core]")
@click.option("--agent-id", help="Name of the agent. [default: the host's]")
@click.option("--grace", default=math.inf, help="Longest grace period of a preemption, in s.")
@click.option("--parent-pipe", type=int, help="Descriptor; when it closes, the agent stops.")
@click.option("--cold", is_flag=True, help="Do not import frameworks ahead of the trials.")
def main(  # noqa: PLR0913 - one for each option
    *,
    ledger: Path,
    objects: str,
    folder: Path,
    pool: str,
    slots: int | None,
    agent_id: str | None,
    grace: float,
    parent_pipe: int | None,
    cold: bool,
) -> None:
    """Offer this machine's slots to a resource pool until SIGTERM."""
    log_to_stderr()
    become_subreaper()
    try:
        settings = Settings(
            folder=folder,
            objects_url=objects,
            pool=pool,
            slots=slots,
            agent_id=agent_id,
            grace_s_max=grace,
            cold=cold,
        )
        asyncio.run(_run(ledger, settings, parent_pipe))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except RungError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()

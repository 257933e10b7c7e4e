"""`rung pause`, `rung resume`, `rung cancel`, `rung kill`."""

from typing import TYPE_CHECKING

import click

from rung.cli.commands.complete import experiment_ids
from rung.cli.commands.wait import follow
from rung.cli.exit_code import OK
from rung.cli.link import PATIENCE_FOLLOWING_S, PATIENCE_S, Link, asynchronous, linked
from rung.cli.output import print_json

if TYPE_CHECKING:
    from rung.client import Action, AsyncClient


@click.command()
@click.argument("experiment_id", metavar="ID", shell_complete=experiment_ids)
@linked
@asynchronous
async def pause(experiment_id: str, link: Link) -> None:
    """Have an experiment checkpoint, give its slots back, and wait."""
    async with link.client() as client:
        told = "is asked to pause; `rung resume` lets it go on"
        await _ask(link, client, "pause", experiment_id, told)


@click.command()
@click.argument("experiment_id", metavar="ID", shell_complete=experiment_ids)
@linked
@asynchronous
async def resume(experiment_id: str, link: Link) -> None:
    """Have a paused experiment go on."""
    async with link.client() as client:
        await _ask(link, client, "resume", experiment_id, "is asked to go on")


@click.command()
@click.argument("experiment_id", metavar="ID", shell_complete=experiment_ids)
@click.option("--wait", "waiting", is_flag=True, help="Return once it ended.")
@linked
@asynchronous
async def cancel(experiment_id: str, link: Link, *, waiting: bool) -> int:
    """End an experiment; its trials checkpoint first."""
    return await _end(link, "cancel", experiment_id, "is asked to end", waiting=waiting)


@click.command()
@click.argument("experiment_id", metavar="ID", shell_complete=experiment_ids)
@click.option("--wait", "waiting", is_flag=True, help="Return once it ended.")
@linked
@asynchronous
async def kill(experiment_id: str, link: Link, *, waiting: bool) -> int:
    """End an experiment at once."""
    return await _end(link, "kill", experiment_id, "is asked to end at once", waiting=waiting)


async def _ask(
    link: Link, client: "AsyncClient", action: "Action", experiment_id: str, told: str
) -> None:
    requested = await client.ask(action, experiment_id)
    if link.json:
        print_json(requested)
    else:
        click.echo(f"Experiment {requested.experiment_id} {told}.")


async def _end(
    link: Link, action: "Action", experiment_id: str, told: str, *, waiting: bool
) -> int:
    """Ask for the end, and wait for it if wanted; being canceled is what was asked for."""
    async with link.client(PATIENCE_FOLLOWING_S if waiting else PATIENCE_S) as client:
        await _ask(link, client, action, experiment_id, told)
        if waiting:
            await follow(link._replace(json=False), client, experiment_id, quiet=True)
    return OK

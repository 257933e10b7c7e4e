"""`rung pause`, `rung resume`, `rung cancel`, `rung kill`."""

from typing import TYPE_CHECKING

import click

from rung.cli.complete import experiment_ids
from rung.cli.exit_code import OK
from rung.cli.link import Link, asynchronous, linked
from rung.cli.output import print_json
from rung.cli.wait import follow

if TYPE_CHECKING:
    from rung.client import Action


@click.command()
@click.argument("experiment_id", metavar="ID", shell_complete=experiment_ids)
@linked
@asynchronous
async def pause(experiment_id: str, link: Link) -> None:
    """Have an experiment checkpoint, give its slots back, and wait."""
    await _ask(link, "pause", experiment_id, "is asked to pause; `rung resume` lets it go on")


@click.command()
@click.argument("experiment_id", metavar="ID", shell_complete=experiment_ids)
@linked
@asynchronous
async def resume(experiment_id: str, link: Link) -> None:
    """Have a paused experiment go on."""
    await _ask(link, "resume", experiment_id, "is asked to go on")


@click.command()
@click.argument("experiment_id", metavar="ID", shell_complete=experiment_ids)
@click.option("--wait", "waiting", is_flag=True, help="Return once it ended.")
@linked
@asynchronous
async def cancel(experiment_id: str, link: Link, *, waiting: bool) -> int:
    """End an experiment; its trials checkpoint first."""
    await _ask(link, "cancel", experiment_id, "is asked to end")
    return await _ended(link, experiment_id) if waiting else OK


@click.command()
@click.argument("experiment_id", metavar="ID", shell_complete=experiment_ids)
@click.option("--wait", "waiting", is_flag=True, help="Return once it ended.")
@linked
@asynchronous
async def kill(experiment_id: str, link: Link, *, waiting: bool) -> int:
    """End an experiment at once."""
    await _ask(link, "kill", experiment_id, "is asked to end at once")
    return await _ended(link, experiment_id) if waiting else OK


async def _ask(link: Link, action: "Action", experiment_id: str, told: str) -> None:
    async with link.client() as client:
        requested = await client.ask(action, experiment_id)
    if link.json:
        print_json(requested)
    else:
        click.echo(f"Experiment {requested.experiment_id} {told}.")


async def _ended(link: Link, experiment_id: str) -> int:
    """Wait for the end; being canceled is what was asked for."""
    await follow(link._replace(json=False), experiment_id, quiet=True)
    return OK

"""`rung pause`, `resume`, `cancel` and `kill` for experiments, `rung trial move` for trials."""

import click

from rung.cli.commands.wait import follow
from rung.cli.exit_code import OK
from rung.cli.link import PATIENCE_FOLLOWING_S, PATIENCE_S, Link, experiment_argument, linked
from rung.cli.output import print_json
from rung.client import Action, AsyncClient


@click.command()
@experiment_argument
@linked
async def pause(experiment_id: str, link: Link) -> None:
    """Have an experiment checkpoint, give its slots back, and wait."""
    async with link.client() as client:
        text = "is asked to pause; `rung resume` lets it go on"
        await _ask(link, client, "pause", experiment_id, text)


@click.command()
@experiment_argument
@linked
async def resume(experiment_id: str, link: Link) -> None:
    """Have a paused experiment go on."""
    async with link.client() as client:
        await _ask(link, client, "resume", experiment_id, "is asked to go on")


@click.command()
@experiment_argument
@click.option("--wait", "waiting", is_flag=True, help="Return once it ended.")
@linked
async def cancel(experiment_id: str, link: Link, *, waiting: bool) -> int:
    """End an experiment; its trials checkpoint first."""
    return await _end(link, "cancel", experiment_id, "is asked to end", waiting=waiting)


@click.command()
@experiment_argument
@click.option("--wait", "waiting", is_flag=True, help="Return once it ended.")
@linked
async def kill(experiment_id: str, link: Link, *, waiting: bool) -> int:
    """End an experiment at once."""
    return await _end(link, "kill", experiment_id, "is asked to end at once", waiting=waiting)


@click.group()
def trial() -> None:
    """Move a trial to another agent."""


@trial.command()
@click.argument("trial_id", metavar="TRIAL")
@click.option("--to", metavar="AGENT", help="Where to; any other agent if not given.")
@linked
async def move(trial_id: str, to: str | None, link: Link) -> None:
    """Have a trial checkpoint, give its slots back, and go on on another agent.

    It resumes from that checkpoint, so neither its curve nor the decisions of the search change.
    If the other agents have no free slots it waits for them; if none of them could ever run it, it
    goes on where it was.
    """
    async with link.client() as client:
        asked = await client.move(trial_id, to=to)
    if link.json:
        print_json(asked)
    else:
        click.echo(f"Trial {asked.trial_id} is asked to go on on {asked.to or 'another agent'}.")


async def _ask(
    link: Link, client: AsyncClient, action: Action, experiment_id: str, text: str
) -> None:
    requested = await client.ask(action, experiment_id)
    if link.json:
        print_json(requested)
    else:
        click.echo(f"Experiment {requested.experiment_id} {text}.")


async def _end(link: Link, action: Action, experiment_id: str, text: str, *, waiting: bool) -> int:
    """Ask for the end, and wait for it if wanted; the state `canceled` is a success here."""
    async with link.client(PATIENCE_FOLLOWING_S if waiting else PATIENCE_S) as client:
        await _ask(link, client, action, experiment_id, text)
        if waiting:
            await follow(link._replace(json=False), client, experiment_id, quiet=True)
    return OK

"""`rung trial move`."""

import click

from rung.cli.link import Link, asynchronous, linked
from rung.cli.output import print_json


@click.group()
def trial() -> None:
    """Move a trial to another agent."""


@trial.command()
@click.argument("trial_id", metavar="TRIAL")
@click.option("--to", metavar="AGENT", help="Where to; any other agent if not given.")
@linked
@asynchronous
async def move(trial_id: str, to: str | None, link: Link) -> None:
    """Have a trial checkpoint, give its slots back, and go on on another agent.

    It goes on from exactly there: neither its curve nor what the search decides shows it. Where
    the other agents are full it waits for them; where there is none that could ever serve it, it
    goes on where it was.
    """
    async with link.client() as client:
        asked = await client.move(trial_id, to=to)
    if link.json:
        print_json(asked)
    else:
        click.echo(f"Trial {asked.trial_id} is asked to go on on {asked.to or 'another agent'}.")

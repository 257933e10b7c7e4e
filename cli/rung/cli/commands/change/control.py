"""`rung pause`, `resume`, `cancel`, `kill` of experiments, `rung trial move` and `kill`."""

from typing import Any

import click

from rung.cli.bulk import Chosen, change_all, several
from rung.cli.commands.wait import follow
from rung.cli.connection_options import (
    PATIENCE_FOLLOWING_S,
    PATIENCE_S,
    Link,
    linked,
    trial_ids,
)
from rung.cli.exit_code import OK
from rung.cli.output import print_json, print_json_line
from rung.client import Action, BatchWanted


@click.command()
@several
@linked
async def pause(link: Link, **chosen: Any) -> int:
    """Have experiments checkpoint, give their slots back, and wait.

    Exit code 1: one of several was refused.
    """
    text = "is asked to pause; `rung resume` lets it go on"
    return await _ask_all(link, "pause", Chosen(**chosen), text, "asked to pause")


@click.command()
@several
@linked
async def resume(link: Link, **chosen: Any) -> int:
    """Have paused experiments go on.

    Exit code 1: one of several was refused.
    """
    return await _ask_all(link, "resume", Chosen(**chosen), "is asked to go on", "asked to go on")


@click.command()
@several
@click.option("--wait", "waiting", is_flag=True, help="Return once it ended.")
@linked
async def cancel(link: Link, *, waiting: bool, **chosen: Any) -> int:
    """End experiments; their trials checkpoint first.

    With --json --wait, two lines are printed: the request, and the experiment once it ended.
    Exit code 1: one of several was refused.
    """
    text = "is asked to end"
    return await _ask_all(link, "cancel", Chosen(**chosen), text, "asked to end", waiting=waiting)


@click.command()
@several
@click.option("--wait", "waiting", is_flag=True, help="Return once it ended.")
@linked
async def kill(link: Link, *, waiting: bool, **chosen: Any) -> int:
    """End experiments at once.

    With --json --wait, two lines are printed: the request, and the experiment once it ended.
    Exit code 1: one of several was refused.
    """
    text, done = "is asked to end at once", "asked to end at once"
    return await _ask_all(link, "kill", Chosen(**chosen), text, done, waiting=waiting)


@click.group()
def trial() -> None:
    """Move a trial to another agent, or end it."""


@trial.command()
@click.argument("trial_id", metavar="TRIAL", shell_complete=trial_ids)
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


@trial.command("kill")
@click.argument("trial_id", metavar="TRIAL", shell_complete=trial_ids)
@linked
async def kill_trial(trial_id: str, link: Link) -> None:
    """End one trial at once; its search goes on without it.

    It is not started again, not replaced, and not counted as a failure: its state is `canceled`.
    Its checkpoints are kept or deleted as those of other trials.
    """
    async with link.client() as client:
        asked = await client.kill_trial(trial_id)
    if link.json:
        print_json(asked)
    else:
        click.echo(f"Trial {asked.trial_id} is asked to end at once.")


async def _ask_all(  # noqa: PLR0913 - what makes a command
    link: Link, action: Action, chosen: Chosen, text: str, done: str, *, waiting: bool = False
) -> int:
    """Ask for something, and wait for the end if wanted; `canceled` is a success here."""
    async with link.client(PATIENCE_FOLLOWING_S if waiting else PATIENCE_S) as client:
        if chosen.single is not None:
            requested = await client.ask(action, chosen.single)
            if link.json:
                print_json_line(requested)
            else:
                click.echo(f"Experiment {requested.experiment_id} {text}.")
            code, asked = OK, [chosen.single]
        else:
            wanted = BatchWanted(action=action)
            code, items = await change_all(link, client, chosen, wanted, done)
            asked = [item.experiment_id for item in items if item.outcome == "done"]
        for name in asked if waiting else ():
            await follow(link, client, name, quiet=True)
    return code

"""`rung wait`, and what `rung submit -f` does after submitting."""

import asyncio
from typing import TYPE_CHECKING

import click

from rung.cli import exit_code
from rung.cli.commands.complete import experiment_ids
from rung.cli.commands.watch import live, silent, watch
from rung.cli.link import PATIENCE_FOLLOWING_S, Link, asynchronous, linked
from rung.cli.output import duration, number, print_json_line, printable, seconds_between

if TYPE_CHECKING:
    from rung.client import AsyncClient, Experiment


@click.command()
@click.argument("experiment_id", metavar="ID", shell_complete=experiment_ids)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@linked
@asynchronous
async def wait(experiment_id: str, link: Link, *, quiet: bool) -> int:
    """Wait until an experiment ended; the exit code says how."""
    async with link.client(PATIENCE_FOLLOWING_S) as client:
        return await follow(link, client, experiment_id, quiet=quiet)


async def follow(link: Link, client: "AsyncClient", experiment_id: str, *, quiet: bool) -> int:
    """Show an experiment until it ended; Ctrl-C leaves it alone.

    The client is the one that wrote what is to be shown, if one did: any gateway shows it that.
    """
    try:
        if quiet or link.json:
            experiment = await watch(client, experiment_id, silent)
        else:
            async with live() as show:
                experiment = await watch(client, experiment_id, show)
    except asyncio.CancelledError:  # Ctrl-C
        click.echo(
            f"\nNo longer watching; experiment {experiment_id} goes on. `rung wait"
            f" {experiment_id}` watches it again, `rung cancel {experiment_id}` ends it.",
            err=True,
        )
        raise
    if link.json:
        print_json_line(experiment)
    else:
        _tell(experiment)
    return exit_code.of_state(experiment.state)


def _tell(experiment: "Experiment") -> None:
    took = duration(seconds_between(experiment.submitted_at, experiment.ended_at))
    reason = experiment.reason or f"{len(experiment.trials)} trials"
    click.echo(f"{experiment.id} {experiment.state} after {took}: {printable(reason)}")
    if experiment.best is not None:
        best = experiment.best
        click.echo(
            f"best {printable(best.metric)} {number(best.value)} by {best.trial_id};"
            f" `rung best {experiment.id}` shows more"
        )

"""`rung gc logs`, `rung gc checkpoints`: delete what is needed no longer, or say what that is."""

import re
import time
from typing import Final

import click

from rung.cli.bulk import Chosen, change_all, several
from rung.cli.commands.change.deletion import print_freed
from rung.cli.connection_options import Link, linked, optional_experiment_argument
from rung.cli.output import counted, print_json, print_table, size
from rung.client import BatchWanted, RetentionWanted

_AGE: Final = re.compile(r"(\d+)([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Age(click.ParamType):
    """Takes a length of time, such as 30d or 12h."""

    name = "age"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds."""
        found = _AGE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is no age: write such as 30d, 12h, 90m or 0s", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


@click.group()
def gc() -> None:
    """Delete what takes space and is needed no longer."""


@gc.command()
@optional_experiment_argument
@click.option("--older-than", type=Age(), help="Printed longer ago than this, such as 30d.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@linked
async def logs(
    experiment_id: str | None, link: Link, *, older_than: int | None, dry_run: bool
) -> None:
    """Delete printed lines: of an experiment, or all that are old.

    The deletion is on record. The ledger's own copy is removed when the topic is trimmed, once
    everything before it in its partition may be removed.
    """
    if experiment_id is None and older_than is None:
        raise click.UsageError("name an experiment, or an age with --older-than, such as 30d")
    before = None if older_than is None else str(int((time.time() - older_than) * 1000))
    async with link.client() as client:
        found = await client.collect_logs(experiment_id, before=before, dry_run=dry_run)
    if link.json:
        print_json(found)
        return
    if not found.items:
        click.echo("No lines are that old." if older_than is not None else "There are no lines.")
        return
    rows = [
        (item.experiment_id, item.trials, f"{item.lines:,}", size(item.size_bytes))
        for item in found.items
    ]
    print_table(["experiment", "trials", "lines", "size"], rows, right=["trials", "lines", "size"])
    lines = f"{counted(found.lines, 'line')} ({size(found.size_bytes)})"
    click.echo(f"{lines} would be deleted." if dry_run else f"{lines} deleted.")


@gc.command()
@several
@click.option("--save-experiment-best", type=click.IntRange(0), help="The best of all trials.")
@click.option("--save-trial-best", type=click.IntRange(0), help="The best of each trial.")
@click.option("--save-trial-latest", type=click.IntRange(0), help="The latest of each trial.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@linked
async def checkpoints(
    link: Link,
    *,
    names: tuple[str, ...],
    where: str | None,
    yes: bool,
    dry_run: bool,
    **wanted: int | None,
) -> int:
    """Delete checkpoints that a policy does not keep: of experiments, of a filter, or of all.

    A number that is not given is that of each experiment. With --dry-run it says which checkpoints
    would go, by experiment, and changes nothing. Otherwise the policy is that of the experiments
    from here on, as with `rung retention`.

    Exit code 1: one of several was refused.
    """
    if not names and where is None:
        where = "archived:any"
    change = BatchWanted(action="retain", retention=RetentionWanted(**wanted), dry_run=dry_run)
    async with link.client() as client:
        chosen = Chosen(names, where, yes)
        code, items = await change_all(link, client, chosen, change, "changed")
    if not link.json:
        print_freed(items, would=dry_run)
    return code

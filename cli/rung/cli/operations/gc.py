"""`rung gc logs`."""

import re
import time
from typing import Final

import click

from rung.cli.commands.complete import experiment_ids
from rung.cli.link import Link, asynchronous, linked
from rung.cli.output import print_json, print_table, size

_AGE: Final = re.compile(r"(\d+)([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Age(click.ParamType):
    """An option that takes a length of time, such as 30d or 12h."""

    name = "age"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds."""
        found = _AGE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is no age: write such as 30d, 12h, 90m or 0s", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


@click.group()
def gc() -> None:
    """Delete what takes room and is needed no longer."""


@gc.command()
@click.argument("experiment_id", metavar="[ID]", required=False, shell_complete=experiment_ids)
@click.option("--older-than", type=Age(), help="Printed longer ago than this, such as 30d.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@linked
@asynchronous
async def logs(
    experiment_id: str | None, link: Link, *, older_than: int | None, dry_run: bool
) -> None:
    """Delete printed lines: of an experiment, or all that are old.

    The deletion is on record; the ledger's own copy goes with the next trimming, once all that was
    written before it in its partition may go.
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
    lines = f"{found.lines:,} line{'' if found.lines == 1 else 's'} ({size(found.size_bytes)})"
    click.echo(f"{lines} would be deleted." if dry_run else f"{lines} deleted.")

"""`rung log`: who asked for what, and when."""

import contextlib
import sys
from typing import Any, Final

import click
import msgspec

from rung.cli.connection_options import PATIENCE_FOLLOWING_S, Link, experiment_ids, linked
from rung.cli.output import local_time, print_json_line, printable
from rung.client import Act, AsyncClient

_PAGE: Final = 1_000
_FOLLOWED: Final = 20
"""Acts that `--follow` begins with."""
_UNNAMED: Final = "unknown user"
"""Shown where the record names no actor, as those of earlier releases."""


@click.command()
@click.option("--who", metavar="NAME", help="Requests of this user, or on behalf of it.")
@click.option(
    "--since", metavar="TIME", help="From this time on: 2026-11-23, or 30m, 12h, 7d ago."
)
@click.option("--until", metavar="TIME", help="Before this time.")
@click.option(
    "--experiment", metavar="ID", shell_complete=experiment_ids, help="About this experiment."
)
@click.option("--what", metavar="TYPE", help="Of this type, or the beginning of one: trial.kill.")
@click.option("--limit", type=click.IntRange(1), help="So many at most.")
@click.option("--follow", "-f", "following", is_flag=True, help="The last ones, and new ones.")
@linked
async def log(link: Link, *, following: bool, limit: int | None, **wanted: Any) -> None:
    """Show who asked for what, the newest first.

    It lists requests: what came of one is in the events that name its id as their cause (--json
    has the id). With --follow the oldest are first. With --json: one line of JSON for each.
    """
    if following and (wanted["until"] is not None or limit is not None):
        raise click.UsageError("--follow goes neither with --until nor with --limit")
    async with link.client(PATIENCE_FOLLOWING_S if following else 3.0) as client:
        if following:
            await _follow(client, wanted, as_json=link.json)
            return
        left, cursor = limit, None
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            page = await client.log(**wanted, limit=size, cursor=cursor)
            for act in page.items:
                _print(act, as_json=link.json)
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None:
                break


async def _follow(client: AsyncClient, wanted: dict[str, Any], *, as_json: bool) -> None:
    """Print the last acts, and then new ones."""
    page = await client.log(**wanted, limit=_FOLLOWED)
    for act in reversed(page.items):
        _print(act, as_json=as_json)
    of = {name: wanted[name] for name in ("who", "experiment", "what")}
    async with contextlib.aclosing(client.follow_log(after=page.last_event_id, **of)) as events:
        async for event in events:
            _print(msgspec.convert(event.data, Act), as_json=as_json)


def _print(act: Act, *, as_json: bool) -> None:
    if as_json:
        print_json_line(act)
        return
    actor = act.actor_name or act.actor or _UNNAMED
    other = act.on_behalf_of_name or act.on_behalf_of
    whom = f" (for {other})" if other else ""
    click.echo(f"{local_time(act.at)}  {printable(f'{actor}{whom} {act.did}')}")
    sys.stdout.flush()

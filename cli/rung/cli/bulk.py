"""Commands that change several experiments: named, or selected by a filter.

One experiment that is named is changed as if there were no others. Several are shown and asked
about first (`--yes` does not ask), and then changed each by itself: what is refused is reported
with its reason, keeps no other one back, and shows in the exit code.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click
import msgspec

from rung.cli.connection_options import Link, experiment_ids
from rung.cli.exit_code import FAILED, OK
from rung.cli.output import counted, print_json, print_table
from rung.client import AsyncClient, BatchItem, BatchWanted

_C = TypeVar("_C", bound=Callable[..., Any])

_AT_ONCE: Final = 100
"""Experiments in one request: what came of them is shown before the next."""
_SHOWN: Final = 10


class Chosen(NamedTuple):
    """The experiments that a command is about, as its user gave them."""

    names: tuple[str, ...]
    where: str | None
    yes: bool

    @property
    def single(self) -> str | None:
        """The only one, if it was named; None: there are several, or there may be."""
        return self.names[0] if len(self.names) == 1 and self.where is None else None


def several(command: _C) -> _C:
    """Have a command take experiments: by name, by `--where`, and `--yes`."""
    names = click.argument("names", metavar="[ID]...", nargs=-1, shell_complete=experiment_ids)
    where = click.option(
        "--where", metavar="FILTER", help="All that a filter selects (docs/FILTERS.md)."
    )
    yes = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
    return names(where(yes(command)))


async def change_all(  # noqa: PLR0913 - what a change of several consists of
    link: Link,
    client: AsyncClient,
    chosen: Chosen,
    wanted: BatchWanted,
    done: str,
    *,
    deleted: bool = False,
) -> tuple[int, list[BatchItem]]:
    """Change experiments, and print of each what came of it.

    Args:
        link: to the server.
        client: of the server.
        chosen: which ones.
        wanted: what is to happen to them, without naming them.
        done: what they are then, as in "Experiment k3v9x2ab (mnist) is …".
        deleted: whether they are selected among those whose deletion can be taken back.

    Returns:
        The exit code, and what came of each; nothing of those that the user did not confirm.
    """
    if not chosen.names and chosen.where is None:
        raise click.UsageError("name experiments, or select them by --where FILTER")
    named = dict.fromkeys(chosen.names, "")
    if chosen.where is not None:
        named |= await selected(client, chosen.where, deleted=deleted)
    if len(named) > 1 and not (chosen.yes or wanted.dry_run) and not _confirmed(named, done):
        click.echo("Nothing is changed.", err=True)
        return FAILED, []
    items: list[BatchItem] = []
    for part in _parts(list(named)):
        answer = await client.batch(msgspec.structs.replace(wanted, ids=part))
        items += answer.items
        if not link.json:
            _print(answer.items, None if wanted.dry_run else done)
    refused = sum(item.outcome != "done" for item in items)
    if link.json:
        print_json({"items": items})
    elif not wanted.dry_run:
        left = f"; {refused:,} refused" if refused else ""
        click.echo(f"{counted(len(items) - refused, 'experiment')} {done}{left}.")
    return FAILED if refused else OK, items


def _print(items: Sequence[BatchItem], done: str | None) -> None:
    """Print what came of experiments; where nothing was done, what was refused alone."""
    for item in items:
        if item.outcome != "done":
            click.echo(f"{item.experiment_id}: {item.reason}", err=True)
        elif done is not None:
            click.echo(f"Experiment {item.experiment_id} ({item.name}) is {done}.")


async def selected(client: AsyncClient, where: str, *, deleted: bool = False) -> dict[str, str]:
    """Return the experiments that a filter selects: id → name and state."""
    found: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = await client.experiments(filter=where, deleted=deleted, limit=1_000, cursor=cursor)
        found |= {it.id: f"{it.name} ({it.state})" for it in page.items}
        cursor = page.next_cursor
        if cursor is None:
            return found


def _parts(names: Sequence[str]) -> list[list[str]]:
    return [list(names[start : start + _AT_ONCE]) for start in range(0, len(names), _AT_ONCE)]


def _confirmed(named: dict[str, str], done: str) -> bool:
    """Ask on a terminal.

    Raises:
        click.UsageError: there is none.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{counted(len(named), 'experiment')} would be {done}, and there is no terminal to ask"
            " on: --yes does it without asking"
        )
    print_table(["experiment", "is"], list(named.items())[:_SHOWN])
    if len(named) > _SHOWN:
        click.echo(f"and {len(named) - _SHOWN:,} more", err=True)
    return click.confirm(f"Shall {counted(len(named), 'experiment')} be {done}?", err=True)

"""`rung search`: saved searches for experiments."""

import click

from rung.cli.connection_options import Link, linked
from rung.cli.output import print_json, print_json_line, print_table, printable


@click.group()
def search() -> None:
    """Save, list and remove searches, for `rung list --saved NAME`."""


@search.command()
@click.argument("name")
@click.argument("terms", nargs=-1, required=True, metavar="FILTER…")
@click.option("--workspace", "-w", help="Share it with the members of this workspace.")
@linked
async def save(name: str, terms: tuple[str, ...], workspace: str | None, link: Link) -> None:
    """Save a filter under a name, new or in place of the one with that name.

    As in: rung search save broken 'state:errored owner:me newer:7d'
    """
    async with link.client() as client:
        found = await client.searches.set(name, query=" ".join(terms), workspace=workspace)
    if link.json:
        print_json_line(found)
    else:
        click.echo(f"Search {printable(found.name)} is saved: `rung list --saved {found.name}`.")


@search.command(name="list")
@linked
async def list_(link: Link) -> None:
    """List one's saved searches, and those that workspaces share."""
    async with link.client() as client:
        found = await client.searches.list()
    if link.json:
        print_json(found)
    elif not found:
        click.echo("No saved searches. `rung search save NAME FILTER` saves one.")
    else:
        print_table(
            ["name", "filter", "shared in", "id"],
            [(it.name, it.query, it.workspace, it.id) for it in found],
        )


@search.command()
@click.argument("name")
@linked
async def remove(name: str, link: Link) -> None:
    """Remove a saved search, by its name or id."""
    async with link.client() as client:
        removed = await client.searches.delete(name)
    if link.json:
        print_json_line(removed)
    else:
        click.echo(f"Search {printable(name)} is removed.")

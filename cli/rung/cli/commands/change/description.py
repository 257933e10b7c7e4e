"""`rung edit`, `rung archive`, `rung unarchive`: what experiments are called and filed under."""

from typing import Any

import click
import msgspec

from rung.cli.bulk import Chosen, change_all, several
from rung.cli.connection_options import Link, linked
from rung.cli.exit_code import OK
from rung.cli.output import print_facts, print_json
from rung.client import BatchWanted, DescriptionWanted


@click.command()
@several
@click.option("--name", help="What it is called.")
@click.option("--description", help="What it is, in a sentence.")
@click.option("--notes", help="What to remember of it.")
@click.option("--label", "add_labels", multiple=True, help="A label besides those that it has.")
@click.option("--remove-label", "remove_labels", multiple=True, help="One that it has no longer.")
@linked
async def edit(
    link: Link, *, names: tuple[str, ...], where: str | None, yes: bool, **wanted: Any
) -> int:
    """Change what experiments are called: name, description, notes and labels.

    What is not given stays as it is; of one experiment, without any option, it shows what there
    is. The experiment file, as it was submitted, stays on record. Exit code 1: one of several was
    refused.
    """
    given: Any = {name: it for name, it in wanted.items() if it not in {None, ()}}
    chosen = Chosen(names, where, yes)
    async with link.client() as client:
        if chosen.single is None:
            if not given:
                raise click.UsageError("say what is to change, or name one experiment")
            change = msgspec.convert(given, DescriptionWanted)
            batch = BatchWanted(action="describe", description=change)
            return (await change_all(link, client, chosen, batch, "changed"))[0]
        if given:
            found = await client.describe(chosen.single, **given)
        else:
            found = await client.description(chosen.single)
    if link.json:
        print_json(found)
        return OK
    print_facts(
        [
            ("experiment", found.experiment_id),
            ("name", found.name),
            ("description", found.description or None),
            ("labels", found.labels or None),
            ("notes", found.notes or None),
            ("archived", "yes" if found.archived else None),
        ]
    )
    return OK


@click.command()
@several
@linked
async def archive(link: Link, **chosen: Any) -> int:
    """Leave experiments out of lists, unless one asks for them: `rung list archived:any`.

    Nothing else changes: all commands take them as before. Exit code 1: not all are archived.
    """
    return await _file(link, Chosen(**chosen), archived=True)


@click.command()
@several
@linked
async def unarchive(link: Link, **chosen: Any) -> int:
    """Have archived experiments in lists again.

    Exit code 1: not all are.
    """
    given = Chosen(**chosen)
    if given.where is not None:
        given = given._replace(where=f"{given.where} archived:true")
    return await _file(link, given, archived=False)


async def _file(link: Link, chosen: Chosen, *, archived: bool) -> int:
    """Archive experiments or not."""
    state = "archived" if archived else "in lists again"
    async with link.client() as client:
        if chosen.single is None:
            change = DescriptionWanted(archived=archived)
            batch = BatchWanted(action="describe", description=change)
            return (await change_all(link, client, chosen, batch, state))[0]
        found = await client.describe(chosen.single, archived=archived)
    if link.json:
        print_json({"items": [found]})
    else:
        click.echo(f"Experiment {found.experiment_id} ({found.name}) is {state}.")
    return OK

"""How these commands show what the directory has."""

from collections.abc import Sequence
from typing import Any

import click
from msgspec import Struct

from rung.cli.connection_options import Link
from rung.cli.output import local_time, print_json, print_table, printable


def show(link: Link, thing: Struct, *fields: str) -> None:
    """Print fields of a thing in lines; as JSON all of them."""
    if link.json:
        print_json(thing)
        return
    width = max(map(len, fields))
    for field in fields:
        value = _shown(thing, field)
        click.echo(printable(f"{_title(field):{width}}  {value}"))


def show_all(link: Link, things: Sequence[Struct], *fields: str) -> None:
    """Print a table of things; as JSON all of their fields."""
    if link.json:
        print_json(things)
        return
    rows = [[_shown(it, field) for field in fields] for it in things]
    print_table([_title(field) for field in fields], rows)


def say(link: Link, thing: Struct, text: str) -> None:
    """Print what was done in a sentence; as JSON the thing."""
    if link.json:
        print_json(thing)
    else:
        click.echo(printable(text))


def _title(field: str) -> str:
    return field.replace("_", " ").removesuffix(" at")


def _shown(thing: Struct, field: str) -> str:
    value = getattr(thing, field)
    return local_time(value) if value and field.endswith("_at") else text_of(value)


def text_of(value: Any) -> str:
    """Return a value for people."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value)) or "-"
        case _:
            return str(value)


def given(**fields: Any) -> dict[str, Any]:
    """Return the options that were given.

    Raises:
        UsageError: none was.
    """
    found = {name: value for name, value in fields.items() if value is not None}
    if not found:
        raise click.UsageError("give at least one option: --help lists them")
    return found

"""Every command that asks a server has a documented operation; the table is in docs/API.md."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from rung.cli.group import rung
from rung.gateway.routes import ROUTES

_PAGE = Path(__file__).parents[2] / "docs" / "API.md"
_ROW = re.compile(r"^\| `rung ([a-z -]+)` \| (.+) \|$", re.MULTILINE)


def _commands(group: click.Group, before: str = "") -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def test_every_command_has_an_operation_or_says_why_not() -> None:
    """The table names each command once, and operations that there are."""
    rows = _ROW.findall(_PAGE.read_text())
    named = {name for _, text in rows for name in re.findall(r"`([a-z_]+)`", text)}

    assert sorted(command for command, _ in rows) == sorted(_commands(rung))
    assert named <= {route.name for route in ROUTES}


def test_commands_with_operations_come_first() -> None:
    """A command without an operation is in the second table, with the reason."""
    operations, local = _PAGE.read_text().split("These work without a server")

    assert all("`" in text for _, text in _ROW.findall(operations))
    assert not any("`" in text for _, text in _ROW.findall(local))

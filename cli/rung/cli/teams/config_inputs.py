"""`rung secret`, `rung template`, `rung policy`, `rung config`: what experiment files meet."""

import asyncio
import sys
from pathlib import Path
from typing import get_args

import click

from rung.cli.connection_options import Link, linked
from rung.cli.output import print_json, print_json_line, printable
from rung.cli.teams.printing import show_all
from rung.config.policy import PolicyKind
from rung.events import RungError

workspace_option = click.option(
    "--workspace", "-w", default="default", show_default=True, help="By name or id."
)
file_argument = click.argument(
    "file", type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)
)


@click.group()
def secret() -> None:
    """Set and remove secrets of a workspace, which trials get by name."""


@secret.command(name="set")
@click.argument("name")
@workspace_option
@linked
async def set_secret(name: str, workspace: str, link: Link) -> None:
    """Set a secret; its value is read from standard input, or asked for.

    A last line break is left out. The value is encrypted and never shown again.
    """
    link.locate()  # before a secret is asked for
    value = await asyncio.to_thread(_value)
    async with link.client() as client:
        found = await client.secrets(workspace).set(name, value=value)
    if link.json:
        print_json_line(found)
    else:
        click.echo(f"Secret {printable(found.name)} is set.")


def _value() -> str:
    if sys.stdin.isatty():
        asked: str = click.prompt("Value", hide_input=True, err=True)
        return asked
    value = sys.stdin.read().removesuffix("\n")
    if not value:
        raise RungError("standard input has no value")
    return value


@secret.command(name="list")
@workspace_option
@linked
async def list_secrets(workspace: str, link: Link) -> None:
    """List the names of a workspace's secrets."""
    async with link.client() as client:
        found = await client.secrets(workspace).list()
    show_all(link, found, "name", "changed_at", "description")


@secret.command(name="delete")
@click.argument("name")
@workspace_option
@linked
async def delete_secret(name: str, workspace: str, link: Link) -> None:
    """Remove a secret; runs that start later and name it fail."""
    async with link.client() as client:
        await client.secrets(workspace).delete(name)
    click.echo(f"Secret {printable(name)} is removed.")


@click.group()
def template() -> None:
    """Set and remove templates of experiment files."""


@template.command(name="set")
@click.argument("name")
@file_argument
@workspace_option
@linked
async def set_template(name: str, file: Path, workspace: str, link: Link) -> None:
    """Set a template: a part of an experiment file, which files are merged with."""
    link.locate()  # before it is waited for standard input
    document = await asyncio.to_thread(_text, file)
    async with link.client() as client:
        found = await client.templates(workspace).set(name, document=document)
    click.echo(f"Template {printable(found.name)} is set.")


@template.command(name="list")
@workspace_option
@linked
async def list_templates(workspace: str, link: Link) -> None:
    """List a workspace's templates."""
    async with link.client() as client:
        found = await client.templates(workspace).list()
    show_all(link, found, "name", "changed_at")


@template.command(name="show")
@click.argument("name")
@workspace_option
@linked
async def show_template(name: str, workspace: str, link: Link) -> None:
    """Print a template."""
    async with link.client() as client:
        found = await client.templates(workspace).list()
    for item in found:
        if name in {item.name, item.id}:
            _print_document(item.document)
            return
    raise RungError(f"there is no template {name}; `rung template list` lists them")


@template.command(name="delete")
@click.argument("name")
@workspace_option
@linked
async def delete_template(name: str, workspace: str, link: Link) -> None:
    """Remove a template; experiments that were merged with it stay as they are."""
    async with link.client() as client:
        await client.templates(workspace).delete(name)
    click.echo(f"Template {printable(name)} is removed.")


@click.group()
def policy() -> None:
    """Set and remove defaults, constraints and invariants of experiment files."""


@policy.command(name="set")
@click.argument("name")
@file_argument
@click.option("--kind", type=click.Choice(get_args(PolicyKind)), required=True)
@click.option("--workspace", "-w", help="Where it holds; the installation if no place is given.")
@click.option("--project", help="Where it holds, as WORKSPACE/PROJECT.")
@click.option("--pool", help="Where it holds.")
@linked
async def set_policy(  # noqa: PLR0913 - what can be chosen
    name: str,
    file: Path,
    kind: str,
    link: Link,
    *,
    workspace: str | None,
    project: str | None,
    pool: str | None,
) -> None:
    """Set a policy; what is submitted from now on is merged with it, or checked by it."""
    link.locate()  # before it is waited for standard input
    document = await asyncio.to_thread(_text, file)
    place = {"workspace": workspace, "project": project, "pool": pool}
    async with link.client() as client:
        found = await client.policies.set(name, kind=kind, document=document, **place)
    click.echo(f"Policy {printable(found.name)} of {printable(found.scope)} is set.")


@policy.command(name="show")
@click.argument("name", required=False)
@linked
async def show_policies(name: str | None, link: Link) -> None:
    """List the policies, or print one."""
    async with link.client() as client:
        found = await client.policies.list()
    chosen = [item for item in found if name in {None, item.name, item.id}]
    if name is not None and not chosen:
        raise RungError(f"there is no policy {name}; `rung policy show` lists them")
    show_all(link, chosen, "name", "kind", "scope", "by", "changed_at")
    if name is not None and not link.json:
        for item in chosen:
            _print_document(item.document)


@policy.command(name="delete")
@click.argument("name")
@linked
async def delete_policy(name: str, link: Link) -> None:
    """Remove a policy, by its name or id."""
    async with link.client() as client:
        await client.policies.delete(name)
    click.echo(f"Policy {printable(name)} is removed.")


@click.group()
def config() -> None:
    """Show what an experiment file becomes."""


@config.command(name="show")
@file_argument
@workspace_option
@click.option("--project", default="default", show_default=True, help="In the workspace.")
@click.option("--template", help="That the file is merged with.")
@linked
async def show_config(
    file: Path, workspace: str, project: str, template: str | None, link: Link
) -> None:
    """Show each value of FILE in a workspace, and where it comes from; nothing is submitted."""
    link.locate()  # before it is waited for standard input
    source = await asyncio.to_thread(_text, file)
    async with link.client() as client:
        found = await client.resolve(
            source, workspace=workspace, project=project, template=template
        )
    if link.json:
        print_json(found)
        return
    for warning in found.warnings:
        click.echo(f"Warning: {printable(warning)}", err=True)
    width = max((len(value.path) for value in found.values), default=0)
    for value in found.values:
        click.echo(printable(f"{value.path:<{width}}  {value.value!r}  # {value.origin}"))


def _print_document(document: str) -> None:
    """Print a document as it was set, so that it can be set again."""
    click.echo(document, nl=not document.endswith("\n"))


def _text(file: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RungError(f"{file} cannot be read as UTF-8 text") from error

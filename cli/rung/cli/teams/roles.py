"""`rung role`: what each role may, and who has it."""

import click

from rung.cli.connection_options import Link, linked
from rung.cli.teams.printing import say, show, show_all
from rung.client import NotFound

_WHO = "--user or --group, and not both"


@click.group()
def role() -> None:
    """Show what roles may, give them and take them."""


@role.command(name="list")
@linked
async def list_roles(link: Link) -> None:
    """List the roles; `rung role show ROLE` prints the permissions of one."""
    async with link.client() as client:
        show_all(link, await client.roles(), "name", "description", "places")


@role.command(name="show")
@click.argument("name", metavar="ROLE")
@linked
async def show_role(name: str, link: Link) -> None:
    """Show what a role may, and who has it."""
    async with link.client() as client:
        found = {it.name: it for it in await client.roles()}
        if name not in found:
            raise NotFound(f"there is no role {name!r}; there are {', '.join(found)}")
        having = await client.assignments.list(role=name)
    show(link, found[name], "name", "description", "places", "permissions")
    if not link.json and having:
        show_all(link, having, "id", "user", "group", "workspace")


@role.command(name="assignments")
@click.option("--user", help="Only of this user.")
@click.option("--group", help="Only of this group.")
@click.option("--workspace", help="Only in this workspace.")
@linked
async def list_assignments(
    user: str | None, group: str | None, workspace: str | None, link: Link
) -> None:
    """List who has which role, where you may see it."""
    async with link.client() as client:
        found = await client.assignments.list(user=user, group=group, workspace=workspace)
    show_all(link, found, "id", "role", "user", "group", "workspace")


@role.command(name="assign")
@click.argument("name", metavar="ROLE")
@click.option("--user", help="Who gets it.")
@click.option("--group", help="Whose members get it.")
@click.option("--workspace", help="Where. [in the cluster]")
@linked
async def assign_role(
    name: str, user: str | None, group: str | None, workspace: str | None, link: Link
) -> None:
    """Give a role to a user or to a group; never more than you have yourself."""
    if (user is None) == (group is None):
        raise click.UsageError(f"give {_WHO}")
    async with link.client() as client:
        made = await client.assignments.create(
            role=name, user=user, group=group, workspace=workspace
        )
    where = "in the cluster" if made.workspace is None else f"in the workspace {made.workspace}"
    say(link, made, f"{made.user or made.group} has the role {made.role} {where}.")


@role.command(name="remove")
@click.argument("name", metavar="ROLE")
@click.option("--user", help="Who loses it.")
@click.option("--group", help="Whose members lose it.")
@click.option("--workspace", help="Where. [in the cluster]")
@linked
async def remove_role(
    name: str, user: str | None, group: str | None, workspace: str | None, link: Link
) -> None:
    """Take a role from a user or a group."""
    if (user is None) == (group is None):
        raise click.UsageError(f"give {_WHO}")
    async with link.client() as client:
        found = await client.assignments.list(
            role=name, user=user, group=group, workspace=workspace
        )
        exact = [it for it in found if (it.workspace is None) == (workspace is None)]
        if not exact:
            raise NotFound(f"{user or group} does not have the role {name} there")
        removed = await client.assignments.delete(exact[0].id)
    say(link, removed, f"{user or group} no longer has the role {name}.")

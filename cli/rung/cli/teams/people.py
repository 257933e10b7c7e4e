"""`rung user` and `rung group`: who there is."""

from typing import Any

import click

from rung import api
from rung.cli.connection_options import Link, linked
from rung.cli.identity.login import read_secret
from rung.cli.output import counted
from rung.cli.teams.printing import given, say, show, show_all
from rung.client import AsyncClient

_FIELDS = ("id", "name", "display_name", "email", "active", "created_at")


@click.group()
def user() -> None:
    """List, create, change and deactivate users and service accounts."""


@user.command(name="list")
@click.option("--service", is_flag=True, help="Service accounts in place of people.")
@linked
async def list_users(link: Link, *, service: bool) -> None:
    """List users, or service accounts."""
    async with link.client() as client:
        accounts = client.service_accounts if service else client.users
        show_all(link, await accounts.list(), *_FIELDS)


@user.command(name="show")
@click.argument("name", metavar="USER")
@click.option("--service", is_flag=True, help="A service account.")
@linked
async def show_user(name: str, link: Link, *, service: bool) -> None:
    """Show a user."""
    async with link.client() as client:
        accounts = client.service_accounts if service else client.users
        show(link, await accounts.get(name), *_FIELDS, "groups", "version")


@user.command(name="create")
@click.argument("name", metavar="NAME")
@click.option("--display-name", default="", help="As colleagues call this user.")
@click.option("--email", default="", help="Address of a person.")
@click.option("--service", is_flag=True, help="Create a service account, for programs.")
@click.option("--workspace", help="Of a service account: whose administrators manage it.")
@linked
async def create_user(  # noqa: PLR0913 - the options of the command
    name: str, display_name: str, email: str, workspace: str | None, link: Link, *, service: bool
) -> None:
    """Create a user, or a service account."""
    if not service and workspace is not None:
        raise click.UsageError("--workspace goes with --service: people are of no workspace")
    if service and email:
        raise click.UsageError("--email goes with people: a service account has none")
    async with link.client() as client:
        if service:
            made = await client.service_accounts.create(
                name=name, display_name=display_name, workspace=workspace
            )
        else:
            made = await client.users.create(name=name, display_name=display_name, email=email)
    word = "Service account" if service else "User"
    say(link, made, f"{word} {made.name} is created, with the id {made.id}.")


@user.command(name="edit")
@click.argument("user_name", metavar="USER")
@click.option("--name", help="Another name.")
@click.option("--display-name", help="Another display name.")
@click.option("--email", help="Another address.")
@click.option("--issuer", help="The identity provider that manages the user now; '': none.")
@click.option("--service", is_flag=True, help="A service account.")
@linked
async def edit_user(user_name: str, link: Link, *, service: bool, **options: Any) -> None:
    """Change a user."""
    fields = given(**options)
    async with link.client() as client:
        accounts = client.service_accounts if service else client.users
        changed = await accounts.change(user_name, **fields)
    say(link, changed, f"User {changed.name} is changed.")


@user.command(name="deactivate")
@click.argument("name", metavar="USER")
@click.option("--service", is_flag=True, help="A service account.")
@linked
async def deactivate_user(name: str, link: Link, *, service: bool) -> None:
    """Lock a user out at once: all tokens and sessions are revoked."""
    async with link.client() as client:
        accounts = client.service_accounts if service else client.users
        changed = await accounts.deactivate(name)
    say(link, changed, f"User {changed.name} is deactivated; tokens and sessions are revoked.")


@user.command(name="activate")
@click.argument("name", metavar="USER")
@click.option("--service", is_flag=True, help="A service account.")
@linked
async def activate_user(name: str, link: Link, *, service: bool) -> None:
    """Let a deactivated user in again, with the roles of before."""
    async with link.client() as client:
        accounts = client.service_accounts if service else client.users
        changed = await accounts.activate(name)
    say(link, changed, f"User {changed.name} is active again.")


@user.command(name="password")
@click.argument("name", metavar="USER")
@click.option("--own", is_flag=True, help="Your own, for which the present one is asked.")
@linked
async def set_password(name: str, link: Link, *, own: bool) -> None:
    """Set the password of a local account; all its sessions end.

    Passwords are asked for, or read from standard input, one a line: the present one of your own
    first.
    """
    link.locate()  # nobody is asked for a password where no server is
    current = await read_secret("Present password") if own else None
    wanted = api.PasswordWanted(password=await read_secret("New password"), current=current)
    async with link.client() as client:
        changed = await client.identity.set_password(name, wanted)
    say(link, changed, f"User {changed.user} has another password; sessions have ended.")


@click.group()
def group() -> None:
    """List, create, change and delete groups of users."""


@group.command(name="list")
@linked
async def list_groups(link: Link) -> None:
    """List groups."""
    async with link.client() as client:
        show_all(link, await client.groups.list(), "id", "name", "description", "issuer")


@group.command(name="show")
@click.argument("name", metavar="GROUP")
@linked
async def show_group(name: str, link: Link) -> None:
    """Show a group and its members."""
    async with link.client() as client:
        found = await client.groups.get(name)
    show(link, found, "id", "name", "description", "issuer", "created_at", "version")
    if not link.json:
        click.echo(f"{counted(len(found.members), 'member')}:")
        show_all(link, found.members, "id", "name", "issuer")


@group.command(name="create")
@click.argument("name", metavar="NAME")
@click.option("--description", default="", help="For people.")
@click.option("--member", "members", multiple=True, help="A user; may be given several times.")
@click.option(
    "--provider",
    is_flag=True,
    help="The identity provider's group of that name: its members come as they sign in.",
)
@linked
async def create_group(
    name: str, description: str, members: tuple[str, ...], link: Link, *, provider: bool
) -> None:
    """Create a group.

    Groups of the identity provider are made by themselves when a member first signs in; with
    --provider one is there before, so that it can be given roles.
    """
    if provider and members:
        raise click.UsageError("give --member or --provider: the provider decides on its members")
    async with link.client() as client:
        more: dict[str, Any] = {"from_provider": True} if provider else {}
        made = await client.groups.create(name=name, description=description, **more)
        if members:
            made = await client.groups.change_members(made.id, add=list(members))
    number = counted(len(made.members), "member")
    say(link, made, f"Group {made.name} is created, with {number} and the id {made.id}.")


@group.command(name="edit")
@click.argument("group_name", metavar="GROUP")
@click.option("--name", help="Another name.")
@click.option("--description", help="Another description.")
@click.option("--issuer", help="The identity provider that manages it from now on; '': none.")
@click.option("--add", multiple=True, metavar="USER", help="Who joins; may be given repeatedly.")
@click.option(
    "--remove", multiple=True, metavar="USER", help="Who leaves; may be given repeatedly."
)
@linked
async def edit_group(
    group_name: str, add: tuple[str, ...], remove: tuple[str, ...], link: Link, **options: Any
) -> None:
    """Change a group, or who is in it."""
    fields = given(**options, add=add or None, remove=remove or None)
    async with link.client() as client:
        changed = await _edit(client, group_name, fields)
    number = counted(len(changed.members), "member")
    say(link, changed, f"Group {changed.name} is changed; it has {number}.")


async def _edit(client: AsyncClient, name: str, fields: dict[str, Any]) -> api.Group:
    moved = {way: list(some) for way in ("add", "remove") if (some := fields.pop(way, None))}
    found = await client.groups.get(name)
    if fields:
        found = await client.groups.change(found.id, **fields)
    if moved:
        found = await client.groups.change_members(found.id, **moved)
    return found


@group.command(name="delete")
@click.argument("name", metavar="GROUP")
@linked
async def delete_group(name: str, link: Link) -> None:
    """Delete a group: its members lose the roles that it was given."""
    async with link.client() as client:
        removed = await client.groups.delete(name)
    say(link, removed, f"Group {name} is deleted.")

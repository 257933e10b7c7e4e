"""`rung workspace` and `rung project`: where experiments belong."""

from typing import Any

import click

from rung.cli.connection_options import Link, linked
from rung.cli.teams.printing import given, say, show, show_all
from rung.cli.teams.usage import print_usage

_WORKSPACE = ("id", "name", "owner", "default_pool", "archived")
_PROJECT = ("id", "workspace", "name", "archived")


@click.group()
def workspace() -> None:
    """List, create, change and archive workspaces."""


@workspace.command(name="list")
@linked
async def list_workspaces(link: Link) -> None:
    """List the workspaces that you may see."""
    async with link.client() as client:
        show_all(link, await client.workspaces.list(), *_WORKSPACE)


@workspace.command(name="show")
@click.argument("name", metavar="WORKSPACE")
@linked
async def show_workspace(name: str, link: Link) -> None:
    """Show a workspace, and what you may there."""
    async with link.client() as client:
        found = await client.workspaces.get(name)
    more = ("storage", "description", "created_at", "version", "permissions")
    show(link, found, *_WORKSPACE, *more)


@workspace.command(name="create")
@click.argument("name", metavar="NAME")
@click.option("--description", default="", help="For people.")
@click.option("--owner", metavar="USER", help="Its administrator. [you]")
@click.option("--default-pool", default="", help="Where experiments run that name no pool.")
@click.option(
    "--storage",
    default="",
    metavar="AREA",
    help="Part of the object store for its checkpoints, such as vision or teams/vision.",
)
@linked
async def create_workspace(name: str, link: Link, **options: Any) -> None:
    """Create a workspace."""
    async with link.client() as client:
        made = await client.workspaces.create(name=name, **options)
    text = f"Workspace {made.name} is created; {made.owner} owns it. Its id is {made.id}."
    say(link, made, text)


@workspace.command(name="edit")
@click.argument("workspace_name", metavar="WORKSPACE")
@click.option("--name", help="Another name.")
@click.option("--description", help="Another description.")
@click.option("--owner", metavar="USER", help="Another owner.")
@click.option("--default-pool", help="Another pool for experiments that name none.")
@click.option(
    "--storage",
    metavar="AREA",
    help="Another part of the object store for the checkpoints of later experiments; '': none.",
)
@linked
async def edit_workspace(workspace_name: str, link: Link, **options: Any) -> None:
    """Change a workspace."""
    fields = given(**options)
    async with link.client() as client:
        changed = await client.workspaces.change(workspace_name, **fields)
    say(link, changed, f"Workspace {changed.name} is changed.")


@workspace.command(name="archive")
@click.argument("name", metavar="WORKSPACE")
@linked
async def archive_workspace(name: str, link: Link) -> None:
    """Close a workspace to anything new; nothing in it is deleted."""
    async with link.client() as client:
        changed = await client.workspaces.archive(name)
    say(link, changed, f"Workspace {changed.name} is archived.")


@workspace.command(name="unarchive")
@click.argument("name", metavar="WORKSPACE")
@linked
async def unarchive_workspace(name: str, link: Link) -> None:
    """Open an archived workspace again."""
    async with link.client() as client:
        changed = await client.workspaces.unarchive(name)
    say(link, changed, f"Workspace {changed.name} is open again.")


@workspace.command(name="usage")
@click.argument("name", metavar="[WORKSPACE]", required=False)
@click.option("--since", metavar="TIME", help="From this hour on: 2026-11-23, or 12h, 30d ago.")
@click.option(
    "--by",
    type=click.Choice(["workspace", "project", "owner"]),
    help="Group by this. [default: project for one workspace, workspace for all]",
)
@click.option("--csv", "as_csv", is_flag=True, help="As comma-separated values, for tables.")
@linked
async def show_usage(
    name: str | None, since: str | None, by: str | None, link: Link, *, as_csv: bool
) -> None:
    """Show slot-hours, slots, experiments, trials and checkpoints: of one, or of all that you see.

    Experiments and trials are those that were submitted in the period; an experiment counts where
    it is now.
    """
    if name is not None and by == "workspace":
        raise click.UsageError("--by workspace is for all of them: give no WORKSPACE")
    if as_csv and link.json:
        raise click.UsageError("give --csv or --json, not both")
    async with link.client() as client:
        found = await client.workspaces.usage(name, since=since, by=by)
    print_usage(link, found, as_csv=as_csv)


@click.group()
def project() -> None:
    """List, create, change, move and archive projects."""


@project.command(name="list")
@click.option("--workspace", help="Only those of this workspace.")
@linked
async def list_projects(workspace: str | None, link: Link) -> None:
    """List the projects that you may see."""
    async with link.client() as client:
        show_all(link, await client.projects.list(workspace=workspace), *_PROJECT)


@project.command(name="show")
@click.argument("name", metavar="WORKSPACE/PROJECT")
@linked
async def show_project(name: str, link: Link) -> None:
    """Show a project."""
    async with link.client() as client:
        found = await client.projects.get(name)
    show(link, found, *_PROJECT, "description", "created_at", "version")


@project.command(name="create")
@click.argument("name", metavar="WORKSPACE/PROJECT")
@click.option("--description", default="", help="For people.")
@linked
async def create_project(name: str, description: str, link: Link) -> None:
    """Create a project in a workspace."""
    workspace, slash, own = name.partition("/")
    if not (slash and workspace and own):
        raise click.UsageError(f"{name}: give WORKSPACE/PROJECT, such as default/digits")
    async with link.client() as client:
        made = await client.projects.create(workspace=workspace, name=own, description=description)
    say(link, made, f"Project {made.workspace}/{made.name} is created, with the id {made.id}.")


@project.command(name="edit")
@click.argument("project_name", metavar="WORKSPACE/PROJECT")
@click.option("--name", help="Another name.")
@click.option("--description", help="Another description.")
@linked
async def edit_project(
    project_name: str, name: str | None, description: str | None, link: Link
) -> None:
    """Change a project."""
    fields = given(name=name, description=description)
    async with link.client() as client:
        changed = await client.projects.change(project_name, **fields)
    say(link, changed, f"Project {changed.workspace}/{changed.name} is changed.")


@project.command(name="move")
@click.argument("name", metavar="WORKSPACE/PROJECT")
@click.argument("workspace", metavar="WORKSPACE")
@linked
async def move_project(name: str, workspace: str, link: Link) -> None:
    """Move a project to another workspace; its webhooks there are switched off."""
    async with link.client() as client:
        moved = await client.projects.move(name, workspace)
    say(link, moved, f"Project {moved.name} is in the workspace {moved.workspace}.")


@project.command(name="archive")
@click.argument("name", metavar="WORKSPACE/PROJECT")
@linked
async def archive_project(name: str, link: Link) -> None:
    """Close a project to anything new; nothing in it is deleted."""
    async with link.client() as client:
        changed = await client.projects.archive(name)
    say(link, changed, f"Project {changed.workspace}/{changed.name} is archived.")


@project.command(name="unarchive")
@click.argument("name", metavar="WORKSPACE/PROJECT")
@linked
async def unarchive_project(name: str, link: Link) -> None:
    """Open an archived project again."""
    async with link.client() as client:
        changed = await client.projects.unarchive(name)
    say(link, changed, f"Project {changed.workspace}/{changed.name} is open again.")

"""`rung model`: registered models and their versions."""

import json
from pathlib import Path
from typing import Any, Final

import click

from rung.cli.commands.checkpoints import choose_checkpoint
from rung.cli.connection_options import Link, linked
from rung.cli.output import counted, print_json, size
from rung.cli.teams.printing import given, say, show, show_all

_MODEL: Final = ("workspace", "name", "newest", "version_count", "labels", "archived")
_VERSION: Final = ("number", "name", "checkpoint_id", "labels", "created_at")

name_argument = click.argument("name", metavar="MODEL")
_version_option = click.option("--version", "number", type=click.IntRange(1), metavar="NUMBER")
_label_option = click.option("--label", "labels", multiple=True, help="May be repeated.")


def _metadata(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
    """Return the JSON object that an option gives."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.BadParameter("give a JSON object, such as '{\"classes\": 10}'")
    return found


@click.group()
def model() -> None:
    """Register checkpoints as versions of models, which keep them."""


@model.command(name="list")
@click.option("--workspace", "-w", help="Only those of this workspace.")
@click.option("--name", help="Only those whose name has this in it.")
@click.option("--label", help="Only those with this label.")
@click.option("--archived/--open", default=None, help="Only those that are archived, or not.")
@linked
async def list_models(link: Link, **query: Any) -> None:
    """List the models that you may see."""
    async with link.client() as client:
        show_all(link, await client.models.list(**query), *_MODEL)


@model.command(name="show")
@name_argument
@_version_option
@linked
async def show_model(name: str, number: int | None, link: Link) -> None:
    """Show a model, or a version of it."""
    async with link.client() as client:
        if number is None:
            more = ("description", "metadata", "id", "by", "created_at", "version")
            show(link, await client.models.get(name), *_MODEL, *more)
        else:
            found = await client.models.version(name, number)
            show(link, found, *_VERSION, "notes", "trial_id", "experiment_id", "by", "version")


@model.command(name="versions")
@name_argument
@click.option("--label", help="Only those with this label.")
@linked
async def list_versions(name: str, label: str | None, link: Link) -> None:
    """List the versions of a model, the newest first."""
    async with link.client() as client:
        show_all(link, await client.models.versions(name, label=label), *_VERSION)


@model.command(name="create")
@click.argument("name", metavar="NAME")
@click.option("--workspace", "-w", default="default", show_default=True, help="By name or id.")
@click.option("--description", default="", help="For people.")
@_label_option
@click.option("--metadata", callback=_metadata, metavar="JSON", help="A JSON object.")
@linked
async def create_model(
    name: str, labels: tuple[str, ...], metadata: Any, link: Link, **fields: Any
) -> None:
    """Create a model, without a version."""
    async with link.client() as client:
        made = await client.models.create(
            name=name, labels=list(labels), metadata=metadata or {}, **fields
        )
    say(link, made, f"Model {made.name} of workspace {made.workspace} is created.")


@model.command(name="register")
@name_argument
@click.argument("what", metavar="CHECKPOINT|ID|TRIAL")
@click.option("--name", "version_name", default="", help="Of the version.")
@click.option("--notes", default="", help="Markdown.")
@_label_option
@linked
async def register_version(
    name: str, what: str, link: Link, *, version_name: str, labels: tuple[str, ...], **fields: str
) -> None:
    """Register a checkpoint as the next version of a model; it is kept from then on.

    Of an experiment: its best trial's checkpoint. Of a trial: its best one. Where that of the best
    value is not left, another one of the trial, and which one is said.
    """
    async with link.client() as client:
        checkpoint_id, note = await choose_checkpoint(client, what)
        made = await client.models.register(
            name,
            checkpoint_id,
            name=version_name,
            labels=list(labels),
            **fields,
        )
    text = f"Checkpoint {made.checkpoint_id} is version {made.number} of model {name}."
    if note is not None:
        text += f"\nIt is {note}."
    say(link, made, text)


@model.command(name="edit")
@name_argument
@_version_option
@click.option("--name", "new_name", help="Another name.")
@click.option("--description", help="Another description of the model.")
@click.option("--metadata", callback=_metadata, metavar="JSON", help="In place of that before.")
@click.option("--notes", help="Other notes of the version.")
@_label_option
@click.option("--no-labels", is_flag=True, help="Take all labels away.")
@linked
async def edit_model(  # noqa: PLR0913 - its options
    name: str,
    number: int | None,
    link: Link,
    *,
    new_name: str | None,
    labels: tuple[str, ...],
    no_labels: bool,
    **options: Any,
) -> None:
    """Change a model, or a version of it; labels replace those of before."""
    chosen = list(labels) if labels or no_labels else None
    fields = given(name=new_name, labels=chosen, **options)
    other = {"notes"} if number is None else {"description", "metadata"}
    for option in sorted(other & fields.keys()):
        of = "a version: give --version" if number is None else "the model: leave --version out"
        raise click.UsageError(f"--{option} is of {of}")
    async with link.client() as client:
        if number is None:
            changed = await client.models.change(name, **fields)
            say(link, changed, f"Model {changed.name} is changed.")
        else:
            version = await client.models.change_version(name, number, **fields)
            say(link, version, f"Version {number} of model {name} is changed.")


@model.command(name="archive")
@name_argument
@linked
async def archive_model(name: str, link: Link) -> None:
    """Close a model to changes and new versions; its versions stay."""
    async with link.client() as client:
        changed = await client.models.archive(name)
    say(link, changed, f"Model {changed.name} is archived.")


@model.command(name="unarchive")
@name_argument
@linked
async def unarchive_model(name: str, link: Link) -> None:
    """Open an archived model again."""
    async with link.client() as client:
        changed = await client.models.unarchive(name)
    say(link, changed, f"Model {changed.name} is open again.")


@model.command(name="move")
@name_argument
@click.argument("workspace", metavar="WORKSPACE")
@linked
async def move_model(name: str, workspace: str, link: Link) -> None:
    """Move a model to another workspace, with its versions."""
    async with link.client() as client:
        changed = await client.models.move(name, workspace)
    say(link, changed, f"Model {changed.name} is in workspace {changed.workspace} now.")


@model.command(name="delete")
@name_argument
@_version_option
@linked
async def delete_model(name: str, number: int | None, link: Link) -> None:
    """Delete a model with its versions, or one version; checkpoints stay, and may be deleted."""
    async with link.client() as client:
        if number is None:
            gone = await client.models.delete(name)
            say(link, gone, f"Model {name} is deleted.")
        else:
            gone = await client.models.delete_version(name, number)
            say(link, gone, f"Version {number} of model {name} is deleted.")


@model.command(name="download")
@name_argument
@click.argument("number", metavar="[NUMBER]", required=False, type=click.IntRange(1))
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder for the files. [MODEL-NUMBER]",
)
@linked
async def download_version(name: str, number: int | None, output: Path | None, link: Link) -> None:
    """Fetch the files of a version, the newest by default, each checked against its digest."""
    async with link.client() as client:
        version = await client.models.version(name, number)
        default = f"{name.replace('/', '_')}-{version.number}"
        folder = (output or Path(default)).absolute()
        checkpoint = await client.models.download(name, version.number, folder)
    if link.json:
        print_json({"folder": str(folder), "version": version, "checkpoint": checkpoint})
    else:
        files = f"{counted(checkpoint.file_count, 'file')} ({size(checkpoint.size_bytes)})"
        click.echo(f"{files} of version {version.number} of model {name} in {folder}")

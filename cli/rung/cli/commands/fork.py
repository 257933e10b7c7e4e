"""`rung fork`: submits the file of an experiment once more, with changes."""

import asyncio
import difflib
import secrets
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from rung.cli.commands.submit import (
    conclude,
    follow_links_option,
    pack_folder,
    project_option,
    workspace_option,
)
from rung.cli.connection_options import (
    PATIENCE_FOLLOWING_S,
    PATIENCE_S,
    Link,
    experiment_argument,
    linked,
)
from rung.cli.output import printable
from rung.client import AsyncClient, Experiment, Invalid, Submitted
from rung.config import InvalidExperimentFile
from rung.config.change import InvalidChange, changed
from rung.config.yaml import document
from rung.events import RungError

_EXTENSION: Final = ".yaml"


@click.command()
@experiment_argument
@click.option(
    "--set",
    "changes",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Change a field, such as searcher.max_trials=40, without an editor; VALUE is YAML.",
)
@click.option(
    "--code",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Code in place of that of the experiment.",
)
@follow_links_option
@workspace_option
@project_option
@click.option("--edit", is_flag=True, help="Open the editor also with --set or --code.")
@click.option("--follow", "-f", "following", is_flag=True, help="Watch it until it ended.")
@linked
async def fork(  # noqa: PLR0913 - what can be chosen
    experiment_id: str,
    changes: tuple[str, ...],
    folder: Path | None,
    link: Link,
    *,
    workspace: str | None,
    project: str | None,
    follow_links: bool,
    edit: bool,
    following: bool,
) -> int:
    """Submit an experiment once more, with changes: of its file, of its code.

    Without --set and --code, its file is opened in the editor (VISUAL, EDITOR); saved unchanged,
    nothing is submitted. The new experiment has the same code unless --code names another folder,
    and another seed unless the file gives one; it is shown with the one that it was made from. It
    is in the same workspace and project unless --workspace, --project or its changed file say
    otherwise.

    With --set the file loses its comments. Secrets in it are hidden: write
    them again.
    """
    code = await asyncio.to_thread(pack_folder, folder, follow_links=follow_links)
    async with link.client(PATIENCE_FOLLOWING_S if following else PATIENCE_S) as client:
        experiment = await client.experiment(experiment_id, trials="none")
        text = experiment.source
        if changes:
            wanted = _changes(changes)
            try:
                text = changed(text, wanted)
            except InvalidChange as error:
                raise click.UsageError(f"--set {error}") from error
            _warn_of_new(wanted, experiment.config)
        if code is None and experiment.code_digest is not None:
            code = await client.code(experiment.id)
        there = Where(workspace, project)
        if edit or not (changes or folder or workspace or project):
            is_changed = folder is not None
            submitted = await _edit(client, experiment, text, code, there, changed=is_changed)
        else:
            submitted = await _submit(client, experiment, text, code, there)
        return await conclude(link, client, submitted, following=following)


class Where(NamedTuple):
    """Where the new experiment goes; None: where the other one is."""

    workspace: str | None
    project: str | None


async def _submit(
    client: AsyncClient, experiment: Experiment, text: str, code: bytes | None, there: Where
) -> Submitted:
    return await client.submit(
        text.encode(),
        code,
        parent=experiment.id,
        workspace=there.workspace,
        project=there.project,
        key=secrets.token_hex(16),
    )


async def _edit(  # noqa: PLR0913 - what is submitted
    client: AsyncClient,
    experiment: Experiment,
    text: str,
    code: bytes | None,
    there: Where,
    *,
    changed: bool,
) -> Submitted:
    """Submit the text as it comes from the editor; what is refused can be edited again.

    Raises:
        RungError: nothing was changed, or the editor failed, or saved what is no text.
        Invalid: it is refused, and was not edited again; the text is kept in a file.
    """
    while True:
        try:
            edited = await asyncio.to_thread(click.edit, text, extension=_EXTENSION)
        except UnicodeDecodeError as error:
            raise RungError("what the editor saved is not UTF-8; nothing is submitted") from error
        if edited is None or (edited == experiment.source and not changed):
            raise RungError("nothing was changed, so nothing is submitted")
        text = edited
        try:
            return await _submit(client, experiment, text, code, there)
        except Invalid as error:
            click.echo(f"Refused: {error}", err=True)
            for item in error.errors or []:
                line = f" (line {item.line})" if item.line else ""
                click.echo(f"  {item.path or 'file'}{line}: {item.message}", err=True)
            again = click.get_text_stream("stdin").isatty() and click.confirm("Edit it again?")
            if not again:
                click.echo(f"Your text is kept in {_keep(text)}", err=True)
                raise


def _keep(text: str) -> Path:
    with tempfile.NamedTemporaryFile(
        "w", prefix="rung-fork-", suffix=_EXTENSION, delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    return Path(file.name)


def _changes(given: tuple[str, ...]) -> dict[str, Any]:
    """Return what --set asks for: dotted path → value."""
    found: dict[str, Any] = {}
    for change in given:
        path, equals, value = change.partition("=")
        if not equals or not all(path.split(".")):
            raise click.UsageError(
                f"--set {change}: give FIELD=VALUE, such as searcher.max_trials=40"
            )
        found[path] = _value(path, value)
    return found


def _warn_of_new(wanted: Iterable[str], config: dict[str, Any]) -> None:
    """Say which hyperparameters the experiment does not have: they may be misspelt."""
    for path in wanted:
        section, *names = path.split(".")
        place = config.get(section) if section == "hyperparameters" else None
        for name in names:
            if not isinstance(place, dict) or (name not in place and "type" in place):
                break
            if name not in place:
                near = difflib.get_close_matches(name, place, 1)
                hint = f"; did you mean `{near[0]}`?" if near else ""
                click.echo(f"Warning: {printable(path)} is a new hyperparameter{hint}", err=True)
                break
            place = place[name]


def _value(path: str, text: str) -> Any:
    """Return a value as an experiment file reads it: `40`, `1e-3`, `[1, 2]`, `{a: 1}`, `text`."""
    try:
        read = document.read(f"value: {text}")
    except InvalidExperimentFile as error:
        raise click.UsageError(f"--set {path}: {text!r} is no value in YAML") from error
    if read.problems or list(read.tree) != ["value"]:
        raise click.UsageError(f"--set {path}: {text!r} is no value in YAML")
    return read.tree["value"]

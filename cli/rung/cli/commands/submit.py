"""`rung submit`: an experiment file and its code folder."""

import asyncio
import secrets
import sys
from pathlib import Path

import click

from rung.cli.commands.wait import follow
from rung.cli.connection_options import PATIENCE_FOLLOWING_S, PATIENCE_S, Link, linked
from rung.cli.exit_code import OK
from rung.cli.output import print_json_line, printable
from rung.client import AsyncClient, Submitted
from rung.events import RungError

follow_links_option = click.option(
    "--follow-links", is_flag=True, help="Send what links point to that leave the folder."
)


workspace_option = click.option(
    "--workspace", metavar="NAME", help="Where it goes, in place of what its file says."
)
project_option = click.option("--project", metavar="NAME", help="Of the workspace.")


@click.command()
@click.argument(
    "file", type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)
)
@click.argument(
    "folder", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False
)
@click.option("--follow", "-f", "following", is_flag=True, help="Watch it until it ended.")
@follow_links_option
@workspace_option
@project_option
@click.option(
    "--template", metavar="NAME", help="Of the workspace: what FILE leaves open comes from it."
)
@linked
async def submit(  # noqa: PLR0913 - what can be chosen
    file: Path,
    folder: Path | None,
    link: Link,
    *,
    workspace: str | None,
    project: str | None,
    template: str | None,
    following: bool,
    follow_links: bool,
) -> int:
    """Submit the experiment that FILE describes, with the code in FOLDER.

    What FOLDER/.rungignore and .gitignore name is left out, and virtual environments are.
    `!NAME` in FOLDER/.rungignore brings something back. FILE may be `-` for standard input. With
    --json -f, two lines are printed: the submission, and the experiment once it ended.
    """
    config = await asyncio.to_thread(_read, file)
    code = await asyncio.to_thread(pack_folder, folder, follow_links=follow_links)
    async with link.client(PATIENCE_FOLLOWING_S if following else PATIENCE_S) as client:
        submitted = await client.submit(
            config,
            code,
            workspace=workspace,
            project=project,
            template=template,
            key=secrets.token_hex(16),
        )
        return await conclude(link, client, submitted, following=following)


async def conclude(
    link: Link, client: AsyncClient, submitted: Submitted, *, following: bool
) -> int:
    """Print what was submitted, follow it if wanted, and return the exit code."""
    if link.json:
        print_json_line(submitted)
    else:
        for warning in submitted.warnings:
            click.echo(f"Warning: {printable(warning)}", err=True)
        click.echo(f"Submitted experiment {submitted.experiment_id}")
    if not following:
        return OK
    return await follow(link, client, submitted.experiment_id, quiet=False)


def _read(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise RungError(f"{file} cannot be read ({error.strerror})") from error


def pack_folder(folder: Path | None, *, follow_links: bool) -> bytes | None:
    """Return the packed code of a folder, None if there is none; what is left out is printed."""
    if folder is None:
        return None
    from rung.config.code_folder import LeftOut, listed, pack  # noqa: PLC0415 - only for code

    left_out: list[LeftOut] = []
    packed = pack(folder, follow_links=follow_links, left_out=left_out)
    if left_out:
        click.echo(f"Not sent: {printable(listed(left_out))}", err=True)
    return packed.data

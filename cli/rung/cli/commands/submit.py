"""`rung submit`: an experiment file and its code folder."""

import asyncio
import secrets
import sys
from pathlib import Path

import click

from rung.cli.commands.wait import follow
from rung.cli.exit_code import OK
from rung.cli.link import PATIENCE_FOLLOWING_S, PATIENCE_S, Link, linked
from rung.cli.output import print_json_line, printable
from rung.events import RungError


@click.command()
@click.argument(
    "file", type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)
)
@click.argument(
    "folder", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False
)
@click.option("--follow", "-f", "following", is_flag=True, help="Watch it until it ended.")
@linked
async def submit(file: Path, folder: Path | None, link: Link, *, following: bool) -> int:
    """Submit the experiment that FILE describes, with the code in FOLDER.

    What FOLDER/.rungignore names is left out. FILE may be `-` for standard input. With --json -f,
    two lines are printed: the submission, and the experiment once it ended.
    """
    config = await asyncio.to_thread(_read, file)
    code = await asyncio.to_thread(_pack, folder)
    async with link.client(PATIENCE_FOLLOWING_S if following else PATIENCE_S) as client:
        submitted = await client.submit(config, code, key=secrets.token_hex(16))
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


def _pack(folder: Path | None) -> bytes | None:
    if folder is None:
        return None
    from rung.config.code_folder import pack  # noqa: PLC0415 - only where there is code

    return pack(folder).data

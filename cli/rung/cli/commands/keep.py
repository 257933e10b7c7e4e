"""`rung checkpoint save` and `restore`: the files of a trial that is a program in any language."""

import shutil
from pathlib import Path

import click

from rung import core
from rung.cli.commands.report import show_on_stderr


@click.group()
def checkpoint() -> None:
    """Keep files of the trial in whose script this is called, and bring them back."""


@checkpoint.command()
@click.option("--step", type=click.IntRange(0), required=True, help="How many steps are trained.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def save(*, step: int, folder: Path) -> None:
    """Store the files in FOLDER as a checkpoint.

    A step has one checkpoint in a run: a second is not stored.
    """
    show_on_stderr()
    with core.init() as run:
        if run.checkpoint.has(step):
            return
        with run.checkpoint.store_path(steps_completed=step) as (kept, _):
            shutil.copytree(folder, kept, dirs_exist_ok=True)


@checkpoint.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def restore(*, folder: Path) -> None:
    """Write the checkpoint to go on from into FOLDER, and print its step.

    Where the trial begins, nothing is written and 0 is printed.
    """
    show_on_stderr()
    with core.init() as run:
        latest = run.checkpoint.latest
        if latest is None:
            click.echo(0)
            return
        with run.checkpoint.restore_path(latest) as kept:
            shutil.copytree(kept, folder, dirs_exist_ok=True)
        click.echo(run.checkpoint.get_metadata(latest)["steps_completed"])

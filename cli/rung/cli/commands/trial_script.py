"""`rung report`, `rung checkpoint save` and `restore`: for a trial's script in any language."""

import shutil
import sys
from pathlib import Path
from typing import Final

import click
import structlog

from rung import core

LEAVE: Final = "leave"
"""Printed by `rung report` when the script should checkpoint and exit."""


class _MetricType(click.ParamType):
    """Takes `name=number`."""

    name = "name=number"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Return the name and the number."""
        name, equals, number = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r}: write name=number, such as loss=0.5", param, ctx)
        try:
            return name, float(number)
        except ValueError:
            self.fail(f"{name}: {number!r} is no number", param, ctx)


@click.command()
@click.option("--step", type=click.IntRange(0), required=True, help="How many steps are trained.")
@click.option("--training", "kind", flag_value="training", default=True, help="The default.")
@click.option("--validation", "kind", flag_value="validation", help="The search decides by these.")
@click.option("--group", "group", metavar="NAME", help="A group of your own, such as test.")
@click.argument("metrics", metavar="NAME=NUMBER...", type=_MetricType(), nargs=-1, required=True)
def report(
    *, step: int, kind: str, group: str | None, metrics: tuple[tuple[str, float], ...]
) -> None:
    """Report metrics of the trial in whose script this is called.

    Prints `leave` when the script should store its files with `rung checkpoint save` and exit with
    code 0: the trial has its length, or is to give its slots back. Prints nothing else. In a
    script that was started by hand, the report is shown on standard error.
    """
    _log_to_stderr()
    with core.init() as run:
        run.train.report_metrics(group or kind, step, dict(metrics))
        if run.preempt.should_preempt():
            click.echo(LEAVE)


@click.group()
def checkpoint() -> None:
    """Store files of the trial in whose script this is called, and restore them."""


@checkpoint.command()
@click.option("--step", type=click.IntRange(0), required=True, help="How many steps are trained.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def save(*, step: int, folder: Path) -> None:
    """Store the files in FOLDER as a checkpoint.

    A run has one checkpoint of a step: a second one is not stored.
    """
    _log_to_stderr()
    with core.init() as run:
        if run.checkpoint.has(step):
            return
        with run.checkpoint.store_path(steps_completed=step) as (stored, _):
            shutil.copytree(folder, stored, dirs_exist_ok=True)


@checkpoint.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def restore(*, folder: Path) -> None:
    """Write the checkpoint from which to resume into FOLDER, and print its step.

    If there is none, writes nothing and prints 0.
    """
    _log_to_stderr()
    with core.init() as run:
        latest = run.checkpoint.download_latest()
        if latest is None:
            click.echo(0)
            return
        with run.checkpoint.restore_path(latest) as stored:
            shutil.copytree(stored, folder, dirs_exist_ok=True)
        click.echo(run.checkpoint.get_metadata(latest)["steps_completed"])


def _log_to_stderr() -> None:
    """Log to standard error; standard output is for the command's answer alone."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

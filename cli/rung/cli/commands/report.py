"""`rung report`: the metrics of a trial that is a program in any language."""

import sys
from typing import Final

import click
import structlog

from rung import core

LEAVE: Final = "leave"
"""What is printed where the script should checkpoint and leave."""


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

    Prints `leave` where the script should keep what it has with `rung checkpoint save` and end
    with exit code 0: the trial is as long as it should be, or is asked to make room. Prints
    nothing else. In a script that was started by hand, the report is shown on standard error.
    """
    show_on_stderr()
    with core.init() as run:
        run.train.report_metrics(group or kind, step, dict(metrics))
        if run.preempt.should_preempt():
            click.echo(LEAVE)


def show_on_stderr() -> None:
    """Leave standard output to the answer; what a run by hand shows goes to standard error."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

"""`rung wait`: shows an experiment's progress until it ended, across restarts of the server."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from rung.cli import exit_code
from rung.cli.commands.failures import failure_facts
from rung.cli.connection_options import PATIENCE_FOLLOWING_S, Link, experiment_argument, linked
from rung.cli.output import (
    counted,
    duration,
    number,
    print_json_line,
    printable,
    seconds_between,
    settings,
    share,
)
from rung.cli.terminal import raw_stream
from rung.client import AsyncClient, Experiment
from rung.events.trial import ENDED_EARLY

Show = Callable[[Experiment], None]

_LINE_S: Final = 5.0
"""Between two lines of progress where there is no terminal."""
_STATES: Final = (
    "running", "waiting", "resting", "paused", "stopping",
    "completed", "stopped", "errored", "canceled",
)  # fmt: skip
"""The order in which states of trials are listed."""


@click.command()
@experiment_argument
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@linked
async def wait(experiment_id: str, link: Link, *, quiet: bool) -> int:
    """Wait until an experiment ended; the exit code says how."""
    async with link.client(PATIENCE_FOLLOWING_S) as client:
        return await follow(link, client, experiment_id, quiet=quiet)


async def follow(link: Link, client: AsyncClient, experiment_id: str, *, quiet: bool) -> int:
    """Show an experiment until it ended and return the exit code; Ctrl-C leaves it running.

    Pass the client that submitted or canceled the experiment: its reads include its own writes.
    """
    try:
        with progress(quiet=quiet or link.json) as show:
            experiment = await client.wait(
                experiment_id,
                note=None if quiet or link.json else show,
                trials="all" if link.json else "none" if quiet else "top",
            )
    except asyncio.CancelledError:  # Ctrl-C
        click.echo(
            f"\nNo longer watching; experiment {experiment_id} goes on. `rung wait"
            f" {experiment_id}` watches it again, `rung cancel {experiment_id}` ends it.",
            err=True,
        )
        raise
    if link.json:
        print_json_line(experiment)
    else:
        _print_end(experiment)
    return exit_code.of_state(experiment.state)


@contextlib.contextmanager
def progress(*, quiet: bool) -> Iterator[Show]:
    """Yield a function that shows progress: a live table on a terminal, lines elsewhere."""
    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        from rich.console import Console  # noqa: PLC0415 - a tenth of a second
        from rich.live import Live  # noqa: PLC0415 - see above

        # Its texts were made `printable` before; escaped, its drawing would show as text.
        console = Console(file=raw_stream(sys.stderr), highlight=False, soft_wrap=False)
        with Live(console=console, auto_refresh=False, transient=True) as table:
            yield lambda experiment: table.update(table_of(experiment), refresh=True)


class _Lines:
    """Prints a line when something changed, at most every `_LINE_S` seconds."""

    def __init__(self) -> None:
        self._last = ""
        self._at = -_LINE_S

    def __call__(self, experiment: Experiment) -> None:
        line = line_of(experiment)
        now = time.monotonic()
        due = now - self._at >= _LINE_S or experiment.ended_at is not None
        if line != self._last and due:
            click.echo(line, err=True)
            self._last, self._at = line, now


def line_of(experiment: Experiment) -> str:
    """Return the progress of an experiment in one line."""
    parts = [f"{experiment.id} {experiment.state} {share(experiment.progress)}"]
    if experiment.trial_count:
        parts.append(f"{counted(experiment.trial_count, 'trial')}: {_counts(experiment)}")
    parts += [f"rungs {rungs}" for rungs in _rungs(experiment).values()]
    parts.append(_best(experiment) or "no validation yet")
    if experiment.ended_at is None:
        parts += [f"{name}: {text}" for name, text in failure_facts(experiment)[:1]]
    if experiment.unplaced is not None:
        parts.append(printable(experiment.unplaced))
    if experiment.eta_seconds is not None:
        parts.append(f"about {duration(experiment.eta_seconds)} left")
    return " | ".join(parts)


def table_of(experiment: Experiment) -> Any:
    """Return the progress of an experiment as a table of `rich`."""
    from rich.console import Group  # noqa: PLC0415 - a tenth of a second
    from rich.progress_bar import ProgressBar  # noqa: PLC0415 - see above
    from rich.table import Table  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    left = experiment.eta_seconds
    head = Table.grid(padding=(0, 2, 0, 0))
    head.add_row(
        Text(f"{printable(experiment.name)} ({experiment.id})", "bold"),
        Text(f"{experiment.method} {experiment.state}"),
        ProgressBar(total=1.0, completed=experiment.progress, width=30),
        Text(share(experiment.progress)),
        Text(duration(seconds_between(experiment.submitted_at, experiment.ended_at))),
        Text("" if left is None else f"about {duration(left)} left", "dim"),
    )
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_row(
        Text("trials", "dim"), Text(f"{experiment.trial_count}: {_counts(experiment) or 'none'}")
    )
    for name, rungs in _rungs(experiment).items():
        facts.add_row(Text(name, "dim"), Text(rungs))
    best = experiment.best
    if best is not None:
        facts.add_row(
            Text("best", "dim"),
            Text(f"{printable(best.metric)} {number(best.value)} by {best.trial_id}", "green"),
        )
        facts.add_row(Text("", "dim"), Text(settings(_best_hparams(experiment))))
    if experiment.unplaced is not None:
        facts.add_row(Text("waiting", "dim"), Text(printable(experiment.unplaced), "red"))
    for name, text in failure_facts(experiment):
        facts.add_row(Text(name, "dim"), Text(printable(text), "red"))
    return Group(head, facts)


def _counts(experiment: Experiment) -> str:
    counts = experiment.trial_states
    states = dict.fromkeys((*_STATES, *sorted(counts)))
    return ", ".join(f"{counts[state]} {state}" for state in states if counts.get(state))


def _rungs(experiment: Experiment) -> dict[str, str]:
    """Return, by bracket, how many trials reached each of its rungs: `27@1 9@3 3@9`."""
    brackets = experiment.plan.brackets if experiment.plan else []
    unit = experiment.plan.time_metric if experiment.plan else ""
    reached = {each.bracket: each.reached for each in experiment.rungs}
    found = {}
    for bracket in brackets:
        if len(bracket.lengths) < 2 and len(brackets) < 2:
            continue
        counts = [
            f"{count}@{length}"
            for count, length in zip(
                reached.get(bracket.bracket) or [0] * len(bracket.lengths),
                bracket.lengths,
                strict=True,
            )
        ]
        name = "rungs" if len(brackets) == 1 else f"bracket {bracket.bracket}"
        found[name] = f"{' '.join(counts)} {unit}"
    return found


def _best(experiment: Experiment) -> str | None:
    best = experiment.best
    if best is None:
        return None
    hparams = _best_hparams(experiment)
    text = f"best {printable(best.metric)} {number(best.value)} by {best.trial_id}"
    return f"{text} ({settings(hparams)})" if hparams else text


def _best_hparams(experiment: Experiment) -> dict[str, Any]:
    best = experiment.best
    return next((it.hparams for it in experiment.trials if best and it.id == best.trial_id), {})


def _print_end(experiment: Experiment) -> None:
    took = duration(seconds_between(experiment.submitted_at, experiment.ended_at))
    reason = experiment.reason or counted(experiment.trial_count, "trial")
    click.echo(f"{experiment.id} {experiment.state} after {took}: {printable(reason)}")
    for name, text in failure_facts(experiment):
        click.echo(f"{name}: {printable(text)}")
    early = [it for it in experiment.trials if (it.reason or "").startswith(ENDED_EARLY)]
    if early:
        click.echo(f"early: {printable(early[0].reason or '')} ({early[0].id})")
    if experiment.best is not None:
        best = experiment.best
        click.echo(
            f"best {printable(best.metric)} {number(best.value)} by {best.trial_id};"
            f" `rung best {experiment.id}` shows more"
        )

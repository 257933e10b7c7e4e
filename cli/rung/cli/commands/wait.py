"""`rung wait`: shows an experiment's progress until it ended, across restarts of the server."""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import click

from rung.cli import exit_code
from rung.cli.link import PATIENCE_FOLLOWING_S, Link, experiment_argument, linked
from rung.cli.output import (
    console,
    counted,
    duration,
    number,
    print_json_line,
    printable,
    seconds_between,
    share,
)
from rung.client import AsyncClient, Experiment
from rung.events import RungError

Show = Callable[[Experiment], None]

_POLL_S: Final = 5.0
"""The experiment is read at least so often, whether or not an event arrives."""
_PAUSE_S: Final = 0.3
"""Least time between two reads; three times the last read's duration if that is longer, but at
most `_POLL_S`: a read that waited for a restart of the server is no measure."""
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
        async with _progress(quiet=quiet or link.json) as show:
            experiment = await _watch(client, experiment_id, show)
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


async def _watch(client: AsyncClient, experiment_id: str, show: Show) -> Experiment:
    """Show an experiment after each of its events; return it once it ended."""
    changed = asyncio.Event()
    listener = asyncio.create_task(_listen(client, experiment_id, changed))
    try:
        while True:
            started = time.monotonic()
            changed.clear()
            experiment = await client.experiment(experiment_id)
            show(experiment)
            if experiment.ended_at is not None:
                return experiment
            took_s = time.monotonic() - started
            await asyncio.sleep(min(max(_PAUSE_S, 3 * took_s), _POLL_S))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await changed.wait()
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def _listen(client: AsyncClient, experiment_id: str, changed: asyncio.Event) -> None:
    """Set an event at each event of an experiment; if the stream is refused, polling is left."""
    with contextlib.suppress(RungError):
        async for _ in client.follow_events(experiment_id, begin="now"):
            changed.set()


@contextlib.asynccontextmanager
async def _progress(*, quiet: bool) -> AsyncIterator[Show]:
    """Yield a function that shows progress: a live table on a terminal, lines elsewhere."""
    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        from rich.live import Live  # noqa: PLC0415 - a tenth of a second

        with Live(console=console(stderr=True), auto_refresh=False, transient=True) as table:
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
    if experiment.trials:
        parts.append(f"{counted(len(experiment.trials), 'trial')}: {_counts(experiment)}")
    parts += [f"rungs {rungs}" for rungs in _rungs(experiment).values()]
    parts.append(_best(experiment) or "no validation yet")
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
        Text("trials", "dim"), Text(f"{len(experiment.trials)}: {_counts(experiment) or 'none'}")
    )
    for name, rungs in _rungs(experiment).items():
        facts.add_row(Text(name, "dim"), Text(rungs))
    best = experiment.best
    if best is not None:
        facts.add_row(
            Text("best", "dim"),
            Text(f"{printable(best.metric)} {number(best.value)} by {best.trial_id}", "green"),
        )
        facts.add_row(Text("", "dim"), Text(printable(_best_hparams(experiment))))
    return Group(head, facts)


def _counts(experiment: Experiment) -> str:
    counts = Counter(trial.state for trial in experiment.trials)
    states = dict.fromkeys((*_STATES, *sorted(counts)))
    return ", ".join(f"{counts[state]} {state}" for state in states if counts[state])


def _rungs(experiment: Experiment) -> dict[str, str]:
    """Return, by bracket, how many trials reached each of its rungs: `27@1 9@3 3@9`."""
    brackets = experiment.plan.brackets if experiment.plan else []
    unit = experiment.plan.time_metric if experiment.plan else ""
    found = {}
    for bracket in brackets:
        if len(bracket.lengths) < 2 and len(brackets) < 2:
            continue
        reached = [
            trial.rung
            for trial in experiment.trials
            if trial.bracket == bracket.bracket and trial.rung is not None
        ]
        counts = [
            f"{sum(1 for rung in reached if rung >= index)}@{length}"
            for index, length in enumerate(bracket.lengths)
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
    return f"{text} ({printable(hparams)})" if hparams else text


def _best_hparams(experiment: Experiment) -> dict[str, Any]:
    best = experiment.best
    return next((it.hparams for it in experiment.trials if best and it.id == best.trial_id), {})


def _print_end(experiment: Experiment) -> None:
    took = duration(seconds_between(experiment.submitted_at, experiment.ended_at))
    reason = experiment.reason or counted(len(experiment.trials), "trial")
    click.echo(f"{experiment.id} {experiment.state} after {took}: {printable(reason)}")
    if experiment.best is not None:
        best = experiment.best
        click.echo(
            f"best {printable(best.metric)} {number(best.value)} by {best.trial_id};"
            f" `rung best {experiment.id}` shows more"
        )

"""Watches an experiment until it ended, across restarts of the server."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

import click

from rung.cli.commands.progress import line_of, picture_of
from rung.cli.output import console
from rung.events import RungError

if TYPE_CHECKING:
    from rung.client import AsyncClient, Experiment

Show = Callable[["Experiment"], None]

_POLL_S: Final = 5.0
"""How long to trust that nothing happened because nothing was heard."""
_PAUSE_S: Final = 0.3
"""Between two looks, at least; more where a look takes long, yet no more than `_POLL_S`: it may
have waited for a server that was started anew."""
_LINE_S: Final = 5.0
"""Between two lines of progress where there is no terminal."""


async def watch(client: "AsyncClient", experiment_id: str, show: Show) -> "Experiment":
    """Show an experiment whenever something happens to it; return it once it ended."""
    heard = asyncio.Event()
    listener = asyncio.create_task(_listen(client, experiment_id, heard))
    try:
        while True:
            started = time.monotonic()
            heard.clear()
            experiment = await client.experiment(experiment_id)
            show(experiment)
            if experiment.ended_at is not None:
                return experiment
            took_s = time.monotonic() - started
            await asyncio.sleep(min(max(_PAUSE_S, 3 * took_s), _POLL_S))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await heard.wait()
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


@contextlib.asynccontextmanager
async def live() -> AsyncIterator[Show]:
    """Yield what shows progress: a picture that moves on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.live import Live  # noqa: PLC0415 - a tenth of a second

    with Live(console=console(stderr=True), auto_refresh=False, transient=True) as picture:
        yield lambda experiment: picture.update(picture_of(experiment), refresh=True)


def silent(experiment: "Experiment") -> None:
    """Show nothing."""


class _Lines:
    """Prints a line when something changed, though not all the time."""

    def __init__(self) -> None:
        self._last = ""
        self._at = -_LINE_S

    def __call__(self, experiment: "Experiment") -> None:
        line = line_of(experiment)
        now = time.monotonic()
        due = now - self._at >= _LINE_S or experiment.ended_at is not None
        if line != self._last and due:
            click.echo(line, err=True)
            self._last, self._at = line, now


async def _listen(client: "AsyncClient", experiment_id: str, heard: asyncio.Event) -> None:
    """Tell when something happens; without it, polling does."""
    with contextlib.suppress(RungError):
        async for _ in client.follow_events(experiment_id, begin="now"):
            heard.set()

"""Waits for the end of an experiment, across restarts of the server."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from rung import api
from rung.events import RungError

if TYPE_CHECKING:
    from rung.client._client import AsyncClient

Note = Callable[[api.Experiment], None]
Shown = Literal["all", "top", "none"]
"""Which of its trials an experiment has: all, the five best, or none."""

POLL_S: Final = 5.0
"""The experiment is read at least so often, whether or not an event arrives; at first more often,
for one that ends before the stream of events is open."""
_SHARE: Final = 0.25
"""Until then it is read after so much of the time that it was waited for."""
PAUSE_S: Final = 0.3
"""Least time between two reads; three times the last read's duration if that is longer, but at
most `POLL_S`: a read that waited for a restart of the server is no measure."""


async def wait(
    client: "AsyncClient", experiment_id: str, note: Note | None, trials: Shown
) -> api.Experiment:
    """Read an experiment after each of its events; return it once it ended."""
    polled = "none" if note is None else trials
    changed = asyncio.Event()
    begun = time.monotonic()
    listener = asyncio.create_task(_listen(client, experiment_id, changed))
    try:
        while True:
            started = time.monotonic()
            changed.clear()
            experiment = await client.experiment(experiment_id, trials=polled)
            if note is not None:
                note(experiment)
            if experiment.ended_at is not None:
                if polled == trials:
                    return experiment
                return await client.experiment(experiment_id, trials=trials)
            took_s = time.monotonic() - started
            await asyncio.sleep(min(max(PAUSE_S, 3 * took_s), POLL_S))
            pause_s = min(max(PAUSE_S, _SHARE * (time.monotonic() - begun)), POLL_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await changed.wait()
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def _listen(client: "AsyncClient", experiment_id: str, changed: asyncio.Event) -> None:
    """Set an event at each event of an experiment; if the stream is refused, polling is left."""
    with contextlib.suppress(RungError):
        async for _ in client.follow_events(experiment_id, begin="now"):
            changed.set()

"""One filler of a part of the cache, for all runs of an agent that wait for it.

While the origin is away it tries again, for as long as anybody waits.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from rung.cache import DataUnavailable, Origin
from rung.cache.fill import Fill

AGAIN_S: Final = 1.0
AGAIN_S_MAX: Final = 30.0

Note = Callable[[str], None]
"""Tells the log of a run something."""

_log = structlog.get_logger(__name__)


class Filling:
    """One filler of one tree, for all runs that want it."""

    def __init__(self, fill: Fill, origin: Origin, threads: ThreadPoolExecutor) -> None:
        self._fill = fill
        self._origin = origin
        self._threads = threads
        self.notes: list[Note] = []
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(_heard)

    def join(self, note: Note) -> None:
        """Wait for it, too."""
        self.notes.append(note)

    def leave(self, note: Note) -> None:
        """Wait no longer; nobody left: it stops."""
        self.notes.remove(note)
        if not self.notes:
            self.stop()

    def stop(self) -> None:
        """End it soon."""
        self._fill.stop.set()
        self._origin.close()

    @property
    def stopped(self) -> bool:
        """Whether it was told to end."""
        return self._fill.stop.is_set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = AGAIN_S
        try:
            while True:
                try:
                    await loop.run_in_executor(self._threads, self._fill.run)
                except DataUnavailable as error:
                    if self.stopped:
                        raise
                    if wait_s == AGAIN_S:
                        for note in self.notes:
                            note(f"waiting: {error}")
                else:
                    return
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, AGAIN_S_MAX)
        finally:
            self._origin.close()


def _heard(task: "asyncio.Task[None]") -> None:
    """Take note of a failure that no run waited for: the script hears of it from the tree."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("data could not be brought", error=str(error))

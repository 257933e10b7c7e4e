"""Reads what a process prints, from one of its two streams, as far as the spool has room."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

from rung.agent.lines import PROGRESS_S, Splitter
from rung.agent.spool import Spool

_CHUNK: Final = 64 * 1024


class Capture:
    """A pipe whose write end a process gets, and whose read end is cut into lines."""

    def __init__(self, spool: Spool, take: Callable[[list[str]], None]) -> None:
        self._spool = spool
        self._take = take
        self._splitter = Splitter()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._pause: asyncio.TimerHandle | None = None
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        self._loop.add_reader(self._read, self._readable)

    def started(self) -> None:
        """Close our write end: the process has its own now, or will never have one."""
        os.close(self.write_end)

    async def ended(self) -> None:
        """Return when everything was read."""
        await self._ended.wait()

    def close(self) -> None:
        """Stop reading, whether or not everything was read."""
        if self._ended.is_set():
            return
        self._loop.remove_reader(self._read)
        os.close(self._read)
        if self._pause is not None:
            self._pause.cancel()
        self._give(self._splitter.end())
        self._ended.set()

    def _readable(self) -> None:
        try:
            data = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self._give(self._splitter.feed(data, self._loop.time()))
        if self._splitter.holding and self._pause is None:
            self._pause = self._loop.call_later(PROGRESS_S, self._paused)
        if self._spool.saturated:
            self._loop.remove_reader(self._read)
            self._spool.when_room(self._resume)

    def _paused(self) -> None:
        self._pause = None
        self._give(self._splitter.pause())

    def _resume(self) -> None:
        if not self._ended.is_set():
            self._loop.add_reader(self._read, self._readable)

    def _give(self, lines: list[str]) -> None:
        if lines:
            self._take(lines)

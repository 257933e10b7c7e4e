"""Reads what a process prints, from one of its two streams, as far as there is room for it."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import Final

from rung.agent.lines import PROGRESS_S, Splitter
from rung.agent.reports import Reports
from rung.agent.spool import Spool

_CHUNK: Final = 64 * 1024
_PIPE_BYTES: Final = 4 * _CHUNK
"""What a process may print while it is not read. Linux lets a user's pipes have 64 MiB in all."""
_READS_MAX: Final = 20
_WINDOW_S: Final = 0.1
_REST_S: Final = 0.005
"""How long a pipe is left unread that was read more often than so many times in so many seconds.

A process that prints line by line would else wake this one for each, which costs both more than
all the rest.
"""


class Capture:
    """A pipe whose write end a process gets, and whose read end is cut into lines."""

    def __init__(
        self,
        room: Reports | Spool,
        take: Callable[[list[str]], None],
        *,
        after: "Capture | None" = None,
    ) -> None:
        """Make the pipe.

        Args:
            room: says whether there is room for more.
            take: is called with the lines.
            after: the process's other pipe, which is read first where both have something.
        """
        self._room = room
        self._take = take
        self._after = after
        self._rest: asyncio.TimerHandle | None = None
        self._window_s = 0.0
        self._reads = 0
        self._splitter = Splitter()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._pause: asyncio.TimerHandle | None = None
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        with contextlib.suppress(PermissionError):  # the user's pipes have their share already
            fcntl.fcntl(self._read, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
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
        for timer in (self._pause, self._rest):
            if timer is not None:
                timer.cancel()
        self._rest = None
        self._give(self._splitter.end())
        self._ended.set()

    def _readable(self) -> None:
        if self._after is not None:
            self._after.catch_up()
        try:
            data = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        now = self._loop.time()
        self._give(self._splitter.feed(data, now))
        if self._splitter.holding and self._pause is None:
            self._pause = self._loop.call_later(PROGRESS_S, self._paused)
        if self._room.saturated:
            self._loop.remove_reader(self._read)
            self._room.when_room(self._resume)
        elif len(data) < _CHUNK and self._comes_often(now):
            self._loop.remove_reader(self._read)
            self._rest = self._loop.call_later(_REST_S, self._rested)

    def catch_up(self) -> None:
        """Read what came while the pipe was left unread, if it was."""
        if self._rest is not None:
            self._rest.cancel()
            self._rested()
            self._readable()

    def _comes_often(self, now: float) -> bool:
        if now - self._window_s > _WINDOW_S:
            self._window_s, self._reads = now, 0
        self._reads += 1
        return self._reads > _READS_MAX

    def _rested(self) -> None:
        self._rest = None
        self._resume()

    def _paused(self) -> None:
        self._pause = None
        self._give(self._splitter.pause())

    def _resume(self) -> None:
        if not self._ended.is_set():
            self._loop.add_reader(self._read, self._readable)

    def _give(self, lines: list[str]) -> None:
        if lines:
            self._take(lines)

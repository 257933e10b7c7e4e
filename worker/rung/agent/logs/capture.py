"""Log capture: reads one output stream of a process while the outbox has room."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from rung.agent.logs.line_splitter import PROGRESS_S, Splitter
from rung.agent.outbox.event_buffer import EventBuffer
from rung.agent.outbox.outbox import Outbox

_CHUNK: Final = 64 * 1024
_PIPE_BYTES: Final = 4 * _CHUNK
"""Size of a pipe's buffer. Linux limits all pipes of a user to 64 MiB."""
_READS_MAX: Final = 20
_WINDOW_S: Final = 0.1
_UNREAD_S: Final = 0.005
"""How long a pipe is left unread after more than `_READS_MAX` reads in `_WINDOW_S` seconds.

A process that prints line by line would otherwise wake the agent for each line, which costs both
of them more than all the rest.
"""


class Adopted(NamedTuple):
    """A pipe of a process that an earlier session of the agent created."""

    read_end: int
    file: int | None
    """With the output that the process wrote without an agent."""

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.read_end)
        if self.file is not None:
            os.close(self.file)


class LogCapture:
    """A pipe: its write end is for a process, its read end is split into lines here."""

    def __init__(
        self,
        room: EventBuffer | Outbox,
        take: Callable[[list[str]], None],
        *,
        after: "LogCapture | None" = None,
        adopted: Adopted | None = None,
    ) -> None:
        """Make the pipe, or take one over.

        Args:
            room: reading pauses while this is saturated.
            take: is called with the lines.
            after: the process's other pipe, which is read first where both have data.
            adopted: the pipe of a process that an earlier session of the agent created.
        """
        self._room = room
        self._take = take
        self._after = after
        self._unread: asyncio.TimerHandle | None = None
        self._window_s = 0.0
        self._reads = 0
        self._splitter = Splitter()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._pause: asyncio.TimerHandle | None = None
        self._read, self.write_end = os.pipe() if adopted is None else (adopted.read_end, -1)
        os.set_blocking(self._read, False)
        with contextlib.suppress(PermissionError):  # the limit of the user's pipes is reached
            fcntl.fcntl(self._read, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        if adopted is not None and adopted.file is not None:
            self._catch_up_with(adopted.file)
        self._loop.add_reader(self._read, self._readable)

    @property
    def read_end(self) -> int:
        """The pipe's other end."""
        return self._read

    def started(self) -> None:
        """Close the agent's copy of the write end: the process has its own, or never will."""
        os.close(self.write_end)

    def _catch_up_with(self, file: int) -> None:
        """Read the output that the process wrote without an agent."""
        with os.fdopen(file, "rb") as opened:
            opened.seek(0)
            while data := opened.read(_CHUNK):
                self._give(self._splitter.feed(data, self._loop.time()))

    async def ended(self) -> None:
        """Return when everything was read."""
        await self._ended.wait()

    def close(self) -> None:
        """Stop reading, whether or not everything was read."""
        if self._ended.is_set():
            return
        self._loop.remove_reader(self._read)
        os.close(self._read)
        for timer in (self._pause, self._unread):
            if timer is not None:
                timer.cancel()
        self._unread = None
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
            self._unread = self._loop.call_later(_UNREAD_S, self._read_again)

    def catch_up(self) -> None:
        """Read the pipe now if it is left unread."""
        if self._unread is not None:
            self._unread.cancel()
            self._read_again()
            self._readable()

    def _comes_often(self, now: float) -> bool:
        if now - self._window_s > _WINDOW_S:
            self._window_s, self._reads = now, 0
        self._reads += 1
        return self._reads > _READS_MAX

    def _read_again(self) -> None:
        self._unread = None
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

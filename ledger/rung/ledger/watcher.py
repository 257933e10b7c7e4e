"""Follows a ledger's file on behalf of all followers in this process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from rung.events.errors import LedgerError
from rung.ledger.channel import Channel
from rung.ledger.doorbell import Doorbell
from rung.ledger.port import Record
from rung.ledger.reader import Reader, read_ends


class Watcher:
    """Keeps a channel per followed stream up to date, as this and other processes append.

    Until something is followed it costs nothing. With the first follower it hangs up the
    doorbell; when that rings, one read asks for the ends of all followed streams.
    """

    def __init__(
        self, folder: Path, reader: Reader, announce: Callable[[], Awaitable[object]]
    ) -> None:
        """Begin with nothing to watch.

        Args:
            folder: where doorbells hang.
            reader: of the file.
            announce: makes a commit, by which other processes come to know the doorbell.
        """
        self._reader = reader
        self._announce = announce
        self._doorbell = Doorbell(folder, self._heard)
        self._channels: dict[int, Channel] = {}
        self._hung: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        self._again = False

    @property
    def doorbell(self) -> str:
        """The name of this process's doorbell."""
        return self._doorbell.name

    async def channel(self, first: int) -> Channel:
        """Return the channel of a stream, given by its first id; it knows the stream's end."""
        channel = self._channels.get(first)
        if channel is None:
            channel = self._channels[first] = Channel()
            if self._hung is None:
                self._hung = asyncio.create_task(self._hang())
            await asyncio.shield(self._hung)
            self._heard()
        return channel

    def watched(self, first: int) -> bool:
        """Return whether anybody in this process ever followed the stream."""
        return first in self._channels

    def appended(self, first: int, records: Sequence[Record]) -> None:
        """Take note of what this process appended to a watched stream."""
        self._channels[first].grow(records[-1].position + 1, records)

    async def close(self, reason: LedgerError) -> None:
        """Take the doorbell down and send the followers away."""
        tasks = [task for task in (self._hung, self._checking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._doorbell.take_down()
        for channel in self._channels.values():
            channel.close(reason)

    async def _hang(self) -> None:
        self._doorbell.hang()
        await self._announce()

    def _heard(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())
        else:
            self._again = True

    async def _check(self) -> None:
        self._again = True
        while self._again:
            self._again = False
            channels = dict(self._channels)
            try:
                ends = await self._reader.run(partial(read_ends, firsts=channels))
            except LedgerError as error:
                for channel in channels.values():
                    channel.fail(error)
                return
            for channel, end in zip(channels.values(), ends, strict=True):
                channel.grow(end)

"""Follows a ledger's file on behalf of all followers in this process."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from rung.events.errors import LedgerError
from rung.ledger.channel import Channel
from rung.ledger.port import Record
from rung.ledger.sqlite.errors import explain
from rung.ledger.sqlite.notify import Doorbell
from rung.ledger.sqlite.reader import Reader, read_extents


class Watcher:
    """Keeps a channel per followed stream up to date, as this and other processes append.

    Until something is followed it costs nothing. With the first follower it hangs up the
    doorbell; when that rings, one read asks for the ends of all followed streams, and up to where
    they were trimmed.
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
        self._folder = folder
        self._reader = reader
        self._announce = announce
        self._doorbell = Doorbell(folder, self._heard)
        self._channels: dict[int, Channel] = {}
        self._hanging = asyncio.Lock()
        self._hung = False
        self._checking: asyncio.Task[None] | None = None
        self._again = False
        self._closed: LedgerError | None = None

    @property
    def doorbell(self) -> str:
        """The name of this process's doorbell."""
        return self._doorbell.name

    async def channel(self, first: int) -> Channel:
        """Return the channel of a stream, given by its first id; it knows the stream's end."""
        await self._listen()
        channel = self._channels.setdefault(first, Channel())
        self._heard()
        return channel

    def stage(self, first: int, durable: int, records: Sequence[Record]) -> None:
        """Show what this process is about to append to a stream, see `Channel.stage`."""
        if first in self._channels:
            self._channels[first].stage(durable, records)

    def appended(self, first: int, records: Sequence[Record]) -> None:
        """Take note of what this process appended to a stream."""
        if first in self._channels:
            self._channels[first].grow(records[-1].position + 1, records)

    def unstage(self, failure: LedgerError) -> None:
        """Forget what was to be appended, and send early followers away."""
        for channel in self._channels.values():
            channel.unstage(failure)

    def busy(self, firsts: Iterable[int]) -> bool:
        """Return whether early followers are at what is staged in some streams."""
        return any(self._channels[first].busy for first in firsts if first in self._channels)

    async def look(self) -> None:
        """Take note of what was trimmed and appended until now."""
        if self._channels and self._closed is None:
            self._heard()
            assert self._checking is not None
            await asyncio.wait([self._checking])

    async def close(self, reason: LedgerError) -> None:
        """Take the doorbell down and send the followers away."""
        self._closed = reason
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        self._doorbell.take_down()
        for channel in self._channels.values():
            channel.close(reason)

    async def _listen(self) -> None:
        """Hang up the doorbell if that has not been done."""
        async with self._hanging:
            if self._closed is None and not self._hung:
                try:
                    self._doorbell.hang()
                except OSError as error:
                    raise explain(error, self._folder / self._doorbell.name) from error
                await self._announce()
                self._hung = True
        if self._closed is not None:
            raise self._closed

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
                extents = await self._reader.run(partial(read_extents, firsts=list(channels)))
            except LedgerError as error:
                for channel in channels.values():
                    channel.fail(error)
                return
            for channel, (trimmed, end) in zip(channels.values(), extents, strict=True):
                channel.trim(trimmed)
                channel.grow(end)

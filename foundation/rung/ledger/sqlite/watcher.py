"""Watches a ledger's file on behalf of all followers in this process."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from rung.events.errors import LedgerError
from rung.ledger.channel import Channel
from rung.ledger.port import Record
from rung.ledger.sqlite.errors import explain
from rung.ledger.sqlite.notify import WakeUpSocket
from rung.ledger.sqlite.reader import Reader, read_extents


class Watcher:
    """Keeps a channel per followed stream up to date, as this and other processes append.

    Until something is followed it costs nothing. The first follower opens the wake-up socket; at
    each notification one read returns, for all followed streams, where they end and up to where
    they were trimmed.
    """

    def __init__(
        self, folder: Path, reader: Reader, announce: Callable[[], Awaitable[object]]
    ) -> None:
        """Begin without streams.

        Args:
            folder: of wake-up sockets.
            reader: of the file.
            announce: makes a commit, after which other processes connect to the wake-up socket.
        """
        self._folder = folder
        self._reader = reader
        self._announce = announce
        self._socket = WakeUpSocket(folder, self._refresh_soon)
        self._channels: dict[int, Channel] = {}
        self._subscribing = asyncio.Lock()
        self._subscribed = False
        self._refreshing: asyncio.Task[None] | None = None
        self._again = False
        self._closed: LedgerError | None = None

    @property
    def socket_name(self) -> str:
        """The name of this process's wake-up socket."""
        return self._socket.name

    async def channel(self, first: int) -> Channel:
        """Return the channel of a stream, given by its first id."""
        await self._subscribe()
        channel = self._channels.setdefault(first, Channel())
        self._refresh_soon()
        return channel

    def stage(self, first: int, durable: int, records: Sequence[Record]) -> None:
        """Stage what this process is about to append to a stream, see `Channel.stage`."""
        if first in self._channels:
            self._channels[first].stage(durable, records)

    def appended(self, first: int, records: Sequence[Record]) -> None:
        """Add to its channel what this process appended to a stream."""
        if first in self._channels:
            self._channels[first].grow(records[-1].position + 1, records)

    def unstage(self, failure: LedgerError) -> None:
        """Drop staged records; staged followers raise the failure."""
        for channel in self._channels.values():
            channel.unstage(failure)

    def busy(self, firsts: Iterable[int]) -> bool:
        """Return whether staged followers have work left in some streams."""
        return any(self._channels[first].busy for first in firsts if first in self._channels)

    async def refresh(self) -> None:
        """Update the channels with what was trimmed and appended until now."""
        if self._channels and self._closed is None:
            self._refresh_soon()
            assert self._refreshing is not None
            await asyncio.wait([self._refreshing])

    async def close(self, reason: LedgerError) -> None:
        """Close the wake-up socket; followers raise the reason."""
        self._closed = reason
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        self._socket.close()
        for channel in self._channels.values():
            channel.close(reason)

    async def _subscribe(self) -> None:
        async with self._subscribing:
            if self._closed is None and not self._subscribed:
                try:
                    self._socket.listen()
                except OSError as error:
                    raise explain(error, self._folder / self._socket.name) from error
                await self._announce()
                self._subscribed = True
        if self._closed is not None:
            raise self._closed

    def _refresh_soon(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        else:
            self._again = True

    async def _refresh(self) -> None:
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

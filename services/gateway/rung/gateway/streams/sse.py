"""Server-sent events straight from the ledger.

A stream merges some partitions of some topics. The id of each event holds, for each of them, the
position behind what was sent, so that `Last-Event-ID` resumes without a loss or a repetition.
After a while without an event a heartbeat is sent, a comment with an id but no data: what was
passed over is not read again, and a client that left is noticed.

Past records are read for each client, batch by batch as it takes them; new ones are read for all
clients at once (`feed`). The ledger is the buffer: less than a megabyte is held for a client, and
one that takes nothing for too long is cut off; it resumes with `Last-Event-ID`. Records that
retention removed are skipped.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import structlog
from aiohttp import HttpVersion11, web

from rung.events import RungError
from rung.gateway.access.authorization import access_of
from rung.gateway.context import Context, context_of
from rung.gateway.problem import bad_parameter
from rung.gateway.streams.feed import Feed, Interest, Piece, Source, Subscription, bytes_of, id_of
from rung.ledger import Ledger, Record, read_of

RETRY_MS: Final = 1_000
_CHUNK: Final = 64 * 1024
_HELD_BYTES: Final = 512 * 1024
"""Of past records, so many bytes or one record are held for a client at most."""
_FIRST_SPAN: Final = 64
"""Positions that are read at once to begin with."""
_POSITION_MAX: Final = 2**53

_log = structlog.get_logger()


async def stream(
    request: web.Request,
    sources: Sequence[Source],
    starts: Sequence[int],
    interest: Interest,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """Answer with a stream of events until the client leaves or the server goes down.

    Args:
        request: to be answered; its Last-Event-ID goes before `starts`.
        sources: what to merge.
        starts: where to begin in each of them, at the earliest.
        interest: which of their records.
        headers: of the answer, beside those of every stream.
    """
    context = context_of(request)
    resumed = await _resume(request, context.ledger, sources)
    positions = await _kept(context.ledger, sources, resumed or starts)
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            **(headers or {}),
        }
    )
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    await response.prepare(request)
    client = _Client(request, response, context.settings.write_timeout)
    try:
        await client.send(f"retry: {RETRY_MS}\n\n".encode())
        watched = context.sight.watched(interest.experiment, access_of(request), client.cut)
        with watched:
            async with context.feeds.of(sources) as feed:
                await _Stream(context, client, sources, positions, interest).run(feed)
        await response.write_eof()
    except ConnectionResetError:
        pass  # the client left
    except TimeoutError:
        client.cut("the client takes nothing")
    except RungError as error:
        client.cut(str(error))
    return response


class _Client:
    def __init__(
        self, request: web.Request, response: web.StreamResponse, timeout_s: float
    ) -> None:
        self._request = request
        self._response = response
        self._timeout_s = timeout_s
        self._sent = time.monotonic()

    @property
    def quiet_s(self) -> float:
        """How long ago something was sent."""
        return time.monotonic() - self._sent

    async def send(self, data: bytes) -> None:
        """Send, waiting for a client that is behind, though not for ever."""
        async with asyncio.timeout(self._timeout_s):
            await self._response.write(data)
        self._sent = time.monotonic()

    def offer(self, piece: Piece) -> bool:
        """Send a piece if nothing is unsent; return whether it was."""
        transport = self._request.transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(piece.chunk if self._response.chunked else piece.data)
        self._sent = time.monotonic()
        return True

    def cut(self, reason: str) -> None:
        """Cut the connection, unsent data included."""
        _log.warning("stream cut", path=self._request.rel_url.raw_path, reason=reason)
        if self._request.transport is not None:
            self._request.transport.abort()


class _Stream:
    """The stream of one client: first past records, then new ones."""

    def __init__(
        self,
        context: Context,
        client: _Client,
        sources: Sequence[Source],
        positions: Sequence[int],
        interest: Interest,
    ) -> None:
        self._context = context
        self._client = client
        self._sources = sources
        self._positions = list(positions)
        """Up to where the client was sent what it selected."""
        self._interest = interest

    async def run(self, feed: Feed) -> None:
        """Send until the server goes down."""
        while not self._closing:
            await feed.reached(self._positions)
            with feed.subscribed(self._interest, self._client.offer) as subscription:
                for index, end in enumerate(subscription.start):
                    await self._catch_up(index, end)
                await self._live(subscription)

    @property
    def _closing(self) -> bool:
        return self._context.closing.is_set()

    async def _catch_up(self, index: int, end: int) -> None:
        """Send what one source holds before a position."""
        source, span = self._sources[index], _FIRST_SPAN
        while self._positions[index] < end and not self._closing:
            position, experiment = self._positions[index], self._interest.experiment
            ledger, until = self._context.ledger, min(end, position + span)
            records, reached = await read_of(ledger, source, position, until, experiment)
            if (count := _within(records)) < len(records):
                reached = records[count - 1].position + 1
                records = records[:count]
                span = max(1, reached - position)
            else:
                span *= 2
            for chunk in self._chunks(index, records):
                await self._client.send(chunk)
            self._positions[index] = reached
            await self._send_heartbeat()

    def _chunks(self, index: int, records: Sequence[Record]) -> Iterator[bytes]:
        """Yield the bytes of a batch, made as they are taken."""
        chunk = bytearray()
        for record in records:
            frame = self._interest.render(record)
            if frame is None:
                continue
            self._positions[index] = record.position + 1
            chunk += bytes_of(frame, self._positions)
            if len(chunk) >= _CHUNK:
                yield bytes(chunk)
                chunk.clear()
        if chunk:
            yield bytes(chunk)

    async def _live(self, subscription: Subscription) -> None:
        """Send new records, until the server shuts down or the client does not keep up."""
        heartbeat = self._context.settings.heartbeat
        while not self._closing and not subscription.overflowed:
            piece = subscription.take()
            if piece is not None:
                await self._client.send(piece.data)
                continue
            self._positions = list(subscription.passed() or subscription.positions)
            await self._send_heartbeat()
            await subscription.wait(max(0.0, heartbeat - self._client.quiet_s))
        self._positions = list(subscription.positions)

    async def _send_heartbeat(self) -> None:
        """Send the position, if nothing was sent for a while."""
        if self._client.quiet_s >= self._context.settings.heartbeat:
            await self._client.send(f"id: {id_of(self._positions)}\n: still here\n\n".encode())


def _within(records: Sequence[Record]) -> int:
    """Return how many of some records are held at once: one at least, if there are any."""
    size = 0
    for number, record in enumerate(records):
        size += len(record.value)
        if number and size > _HELD_BYTES:
            return number
    return len(records)


async def _resume(
    request: web.Request, ledger: Ledger, sources: Sequence[Source]
) -> list[int] | None:
    """Return the positions that the client has seen, None if it is new.

    Raises:
        Problem: its Last-Event-ID is of another stream, or of another ledger.
    """
    name, given = "Last-Event-ID", request.headers.get("Last-Event-ID")
    if given is None:
        return None
    parts = given.split(".")
    if len(parts) != len(sources) or not all(_is_position(part) for part in parts):
        raise bad_parameter(name, "give the id of an event of this very stream, unchanged")
    positions = [int(part) for part in parts]
    for source, position in zip(sources, positions, strict=True):
        if position > await ledger.end(source.topic, source.partition):
            raise bad_parameter(name, "is ahead of this ledger; leave it out to begin anew")
    return positions


async def _kept(ledger: Ledger, sources: Sequence[Source], positions: Sequence[int]) -> list[int]:
    """Return the positions, those of records that are no longer kept raised to the first kept."""
    return [
        max(position, await ledger.start(source.topic, source.partition))
        for source, position in zip(sources, positions, strict=True)
    ]


def _is_position(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 16 and int(text) < _POSITION_MAX

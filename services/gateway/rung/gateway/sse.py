"""Server-sent events straight from the ledger.

A stream merges some partitions of some topics. The id of each event holds, for each of them, the
position behind what was sent, so that `Last-Event-ID` resumes without a loss or a repetition.
Where nothing concerns the client for a while, an id without data comes with the comment that says
that the stream lives: what was passed over is not read again, and a client that left is noticed.

The ledger is the buffer: no more is read from it than the client takes, at most one batch of each
partition is held, and a client that takes nothing for too long is cut off; it comes back with
`Last-Event-ID` when it can. What retention took away is left out: a stream that is to begin
before it begins behind it.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, NamedTuple

import structlog
from aiohttp import web

from rung.events import RungError
from rung.gateway.context import Context, context_of
from rung.gateway.problem import bad_parameter
from rung.ledger import Ledger, Record

RETRY_MS: Final = 1_000
_CHUNK: Final = 64 * 1024
_POSITION_MAX: Final = 2**53

_log = structlog.get_logger()


class Source(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


class Frame(NamedTuple):
    """What a record becomes: the event's name and its data, JSON."""

    event: str
    data: bytes


Render = Callable[[Record], Frame | None]
"""Returns what a record becomes, None if it is of no concern to the client."""


async def stream(
    request: web.Request, sources: Sequence[Source], starts: Sequence[int], render: Render
) -> web.StreamResponse:
    """Answer with a stream of events until the client leaves or the server goes down.

    Args:
        request: to be answered; its Last-Event-ID goes before `starts`.
        sources: what to merge.
        starts: where to begin in each of them, at the earliest.
        render: from a record to an event.
    """
    context = context_of(request)
    resumed = await _resume(request, context.ledger, sources)
    positions = await _kept(context.ledger, sources, resumed or starts)
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
        }
    )
    await response.prepare(request)
    client = _Client(request, response, context.settings.write_timeout)
    try:
        await client.send(f"retry: {RETRY_MS}\n\n".encode())
        async with _merged(context.ledger, sources, positions) as batches:
            await _pump(context, client, batches, positions, render)
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

    def cut(self, reason: str) -> None:
        """Cut the connection, unsent data included."""
        _log.warning("stream cut", path=self._request.rel_url.raw_path, reason=reason)
        if self._request.transport is not None:
            self._request.transport.abort()


_Batches = asyncio.Queue[tuple[int, Sequence[Record]] | RungError]


async def _pump(
    context: Context,
    client: _Client,
    batches: _Batches,
    positions: list[int],
    render: Render,
) -> None:
    closing = asyncio.create_task(context.closing.wait())
    getting = asyncio.create_task(batches.get())
    heartbeat = context.settings.heartbeat
    try:
        while not closing.done():
            await asyncio.wait(
                (getting, closing),
                timeout=max(0.0, heartbeat - client.quiet_s),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if getting.done():
                batch = getting.result()
                if isinstance(batch, RungError):
                    raise batch
                index, records = batch
                for chunk in _chunks(index, records, positions, render):
                    await client.send(chunk)
                getting = asyncio.create_task(batches.get())
            if client.quiet_s >= heartbeat and not closing.done():
                await client.send(f"id: {_id_of(positions)}\n: still here\n\n".encode())
    finally:
        closing.cancel()
        getting.cancel()


def _chunks(
    index: int, records: Sequence[Record], positions: list[int], render: Render
) -> Iterator[bytes]:
    """Yield the bytes of a batch, made as they are taken."""
    chunk = bytearray()
    for record in records:
        positions[index] = record.position + 1
        frame = render(record)
        if frame is None:
            continue
        chunk += _bytes_of(frame, positions)
        if len(chunk) >= _CHUNK:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


def _bytes_of(frame: Frame, positions: Sequence[int]) -> bytes:
    lines = b"".join(b"data: " + line + b"\n" for line in frame.data.splitlines())
    return f"event: {frame.event}\nid: {_id_of(positions)}\n".encode() + lines + b"\n"


def _id_of(positions: Sequence[int]) -> str:
    return ".".join(map(str, positions))


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


@contextlib.asynccontextmanager
async def _merged(
    ledger: Ledger, sources: Sequence[Source], positions: Sequence[int]
) -> AsyncIterator[_Batches]:
    """Follow some partitions at once; at most one batch waits to be taken."""
    batches: _Batches = asyncio.Queue(maxsize=1)

    async def follow(index: int, source: Source, position: int) -> None:
        try:
            async for records in ledger.follow(source.topic, source.partition, position):
                await batches.put((index, records))
        except RungError as error:
            await batches.put(error)

    tasks = [
        asyncio.create_task(follow(index, source, position))
        for index, (source, position) in enumerate(zip(sources, positions, strict=True))
    ]
    try:
        yield batches
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def end_of(ledger: Ledger, sources: Sequence[Source]) -> list[int]:
    """Return where everything ends now, for a client that wants what is new alone."""
    return [await ledger.end(source.topic, source.partition) for source in sources]

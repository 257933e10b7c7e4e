"""Server-sent events, resumed after broken connections without gap or repetition."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from rung.client._http import Answer, HttpError
from rung.client._transport import Query, Transport

_SILENCE_S: Final = 60.0
"""A connection without even a heartbeat for this time is closed."""
_RETRY_S: Final = 1.0
_LINE_MAX: Final = 64 * 1024 * 1024


class ServerEvent(Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    event: str
    """An event's type, `metrics`, `log`, …"""
    id: str
    """Its position; a stream can be resumed behind it."""
    data: Any
    """The decoded JSON."""


class _Message:
    """A message that is being read."""

    def __init__(self) -> None:
        self.event = "message"
        self.data: list[str] = []

    def as_event(self, last_id: str) -> ServerEvent:
        """Return the event that it is."""
        return ServerEvent(event=self.event, id=last_id, data=_json("\n".join(self.data)))


async def follow(
    transport: Transport, path: str, query: Query | None = None, after: str | None = None
) -> AsyncGenerator[ServerEvent, None]:
    """Yield a stream's events for ever, reconnecting when the connection breaks.

    Args:
        transport: to the gateway.
        path: of the stream.
        query: its parameters.
        after: the id of the last event already seen.

    Raises:
        ClientError: the stream was refused, or the server did not answer within the time limit.
    """
    last = after
    while True:
        headers = {"Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = last
        try:
            async with transport.open(
                path, query=query, headers=headers, silence_s=_SILENCE_S
            ) as answer:
                async for seen, event in parse(_lines(answer)):
                    last = seen or last
                    if event is not None:
                        yield event
        except (HttpError, TimeoutError):
            pass  # the connection broke in the middle; it is resumed below
        await asyncio.sleep(_RETRY_S)


async def parse(lines: AsyncIterable[str]) -> AsyncIterator[tuple[str, ServerEvent | None]]:
    """Parse lines by the HTML standard; yield ids with their events.

    A message without data is no event, but its id counts: with it the server sends its position
    while no event concerns the client.
    """
    message = _Message()
    last_id = ""
    async for line in lines:
        if not line:
            yield last_id, message.as_event(last_id) if message.data else None
            message = _Message()
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                message.event = value
            case "data":
                message.data.append(value)
            case "id" if "\0" not in value:
                last_id = value
            case _:
                pass  # a comment, or `retry`


async def _lines(answer: Answer) -> AsyncIterator[str]:
    """Yield lines without their ends (LF, CR LF or CR)."""
    rest = b""
    async for chunk in answer.chunks():
        text = rest + chunk
        if b"\r" in text:
            held = b"\r" if text.endswith(b"\r") else b""
            text = (
                text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
            )
        *lines, rest = text.split(b"\n")
        if len(rest) > _LINE_MAX:
            raise HttpError("a line without an end")
        for line in lines:
            yield line.decode(errors="replace")


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text

"""A key-value server for one run: where Horovod's Gloo ranks leave their addresses for each other.

Three requests of HTTP: `PUT /scope/key` stores the body, `GET` returns it or 404 (the rank asks
again until it is there), `DELETE` says that a rank is done. What else is asked for is refused. It
lives in the first agent of a run, for as long as the run.

Whoever reaches the port may ask, so everything is bounded: connections of one peer and of all,
the time for a request, and the bytes that are kept.
"""

import contextlib
import socket
from http import HTTPStatus
from typing import Final

from aiohttp import web

from rung.runtime.http.connection import Connections
from rung.runtime.http.limits import Limits

_HEAD_BYTES_MAX: Final = 16 * 1024
_BODY_BYTES_MAX: Final = 1024**2
_KEPT_BYTES_MAX: Final = 64 * 1024**2
"""Of all keys and values; a rank leaves some hundred bytes for each of its connections."""
_ENTRY_BYTES: Final = 256
"""What an entry takes besides its key and its value."""
_PATIENCE_S: Final = 30.0
_SPARE: Final = 16
"""Connections of a peer beyond two for each rank, which asks one thing at a time."""


def limits_of(ranks: int) -> Limits:
    """Return what so many ranks may take; all may have one address, and then half is left."""
    of_peer = 2 * ranks + _SPARE
    return Limits(
        connections=2 * of_peer,
        connections_per_address=of_peer,
        head_s=_PATIENCE_S,
        head_bytes=_HEAD_BYTES_MAX,
        idle_s=_PATIENCE_S,
        progress_s=_PATIENCE_S,
    )


class KeyValues:
    """The server of one run."""

    def __init__(self, limits: Limits) -> None:
        """Keep nothing yet.

        Args:
            limits: of its connections.
        """
        self._values: dict[str, bytes] = {}
        self._kept_bytes = 0
        self._connections = Connections(limits, port="rendezvous")
        self._resources = contextlib.AsyncExitStack()

    async def open(self, host: str, port: int) -> None:
        """Listen at a port that was reserved."""
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.router.add_route("*", "/{key:.*}", self._answer)
        listener = socket.create_server((host, port))
        serving = self._connections.serve(app, [listener], shutdown_s=0.0)
        await self._resources.enter_async_context(serving)

    async def close(self) -> None:
        """Stop listening, and disconnect whoever asks."""
        await self._resources.aclose()

    async def _answer(self, request: web.Request) -> web.Response:
        status, body = HTTPStatus.OK, b""
        match request.method:
            case "PUT":
                status = await self._put(request)
            case "GET" if request.raw_path in self._values:
                body = self._values[request.raw_path]
            case "GET":
                status = HTTPStatus.NOT_FOUND
            case "DELETE":
                pass
            case _:
                status = HTTPStatus.METHOD_NOT_ALLOWED
        response = web.Response(status=status, body=body)
        response.force_close()
        return response

    async def _put(self, request: web.Request) -> HTTPStatus:
        if (request.content_length or 0) > _BODY_BYTES_MAX:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        key, value = request.raw_path, await request.read()
        before = self._values.get(key)
        grown = len(value) - len(before) if before is not None else _size_of(key, value)
        if self._kept_bytes + grown > _KEPT_BYTES_MAX:
            return HTTPStatus.INSUFFICIENT_STORAGE
        self._kept_bytes += grown
        self._values[key] = value
        return HTTPStatus.OK


def _size_of(key: str, value: bytes) -> int:
    return len(key) + len(value) + _ENTRY_BYTES

"""A key-value server for one run, over which Horovod's Gloo ranks exchange their addresses.

Three HTTP requests: `PUT /scope/key` stores the body, `GET` returns it or 404 (the rank polls
until it exists), `DELETE` announces that a rank is done. Other methods are refused. The first
agent of a run serves it for as long as the run lasts.

Any client that reaches the port may send requests, so everything is bounded: connections of one
peer and of all, the time for a request, and the stored bytes.
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
"""Limit of all keys and values; a rank stores some hundred bytes per connection."""
_ENTRY_BYTES: Final = 256
"""Overhead of an entry besides its key and value."""
_TIMEOUT_S: Final = 30.0
_SPARE: Final = 16
"""Connections of a peer beyond two for each rank, which sends one request at a time."""


def limits_of(ranks: int) -> Limits:
    """Return the limits for a number of ranks, all of which may have the same address."""
    of_peer = 2 * ranks + _SPARE
    return Limits(
        connections=2 * of_peer,
        connections_per_address=of_peer,
        head_s=_TIMEOUT_S,
        head_bytes=_HEAD_BYTES_MAX,
        idle_s=_TIMEOUT_S,
        progress_s=_TIMEOUT_S,
    )


class KeyValueStore:
    """The server of one run."""

    def __init__(self, limits: Limits) -> None:
        """Begin empty.

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
        """Stop listening, and disconnect the clients."""
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

"""A key-value server for one run: where Horovod's Gloo ranks leave their addresses for each other.

Three requests of HTTP: `PUT /scope/key` stores the body, `GET` returns it or 404 (the rank asks
again until it is there), `DELETE` says that a rank is done. What else is asked for is refused. It
lives in the first agent of a run, for as long as the run.
"""

import asyncio
import contextlib
from typing import Final

_HEAD_BYTES_MAX: Final = 16 * 1024
_BODY_BYTES_MAX: Final = 1024**2
_PATIENCE_S: Final = 30.0
_BROKEN: Final = (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
"""What a request brings about that is none, or that breaks off."""


class KeyValues:
    """The server of one run."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> None:
        """Listen at a port that was reserved."""
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=_HEAD_BYTES_MAX, reuse_address=True
        )

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(*_BROKEN):
            async with asyncio.timeout(_PATIENCE_S):
                writer.write(await self._answer(reader))
                await writer.drain()
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        fields = [line.partition(":") for line in head[1:]]
        size = sum(int(value) for name, _, value in fields if name.lower() == "content-length")
        if not 0 <= size <= _BODY_BYTES_MAX:
            return _response(413)
        body = await reader.readexactly(size)
        match method:
            case "PUT":
                self._values[path] = body
                return _response(200)
            case "GET" if path in self._values:
                return _response(200, self._values[path])
            case "GET":
                return _response(404)
            case "DELETE":
                return _response(200)
            case _:
                return _response(405)


_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 413: "Too Large"}


def _response(code: int, body: bytes = b"") -> bytes:
    head = f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body

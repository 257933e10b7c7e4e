"""The loopback redirection: a browser on this machine brings a code to `rung login` (RFC 8252)."""

import asyncio
import base64
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from rung.client import ClientError

PATH: Final = "/signed-in"
_HEAD_BYTES_MAX: Final = 64 * 1024
_DONE: Final = "You are signed in. Close this window and go back to the terminal."
_FAILED: Final = "This did not sign you in. Go back to the terminal."


class Drawn(NamedTuple):
    """What is drawn for one sign-in; the verifier leaves this machine with the code alone."""

    state: str
    nonce: str
    verifier: str

    @property
    def challenge(self) -> str:
        """By which the verifier is recognised (PKCE, S256)."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def draw() -> Drawn:
    """Return new ones."""
    return Drawn(*(secrets.token_urlsafe(32) for _ in range(3)))


class Loopback:
    """A server on a free port of the loopback interface that waits for one code."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._code: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.uri = ""
        """Where the browser is to come back to."""

    async def code(self) -> str:
        """Return the code that the browser brings.

        Raises:
            ClientError: the identity provider sent the browser back without one.
        """
        return await self._code

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of the browser."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await reader.readuntil(b"\r\n\r\n")
            status, text = self._take(head.split(b"\r\n")[0].decode("latin-1"))
            body = f"<!doctype html><title>Rung</title><p>{text}</p>".encode()
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\n"
                "Content-Security-Policy: default-src 'none'\r\nReferrer-Policy: no-referrer\r\n"
                "Connection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        writer.close()

    def _take(self, line: str) -> tuple[str, str]:
        """Take a code out of a request; other requests, such as for an icon, change nothing."""
        method, _, rest = line.partition(" ")
        url = urlsplit(rest.partition(" ")[0])
        if method != "GET" or url.path != PATH:
            return "404 Not Found", _FAILED
        query = parse_qs(url.query)
        state = query.get("state", [""])[0]
        if not secrets.compare_digest(state.encode(), self._state.encode()):
            return "400 Bad Request", _FAILED
        if self._code.done():
            return "400 Bad Request", _FAILED
        if "code" in query:
            self._code.set_result(query["code"][0])
            return "200 OK", _DONE
        why = query.get("error", ["no code"])[0]
        self._code.set_exception(ClientError(f"the identity provider did not sign you in: {why}"))
        return "400 Bad Request", _FAILED


@contextlib.asynccontextmanager
async def listening(state: str) -> AsyncIterator[Loopback]:
    """Wait for a code with this state while the context lasts."""
    waiting = Loopback(state)
    server = await asyncio.start_server(waiting.answer, "127.0.0.1", 0, limit=_HEAD_BYTES_MAX)
    waiting.uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{PATH}"
    try:
        yield waiting
    finally:
        server.close()

"""Receivers of webhooks on this machine, which behave as they are told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from aiohttp import web


class Got(NamedTuple):
    """A post that came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        """The event in it."""
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Receiver:
    """Keeps what comes, and answers 200 or as it is told."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.answer: Answer | None = None
        self.port = 0
        self._came = asyncio.Condition()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/hook"

    async def take(self, request: web.Request) -> web.StreamResponse:
        """Take a post."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        got = Got(request.path, headers, await request.read())
        async with self._came:
            self.got.append(got)
            self._came.notify_all()
        return await self.answer(request) if self.answer else web.Response()

    async def until(self, condition: Callable[[list[Got]], bool]) -> None:
        """Wait until a condition holds of what came."""
        async with self._came, asyncio.timeout(60):
            await self._came.wait_for(lambda: condition(self.got))


@contextlib.asynccontextmanager
async def receiving(port: int = 0) -> AsyncIterator[Receiver]:
    """Run a receiver."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", receiver.take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    receiver.port = runner.addresses[0][1]
    try:
        yield receiver
    finally:
        await runner.cleanup()

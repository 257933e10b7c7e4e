"""A server that answers what a test tells it to, on a real socket, in a thread of its own."""

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import msgspec
from aiohttp import web

TOKEN = "let-me-in"  # noqa: S105 - of a server that lives for one test


class Answer(NamedTuple):
    """One answer."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = {"Content-Type": "application/json"}
    drop: bool = False
    """Cut the connection after the body, in the middle of the answer."""


class Request(NamedTuple):
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    """Return an answer with a JSON body."""
    return Answer(
        status, msgspec.json.encode(value), {"Content-Type": "application/json", **headers}
    )


def problem(status: int, detail: str, **more: Any) -> Answer:
    """Return an answer with a problem document."""
    document = {
        "type": "urn:rung:problem:x",
        "title": "X",
        "status": status,
        "detail": detail,
        "instance": "/api/v1/x",
    }
    body = msgspec.json.encode(document | more)
    return Answer(status, body, {"Content-Type": "application/problem+json"})


class Scripted:
    """Answers each path with its answers in turn, the last one for ever; 404 elsewhere."""

    def __init__(self, answers: Mapping[str, Answer | list[Answer]] | None = None) -> None:
        self.answers: dict[str, deque[Answer]] = {}
        self.requests: list[Request] = []
        self.url = ""
        self._held: dict[str, tuple[str, int, threading.Event]] = {}
        self.token: str | None = TOKEN
        """What a request must bring; None: nothing."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        for path, found in (answers or {}).items():
            self.on(path, *(found if isinstance(found, list) else [found]))

    def on(self, path: str, *answers: Answer) -> None:
        """Say what a path below /api/v1 answers, with or without its method before it."""
        self.answers[path] = deque(answers)

    def hold(self, path: str, *, until: str, times: int) -> threading.Event:
        """Answer a path only once another was requested so often; the event says that it was."""
        self._held[path] = (until, times, threading.Event())
        return self._held[path][2]

    def requested(self, path: str) -> list[Request]:
        """Return the requests of a path."""
        return [request for request in self.requests if request.path == path]

    def listen(self, listener: socket.socket) -> None:
        """Serve on a socket besides."""
        self._run(web.SockSite(self._runner, listener).start())

    def __enter__(self) -> Self:
        """Serve on a free port."""
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *error: object) -> None:
        """Stop."""
        self._run(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix("/api/v1")
        self.requests.append(
            Request(
                request.method,
                path,
                dict(request.query),
                dict(request.headers),
                await request.read(),
            )
        )
        for until, times, freed in self._held.values():
            if len(self.requested(until)) >= times:
                freed.set()
        if path in self._held:
            await asyncio.to_thread(self._held[path][2].wait, 30)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _respond(problem(401, "a token is needed"))
        known = self.answers.get(f"{request.method} {path}") or self.answers.get(path)
        if not known:
            return _respond(problem(404, f"there is nothing at {path}"))
        answer = known[0] if len(known) == 1 else known.popleft()
        if not answer.drop:
            return _respond(answer)
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        if answer.body:
            await response.prepare(request)
            await response.write(answer.body)
        assert request.transport is not None
        request.transport.close()
        return response

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _respond(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

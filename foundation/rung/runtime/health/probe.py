"""Answers whoever asks a process how it does: `/healthz`, `/readyz` and `/metrics`.

    /healthz   200 while a new start would mend nothing; else 503. For liveness probes
    /readyz    200 when others may rely on it; else 503. For readiness probes and load balancers
    /metrics   everything of `rung.runtime.metrics.catalog`, for Prometheus

Both 503 say why. The answers are given in a thread with an event loop of its own, so that a
process whose event loop stands still is told from one that is slow: then the answer says, and the
log has once, what the loop was doing.

There is no token and no TLS: the address belongs to those who watch, `127.0.0.1:9464` on one
machine, the pod's network where network policies keep others out.
"""

import asyncio
import contextlib
import contextvars
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from rung.events import RungError
from rung.runtime.health.checks import VITALS, Vitals
from rung.runtime.http.connection import Connections
from rung.runtime.http.limits import Limits
from rung.runtime.metrics.catalog import METER

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STALLED_AFTER_S: Final = 4.0
"""So long may the event loop keep a question waiting; less than probes wait for an answer."""
LIMITS: Final = Limits(
    connections=64, connections_per_address=32, head_s=5.0, head_bytes=16 * 1024, progress_s=20.0
)
"""Its clients are a kubelet and Prometheus."""

_log = structlog.get_logger()


class ProbeRefused(RungError):
    """The probe's address cannot be listened on."""


@contextlib.asynccontextmanager
async def probe(
    address: str | None,
    *,
    service: str,
    vitals: Vitals = VITALS,
    stalled_after_s: float = STALLED_AFTER_S,
) -> AsyncIterator[None]:
    """Answer probes of this process while the context lasts.

    Args:
        address: `ADDRESS:PORT` to listen on; nobody is answered if not given.
        service: the process's name.
        vitals: its signs of life.
        stalled_after_s: how long the event loop may keep a probe waiting.

    Raises:
        ProbeRefused: nobody can listen there.
    """
    with vitals.measured(service):
        if address is None:
            yield
            return
        listener = _listen(address)
        answering = _Answering(listener, vitals, stalled_after_s)
        try:
            yield
        finally:
            await asyncio.to_thread(answering.end)


async def health(vitals: Vitals = VITALS) -> web.Response:
    """Return whether a new start would mend anything."""
    return _verdict(await vitals.health())


async def readiness(vitals: Vitals = VITALS) -> web.Response:
    """Return whether others may rely on the process."""
    return _verdict(await vitals.readiness())


async def metrics(vitals: Vitals = VITALS) -> web.Response:
    """Return all numbers as Prometheus reads them."""
    await vitals.look()
    return web.Response(body=METER.expose(), headers={"Content-Type": CONTENT_TYPE})


def _verdict(reasons: list[str]) -> web.Response:
    said: dict[str, Any] = (
        {"status": "failing", "reasons": reasons} if reasons else {"status": "ok"}
    )
    return web.Response(
        status=503 if reasons else 200,
        body=msgspec.json.encode(said),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise ProbeRefused(f"--probe {address}: give ADDRESS:PORT, such as 127.0.0.1:9464")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family)
    except OSError as error:
        raise ProbeRefused(f"--probe {address}: {error}") from error


class _Answering:
    """The thread that answers."""

    def __init__(self, listener: socket.socket, vitals: Vitals, stalled_after_s: float) -> None:
        self._listener = listener
        self._vitals = vitals
        self._stalled_after_s = stalled_after_s
        self._asked = asyncio.get_running_loop()
        self._asked_thread = threading.get_ident()
        self._told = False
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        run = contextvars.copy_context().run  # so that its log lines say whose they are
        self._thread = threading.Thread(target=run, args=[self._run], name="probe", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Answer no more."""
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        app = web.Application()
        for path, answer in (("/healthz", health), ("/readyz", readiness), ("/metrics", metrics)):
            app.router.add_get(path, self._handler(answer))
        connections = Connections(LIMITS, port="probe")
        app.middlewares.append(connections.watch)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        assert runner.server is not None
        try:
            with connections.serve(connections.http(runner.server), [self._listener]):
                await self._end.wait()
        finally:
            await runner.cleanup()

    def _handler(
        self, answer: Callable[[Vitals], Coroutine[Any, Any, web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp's signature
            return await self._ask(answer(self._vitals))

        return handle

    async def _ask(self, question: Coroutine[Any, Any, web.Response]) -> web.Response:
        """Have the process's own event loop answer, for only there its state holds still."""
        try:
            asked = asyncio.run_coroutine_threadsafe(question, self._asked)
        except RuntimeError:
            question.close()
            return _verdict(["the process ends"])
        try:
            async with asyncio.timeout(self._stalled_after_s):
                response = await asyncio.wrap_future(asked)
        except TimeoutError:
            return _verdict([self._stall()])
        self._told = False
        return response

    def _stall(self) -> str:
        frame = sys._current_frames().get(self._asked_thread)  # noqa: SLF001 - documented, in spite of its name
        stack = traceback.extract_stack(frame) if frame is not None else []
        if not self._told:
            self._told = True
            _log.error("the event loop stands still", stack="".join(traceback.format_list(stack)))
        place = f", at {stack[-1].filename}:{stack[-1].lineno}" if stack else ""
        return f"the event loop has not turned for {self._stalled_after_s:g} s{place}"

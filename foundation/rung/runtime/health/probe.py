"""The probe of a process: `/healthz`, `/readyz` and `/metrics` over HTTP.

    /healthz   liveness: 200, or 503 where a restart might help
    /readyz    readiness, also for load balancers: 200 or 503
    /metrics   everything of `rung.runtime.metrics.catalog`, for Prometheus

Each 503 has the reasons. The server runs in a thread with an event loop of its own, so that it
answers also while the process's event loop is blocked; then the answer has, and the log has once,
where the loop is.

There is no token and no TLS: the address is `127.0.0.1:9464` on one machine, or in a pod's network
that network policies protect.
"""

import asyncio
import contextlib
import contextvars
import functools
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from rung.events import RungError
from rung.runtime.health.checks import HEALTH, ProcessHealth
from rung.runtime.http.connection import Connections
from rung.runtime.http.limits import Limits
from rung.runtime.metrics.catalog import METER

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STALLED_AFTER_S: Final = 4.0
"""After this time without an answer the event loop counts as blocked; probes wait longer."""
LIMITS: Final = Limits(
    connections=64, connections_per_address=32, head_s=5.0, head_bytes=16 * 1024, progress_s=20.0
)
"""The clients are a kubelet and Prometheus."""

_log = structlog.get_logger()


class ProbeRefused(RungError):
    """The process cannot listen on the probe's address."""


@contextlib.asynccontextmanager
async def probe(
    address: str | None,
    *,
    service: str,
    health: ProcessHealth = HEALTH,
    stalled_after_s: float = STALLED_AFTER_S,
) -> AsyncIterator[None]:
    """Answer probes of this process while the context lasts.

    Args:
        address: `ADDRESS:PORT` to listen on; None: metrics are kept, and no probe is answered.
        service: the process's name.
        health: of the process.
        stalled_after_s: after which time the event loop counts as blocked.

    Raises:
        ProbeRefused: the address is invalid or in use.
    """
    with health.measured(service):
        if address is None:
            yield
            return
        listener = _listen(address)
        answering = _Answering(listener, health, stalled_after_s)
        try:
            yield
        finally:
            await asyncio.to_thread(answering.end)


async def metrics(health: ProcessHealth = HEALTH) -> web.Response:
    """Return all metrics in Prometheus' text format."""
    await health.refresh()
    return web.Response(body=METER.expose(), headers={"Content-Type": CONTENT_TYPE})


def _verdict(reasons: list[str]) -> web.Response:
    answer: dict[str, Any] = (
        {"status": "failing", "reasons": reasons} if reasons else {"status": "ok"}
    )
    return web.Response(
        status=503 if reasons else 200,
        body=msgspec.json.encode(answer),
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
    """The thread that answers probes."""

    def __init__(
        self, listener: socket.socket, health: ProcessHealth, stalled_after_s: float
    ) -> None:
        self._listener = listener
        self._health = health
        self._stalled_after_s = stalled_after_s
        self._process_loop = asyncio.get_running_loop()
        self._process_thread = threading.get_ident()
        self._logged = False
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        run = contextvars.copy_context().run  # for the fields of its log lines
        self._thread = threading.Thread(target=run, args=[self._run], name="probe", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread."""
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        app = web.Application()
        for path, answer in (
            ("/healthz", self._liveness),
            ("/readyz", self._readiness),
            ("/metrics", lambda: metrics(self._health)),
        ):
            app.router.add_get(path, functools.partial(self._answer, answer))
        connections = Connections(LIMITS, port="probe")
        async with connections.serve(app, [self._listener], shutdown_s=0.5):
            await self._end.wait()

    async def _liveness(self) -> web.Response:
        return _verdict(await self._health.liveness())

    async def _readiness(self) -> web.Response:
        return _verdict(await self._health.readiness())

    async def _answer(
        self,
        answer: Callable[[], Coroutine[Any, Any, web.Response]],
        request: web.Request,  # noqa: ARG002 - aiohttp's signature
    ) -> web.Response:
        """Run in the process's own event loop, the only one from which its state may be read."""
        answering = answer()
        try:
            running = asyncio.run_coroutine_threadsafe(answering, self._process_loop)
        except RuntimeError:
            answering.close()
            return _verdict(["the process ends"])
        try:
            async with asyncio.timeout(self._stalled_after_s):
                response = await asyncio.wrap_future(running)
        except TimeoutError:
            return _verdict([self._stall()])
        self._logged = False
        return response

    def _stall(self) -> str:
        frame = sys._current_frames().get(self._process_thread)  # noqa: SLF001 - documented, in spite of its name
        stack = traceback.extract_stack(frame) if frame is not None else []
        if not self._logged:
            self._logged = True
            _log.error("the event loop stands still", stack="".join(traceback.format_list(stack)))
        place = f", at {stack[-1].filename}:{stack[-1].lineno}" if stack else ""
        return f"the event loop has not turned for {self._stalled_after_s:g} s{place}"

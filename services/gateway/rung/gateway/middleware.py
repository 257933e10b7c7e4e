"""Counts, times, traces and logs every request.

A request begins a trace, or continues the one of its `traceparent`; the answer, what it writes
into the ledger and its log lines carry it. Metrics are labelled by the patterns of routes, and
unusual methods as one, so that no client can make Prometheus' series grow.
"""

import time
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from structlog.contextvars import bound_contextvars

from rung.runtime import tracing
from rung.runtime.http.connection import AUTHENTICATED
from rung.runtime.metrics import catalog
from rung.runtime.tracing import Trace

GONE: Final = 499
"""The status that is counted when the client went away before the answer."""
PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Requested every few seconds by programs: neither counted nor logged."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NAMES: Final = {"experiment_id": "experiment", "trial_id": "trial", "checkpoint_id": "checkpoint"}

_log = structlog.get_logger()


@web.middleware
async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Measure and log a request and its answer."""
    if request.path in PROBES:
        return await handler(request)
    began = Trace.begin(request.headers.get(tracing.HEADER))
    names = {ours: request.match_info.get(theirs) for theirs, ours in _NAMES.items()}
    started = time.perf_counter()
    status = GONE
    with (
        tracing.following(str(began)),
        bound_contextvars(**{name: value for name, value in names.items() if value}),
    ):
        try:
            response = await handler(request)
            status = response.status
            if not response.prepared:
                response.headers[tracing.HEADER] = str(began)
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            _note(request, status, time.perf_counter() - started)
    return response


async def send_trace(request: web.Request, response: web.StreamResponse) -> None:  # noqa: ARG001 - aiohttp's signature
    """Add the trace to a stream, whose head is sent before its handler returns."""
    if traceparent := tracing.current():
        response.headers[tracing.HEADER] = traceparent


def route_of(request: web.Request) -> str:
    """Return the pattern of a request's route."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "none"


def _note(request: web.Request, status: int, took_s: float) -> None:
    method = request.method if request.method in _METHODS else "other"
    route = route_of(request)
    catalog.HTTP_REQUESTS.labels(method, route, str(status)).inc()
    catalog.HTTP_SECONDS.labels(route).observe(took_s)
    # Without a token a client must not be able to fill the disk with lines.
    asked = method not in _READING and request.get(AUTHENTICATED, False)
    notable = asked or status >= 500
    say = _log.info if notable else _log.debug
    say("request", method=method, route=route, status=status, seconds=round(took_s, 4))

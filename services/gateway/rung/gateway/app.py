"""The gateway as an application: routes, authentication, the page, the projections."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from rung import api
from rung.gateway.auth import METRICS, check_host, check_token
from rung.gateway.context import CONTEXT, Context, Parts, reply
from rung.gateway.metrics import measured
from rung.gateway.middleware import observe, send_trace
from rung.gateway.openapi import make_openapi
from rung.gateway.problem import answer_problems
from rung.gateway.projections.read_models import ReadModels
from rung.gateway.requests.after import read_writes
from rung.gateway.routes import API, ROUTES
from rung.gateway.routes.installation import OPENAPI
from rung.gateway.settings import Settings
from rung.gateway.static import serve_page
from rung.ledger import Ledger
from rung.runtime import FactWriter
from rung.runtime.health import probe
from rung.runtime.health.checks import HEALTH
from rung.storage import ObjectStore

SOURCE: Final = "/rung/gateway"


def make_app(  # noqa: PLR0913 - the parts that it is composed of
    ledger: Ledger,
    store: ObjectStore,
    *,
    token: str,
    parts: Parts | None = None,
    settings: Settings | None = None,
    folder: Path | None = None,
) -> web.Application:
    """Return the gateway as an application; it follows the ledger once it starts.

    Args:
        ledger: read from, and appended to.
        store: of code, configurations and checkpoints.
        token: that clients send.
        parts: of other services; none if not given.
        settings: limits and time-outs; their defaults if not given.
        folder: where the projections' files lie; in a temporary one if not given.
    """
    settings = settings or Settings()
    app = web.Application(
        middlewares=[
            observe,
            answer_problems,
            check_host(settings.host_names),
            check_token(token),
            read_writes,
        ]
    )
    origin = f"gateway/{secrets.token_hex(8)}"
    app[CONTEXT] = Context(
        ledger=ledger,
        store=store,
        writer=FactWriter(ledger, source=SOURCE, origin=origin),
        models=ReadModels(ledger, folder),
        settings=settings,
        parts=parts or Parts(),
    )
    app[OPENAPI] = msgspec.json.encode(make_openapi())
    for route in ROUTES:
        app.router.add_route(route.method, API + route.path, route.handler)
    app.router.add_route("GET", "/healthz", show_health)
    app.router.add_route("GET", "/readyz", show_readiness)
    app.router.add_route("GET", METRICS, show_metrics)
    app.router.add_get("/", serve_page)
    app.router.add_get("/{path:(?!api/).+}", serve_page)
    app.cleanup_ctx.append(_follow_ledger)
    app.on_shutdown.append(_end_streams)
    app.on_response_prepare.append(_harden)
    app.on_response_prepare.append(send_trace)
    return app


async def show_health(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp's signature
    """Answer 503 where a restart would help; the reasons are on the probe's port alone."""
    return _health(await HEALTH.liveness())


async def show_readiness(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp's signature
    """Answer 503 until the projections are up to date and the ledger answers."""
    return _health(await HEALTH.readiness())


async def show_metrics(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp's signature
    """Show the metrics of this process."""
    return await probe.metrics()


def _health(reasons: list[str]) -> web.Response:
    if reasons:
        return reply(api.Health(status="failing"), status=503)
    return reply(api.Health(status="ok"))


async def _follow_ledger(app: web.Application) -> AsyncIterator[None]:
    context = app[CONTEXT]
    try:
        await context.models.start(wait_s=context.settings.start_timeout)
        with measured(context.models):
            yield
    finally:
        await context.models.close()


async def _end_streams(app: web.Application) -> None:
    app[CONTEXT].closing.set()
    app[CONTEXT].feeds.wake()


async def _harden(request: web.Request, response: web.StreamResponse) -> None:  # noqa: ARG001 - aiohttp's signature
    response.headers["Server"] = "rung"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"

"""The gateway as an application: routes, authentication, the page, the projections."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from aiohttp import web

from rung import api
from rung.gateway.access.authorization import authorize
from rung.gateway.auth import check_host
from rung.gateway.code_sweep import sweep_code
from rung.gateway.context import CONTEXT, Context, Parts, check_whole, context_of, reply
from rung.gateway.directory.asking import System
from rung.gateway.identity.authentication import METRICS, authenticate
from rung.gateway.identity.identity import IDENTITY, Identity
from rung.gateway.limit_watch import LimitWatch
from rung.gateway.metrics import measured
from rung.gateway.middleware import observe, send_trace
from rung.gateway.openapi.document import encode_openapi
from rung.gateway.problem import answer_problems
from rung.gateway.projections.read_models import ReadModels
from rung.gateway.requests.after import read_writes
from rung.gateway.requests.rate import limit_rate, send_rate
from rung.gateway.requests.read_trail import TRAIL, ReadTrail, require_trail, trace_read
from rung.gateway.requests.writes import name_actor
from rung.gateway.route import Handler, Route
from rung.gateway.routes import API, ROUTES
from rung.gateway.routes.installation import OPENAPI
from rung.gateway.scim import routes as scim
from rung.gateway.settings import Settings
from rung.gateway.static import read_page, serve_page
from rung.ledger import Ledger
from rung.runtime import FactWriter
from rung.runtime.health import probe
from rung.runtime.health.checks import HEALTH
from rung.runtime.retry import retry, supervise
from rung.secrets.master_key import MasterKey
from rung.secrets.secret_store import SecretStore
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
    publishes: bool = False,
    secrets_key: MasterKey | None = None,
) -> web.Application:
    """Return the gateway as an application; it follows the ledger once it starts.

    Args:
        ledger: read from, and appended to.
        store: of code, configurations and checkpoints.
        token: that clients send.
        parts: of other services; none if not given.
        settings: limits and time-outs; their defaults if not given.
        folder: where the projections' files lie; in a temporary one if not given.
        publishes: whether replicas publish copies of these files in the object store.
        secrets_key: encrypts secrets; without one, files that have some are refused.
    """
    assert token, "an empty token would let everybody in"
    settings = settings or Settings()
    trail = None if settings.read_trail is None else ReadTrail(settings.read_trail)
    origin = f"gateway/{secrets.token_hex(8)}"
    context = Context(
        ledger=ledger,
        store=store,
        writer=FactWriter(ledger, source=SOURCE, origin=origin),
        models=ReadModels(ledger, folder, store if publishes else None),
        settings=settings,
        parts=parts or Parts(),
        secrets=SecretStore(store, secrets_key) if secrets_key is not None else None,
    )
    app = web.Application(
        middlewares=[
            observe,
            answer_problems,
            check_host({*settings.host_names, *settings.identity.host_names}),
            authenticate(frozenset(API + route.path for route in ROUTES if route.open)),
            limit_rate(settings.rates),
            require_trail(trail),
            name_actor,
            authorize(
                context.directory,
                {(each.method, each.path): each for each in (*served(), *scim.ROUTES)},
            ),
            read_writes,
        ]
    )
    app[CONTEXT] = context
    app[IDENTITY] = Identity(System.of(context), settings.identity, token)
    if trail is not None:
        app[TRAIL] = trail
        app.on_response_prepare.append(trace_read)
        app.cleanup_ctx.append(_write_trail)
    app[OPENAPI] = encode_openapi
    for route in (*served(), *scim.ROUTES):
        handler = _complete(route.handler) if route.complete else route.handler
        app.router.add_route(route.method, route.path, handler)
    app.router.add_route("GET", "/healthz", show_health)
    app.router.add_route("GET", "/readyz", show_readiness)
    read_page()
    app.router.add_get("/", serve_page)
    app.router.add_get("/{path:(?!api/).+}", serve_page)
    app.cleanup_ctx.append(_follow_ledger)
    app.on_shutdown.append(_end_streams)
    app.on_response_prepare.append(_harden)
    app.on_response_prepare.append(send_trace)
    app.on_response_prepare.append(send_rate)
    return app


def served() -> list[Route]:
    """Return every operation that requires a token or is described, with its whole path."""
    metrics = Route("GET", METRICS, show_metrics, "Metrics", needs="cluster.view", about="cluster")
    return [*(route._replace(path=API + route.path) for route in ROUTES), metrics]


def _complete(handler: Handler) -> Handler:
    """Return a handler that answers once the projections are whole."""

    async def answer(request: web.Request) -> web.StreamResponse:
        check_whole(context_of(request).models)
        return await handler(request)

    return answer


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
        await retry(context.directory.start, "waiting for the directory")
        context.models.watch(context.directory.run())
        limits = LimitWatch(
            context.ledger,
            context.models,
            context.writer,
            after_s=context.settings.limits_after,
            every_s=context.settings.limits_every,
        )
        context.models.watch(supervise(limits.run, name="gateway-limits", follows=False))
        tasks = [
            asyncio.create_task(sweep_code(context)),
            asyncio.create_task(context.sight.watch()),
        ]
        with measured(context.models):
            async with app[IDENTITY].watching():
                yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await context.models.close()


async def _write_trail(app: web.Application) -> AsyncIterator[None]:
    with app[TRAIL].opened():
        yield


async def _end_streams(app: web.Application) -> None:
    app[CONTEXT].closing.set()
    app[CONTEXT].feeds.wake()


async def _harden(request: web.Request, response: web.StreamResponse) -> None:  # noqa: ARG001 - aiohttp's signature
    response.headers["Server"] = "rung"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"

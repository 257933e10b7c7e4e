"""Authentication: the Host header, and the bearer token.

A page elsewhere that has its own name resolve to 127.0.0.1 (DNS rebinding) sends that name as
`Host`, so only names of this server are answered. There is no CORS: no other page may read
anything. Everything under /api/ requires the token, except what describes the API itself; and so
does /metrics.
"""

import hmac
from collections.abc import Collection
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rung.gateway.problem import Problem
from rung.runtime.http.connection import AUTHENTICATED

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
METRICS: Final = "/metrics"
OPEN_PATHS: Final = frozenset({"/api/v1/openapi.json", "/api/v1/schema/experiment.json"})

_HOW: Final = (
    "send the header `Authorization: Bearer TOKEN`; the token is printed by `rung up` and lies in "
    "the file `token` of its data folder (~/.rung unless --data or RUNG_DATA says otherwise), "
    "readable by its owner alone; `rung up` makes a new one at each start (not with --keep-token)"
)


def check_host(hosts: Collection[str]) -> Middleware:
    """Return a middleware that answers requests to these host names and loopback only."""
    known = LOOPBACK | {host.lower() for host in hosts}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = _name_of(request.headers.get("Host", ""))
        if name not in known:
            raise Problem(
                421,
                "unknown-host",
                f"this server does not answer as {name[:100]!r}; use http://127.0.0.1:PORT, or "
                "start it with --host-name for every other name it goes by",
            )
        return await handler(request)

    return check


def _name_of(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


def check_token(token: str) -> Middleware:
    """Return a middleware that refuses requests without the token."""
    assert token, "an empty token would let everybody in"
    expected = token.encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        path = request.path
        if path == METRICS or (path.startswith("/api/") and path not in OPEN_PATHS):
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            sent = given.strip().encode("utf-8", "surrogateescape")
            if scheme.lower() != "bearer" or not hmac.compare_digest(sent, expected):
                raise Problem(
                    401,
                    "unauthorized",
                    f"{'the token is wrong' if given else 'no token was sent'}: {_HOW}",
                    headers={"WWW-Authenticate": 'Bearer realm="rung"'},
                )
            request[AUTHENTICATED] = True
        return await handler(request)

    return check

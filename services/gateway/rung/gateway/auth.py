"""The Host header: only names of this server are answered.

A page elsewhere that has its own name resolve to 127.0.0.1 (DNS rebinding) sends that name as
`Host`. There is no CORS: no other page may read anything. Who asks is in
`identity.authentication`.
"""

from collections.abc import Collection
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rung.gateway.problem import Problem

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


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

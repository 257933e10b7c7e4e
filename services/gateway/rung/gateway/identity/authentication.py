"""Authentication: the one place in which a request gets its principal.

A request is sent with a token (`Authorization: Bearer`) or, by the page, with the cookie of a
session. The token that the server was started with is the user `admin`, so that one person needs
no sign-in. A principal with `user.impersonate` may name another user in `Rung-On-Behalf-Of`: then
only what both may is done, and both are on record.

What is answered without: the page, whose files hold no secrets, the routes that are `open`, and
probes.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Collection
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import structs

from rung.gateway.directory.asking import now_ms
from rung.gateway.identity import secret
from rung.gateway.identity.cookies import check_origin
from rung.gateway.identity.identity import IDENTITY, Identity
from rung.gateway.identity.principal import ADMIN, PRINCIPAL, ROOT, Principal
from rung.gateway.problem import Problem
from rung.gateway.scim.errors import is_scim
from rung.runtime.http.connection import AUTHENTICATED

METRICS: Final = "/metrics"
ON_BEHALF_OF: Final = "Rung-On-Behalf-Of"

UNKNOWN_S: Final = 1.0
"""How long a request with a secret that is not known waits for it to become so."""

_HOW: Final = (
    "sign in with `rung login`, or send the header `Authorization: Bearer TOKEN`; on one machine"
    " the token is printed by `rung up` and lies in the file `token` of its data folder (~/.rung"
    " unless --data or RUNG_DATA says otherwise), readable by its owner alone; `rung up` makes a"
    " new one at each start (not with --keep-token)"
)


def authenticate(open_paths: Collection[str]) -> Middleware:
    """Return a middleware that gives each request its principal, or refuses it.

    Args:
        open_paths: paths that are answered to everybody.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        path = request.path
        guarded = path == METRICS or path.startswith("/api/") or is_scim(path)
        if path in open_paths or not guarded:
            return await handler(request)
        principal = await principal_of(request)
        request[PRINCIPAL] = principal
        request[AUTHENTICATED] = True
        identity = request.app[IDENTITY]
        if principal.via == ROOT and principal.on_behalf_of is None:
            return await handler(request)
        identity.uses.note(principal.via)
        with identity.open_requests.including(request, principal):
            return await handler(request)

    return check


async def principal_of(request: web.Request) -> Principal:
    """Return who sent a request.

    Raises:
        Problem: with none, or with one that is not valid.
    """
    identity = request.app[IDENTITY]
    header = request.headers.get("Authorization")
    found: Principal | None
    if header is None:
        found = await _of_cookie(request, identity)
    else:
        scheme, _, given = header.partition(" ")
        sent = given.strip()
        if scheme.lower() != "bearer" or not sent:
            raise _refused("no token was sent")
        encoded = sent.encode("utf-8", "surrogateescape")
        is_root = hmac.compare_digest(encoded, identity.root)
        found = ADMIN if is_root else await _of_secret(identity, sent)
        if found is None:
            raise _refused("the token is wrong, revoked or expired")
    return _acting(request, identity, found)


async def _of_cookie(request: web.Request, identity: Identity) -> Principal:
    """Return whose session the request's cookie is."""
    sent = identity.cookies.session_of(request)
    if sent is None:
        raise _refused("no token was sent")
    found = await _of_secret(identity, sent)
    if found is None:
        raise _refused("the session has ended")
    check_origin(request)
    return found


async def _of_secret(identity: Identity, sent: str) -> Principal | None:
    """Return whose a secret is.

    One that is not known may have been issued by another replica a moment ago.
    """
    if not secret.is_secret(sent):
        return None
    directory, digest = identity.system.directory, secret.digest_of(sent)

    def find() -> Principal | None:
        return directory.principal_of_token(digest, now_ms=now_ms())

    if find() is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNKNOWN_S):
                await directory.until(lambda: find() is not None)
    return find()


def _acting(request: web.Request, identity: Identity, principal: Principal) -> Principal:
    """Return the principal, for the user whom the request names."""
    named = request.headers.get(ON_BEHALF_OF)
    if named is None:
        return principal
    directory = identity.system.directory
    other = directory.user_by_name(named) or directory.state.users.get(named)
    if "user.impersonate" not in directory.permissions(principal) or principal.via == ROOT:
        raise Problem(
            403,
            "forbidden",
            "to act for somebody else needs the permission user.impersonate, and a token of your"
            " own; the role cluster-admin has it",
        )
    if other is None or not other.active:
        raise Problem(403, "forbidden", f"{ON_BEHALF_OF}: there is no active user of this name")
    return structs.replace(principal, on_behalf_of=other.id)


def _refused(why: str) -> Problem:
    headers = {"WWW-Authenticate": 'Bearer realm="rung"'}
    return Problem(401, "unauthorized", f"{why}: {_HOW}", headers=headers)

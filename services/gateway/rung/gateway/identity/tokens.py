"""Tokens: secrets for programs, limited in what they may, where, and for how long."""

from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta, Struct

from rung import api, rights
from rung.events.changes import (
    Change,
    IssueToken,
    RevokeToken,
    RevokeTokens,
    RotateToken,
    SetPassword,
)
from rung.gateway.access.authorization import forbidden
from rung.gateway.context import reply
from rung.gateway.directory.asking import Refused, now_ms
from rung.gateway.directory.state import Token, User, Workspace
from rung.gateway.identity import secret
from rung.gateway.identity.identity import IDENTITY, Identity
from rung.gateway.identity.passwords import BadPassword
from rung.gateway.identity.principal import PRINCIPAL, Principal
from rung.gateway.problem import Problem, not_found
from rung.gateway.requests.json_body import read_record
from rung.gateway.requests.query import read_query
from rung.gateway.route import Body, Route
from rung.gateway.timestamp import timestamp

SCOPES: Final[dict[str, frozenset[str]]] = {
    "read": rights.ROLES["auditor"].permissions,
    "provision": rights.ROLES["provisioner"].permissions,
    "people": frozenset({"user.view", "user.edit", "group.view", "group.edit"}),
}
"""Names for scopes that are asked for often."""
BEFORE: Final = "(before rotation)"
"""At the end of the name of a token that has the secret which another had before."""
_DAY_MS: Final = 24 * 3600 * 1000


class TokenQuery(Struct, forbid_unknown_fields=True):
    """Whose tokens."""

    user: Annotated[str, Meta(max_length=200, description="name or id; absent: one's own")] = ""


async def list_tokens(request: web.Request) -> web.Response:
    """List one's tokens and sessions, or those of another user."""
    query = read_query(request, TokenQuery)
    identity, principal = request.app[IDENTITY], request[PRINCIPAL]
    user = _own(identity, principal)
    if query.user:
        user = _user(identity, principal, query.user)
        _check_may_see(identity, principal, user)
    directory, now = identity.system.directory, now_ms()
    valid = [
        it for it in directory.tokens_of(user.id) if it.expires_ms is None or it.expires_ms > now
    ]
    valid.sort(key=lambda it: (-it.created_ms, it.id))
    return reply(api.TokenList(items=[_shown(identity, principal, it) for it in valid]))


async def create_token(request: web.Request) -> web.Response:
    """Create a token of one's own, or of a service account."""
    wanted = await read_record(request, api.TokenWanted)
    identity, principal = request.app[IDENTITY], request[PRINCIPAL]
    user = _user(identity, principal, wanted.user) if wanted.user else _own(identity, principal)
    drawn, token_id = secret.draw(), identity.system.draw_id()
    change = IssueToken(
        token_id=token_id,
        user_id=user.id,
        digest=secret.digest_of(drawn),
        kind="service" if user.kind == "service" else "personal",
        name=wanted.name,
        scope=_scope(wanted.scope),
        workspace_id=_workspace(identity, principal, wanted.workspace),
        expires_ms=_expiry(wanted.expires_days),
    )
    await _changed(identity, change, principal)
    token = identity.system.directory.state.tokens[token_id]
    shown = _shown(identity, principal, token)
    return reply(api.TokenIssued(token=shown, secret=drawn), status=201)


async def rotate_token(request: web.Request) -> web.Response:
    """Give a token another secret; the one before may stay valid for a while."""
    wanted = await read_record(request, api.TokenRotation)
    identity, principal = request.app[IDENTITY], request[PRINCIPAL]
    token = _token(request)
    if token.kind == "session":
        raise Problem(409, "a-session", "a session cannot be rotated; sign in again")
    drawn, digest, expires_ms = secret.draw(), token.digest, token.expires_ms
    change = RotateToken(
        token_id=token.id,
        digest=secret.digest_of(drawn),
        expires_ms=_expiry(wanted.expires_days),
    )
    await _changed(identity, change, principal)
    before_until = None
    if wanted.overlap_s:
        before_until = now_ms() + wanted.overlap_s * 1000
        before_until = before_until if expires_ms is None else min(before_until, expires_ms)
        await _keep_before(identity, token, digest, before_until)
    return reply(
        api.TokenIssued(
            token=_shown(identity, principal, identity.system.directory.state.tokens[token.id]),
            secret=drawn,
            before_until=None if before_until is None else timestamp(before_until),
        )
    )


async def _keep_before(identity: Identity, token: Token, digest: str, until_ms: int) -> None:
    """Have the secret that a token had be a token of its own for a while.

    So it is seen whether the secret is still in use somewhere, and it can be revoked early.
    Between the two changes a request with it waits, as with any secret that is not known yet.
    """
    change = IssueToken(
        token_id=identity.system.draw_id(),
        user_id=token.user_id,
        digest=digest,
        kind=token.kind,
        name=f"{token.name} {BEFORE}",
        scope=token.scope,
        workspace_id=token.workspace_id,
        expires_ms=until_ms,
    )
    await identity.system.attempt(change)


async def revoke_token(request: web.Request) -> web.Response:
    """Revoke a token or session, at once and everywhere."""
    identity, token = request.app[IDENTITY], _token(request)
    await _changed(identity, RevokeToken(token_id=token.id), request[PRINCIPAL])
    return reply(api.TokenRevoked(id=token.id))


async def set_password(request: web.Request) -> web.Response:
    """Set one's own password, or that of another user; all sessions of that user end."""
    wanted = await read_record(request, api.PasswordWanted)
    identity, principal = request.app[IDENTITY], request[PRINCIPAL]
    user = _user(identity, principal, request.match_info["user"])
    known = identity.system.directory.password_hash(user.id)
    if user.id == principal.user_id and known is not None:
        await _check_current(identity, known, wanted.current)
    try:
        hashed = await identity.passwords.hash(wanted.password)
    except BadPassword as error:
        item = api.ProblemItem(path="password", message=str(error))
        raise Problem(422, "invalid", f"password: {error}", errors=[item]) from error
    await _changed(identity, SetPassword(user_id=user.id, password_hash=hashed), principal)
    await identity.system.attempt(RevokeTokens(user_id=user.id, kind="session"))
    return reply(api.PasswordSet(user=user.name))


async def _check_current(identity: Identity, known: str, current: str | None) -> None:
    """Refuse whoever found a browser signed in, and does not know the password."""
    if current is None or not await identity.passwords.verify(known, current):
        item = api.ProblemItem(path="current", message="is not your present password")
        raise Problem(
            403, "wrong-password", "current: is not your present password", errors=[item]
        )


async def _changed(identity: Identity, change: Change, principal: Principal) -> None:
    try:
        await identity.system.change(change, principal)
    except Refused as refused:
        raise refused.problem() from refused


def _shown(identity: Identity, principal: Principal, token: Token) -> api.Token:
    state = identity.system.directory.state
    workspace = None if token.workspace_id is None else state.workspaces.get(token.workspace_id)
    return api.Token(
        id=token.id,
        kind=token.kind,
        name=token.name,
        user=state.users[token.user_id].name,
        scope=token.scope,
        workspace=token.workspace_id if workspace is None else workspace.name,
        created_at=timestamp(token.created_ms),
        expires_at=None if token.expires_ms is None else timestamp(token.expires_ms),
        used_at=None if token.used_ms is None else timestamp(token.used_ms),
        current=principal.via == token.id,
    )


def _scope(names: list[str] | None) -> list[str] | None:
    if names is None:
        return None
    return sorted({each for name in names for each in SCOPES.get(name, frozenset({name}))})


def _expiry(days: int | None) -> int | None:
    return None if days is None else now_ms() + days * _DAY_MS


def _workspace(identity: Identity, principal: Principal, name: str | None) -> str | None:
    """Return the id of a workspace that who asks may see.

    Raises:
        Problem: there is none.
    """
    if name is None:
        return None
    directory = identity.system.directory
    known = name in directory.state.workspaces
    found = name if known else directory.id_of(Workspace.TABLE, name)
    if found is None or "workspace.view" not in directory.permissions(principal, found):
        raise not_found("workspace", name, "`rung workspace list` lists those that you may see")
    return found


def _own(identity: Identity, principal: Principal) -> User:
    return identity.system.directory.state.users[principal.on_behalf_of or principal.user_id]


def _user(identity: Identity, principal: Principal, name: str) -> User:
    """Return a user, or a service account that who asks may see.

    Raises:
        Problem: there is none.
    """
    directory = identity.system.directory
    found = directory.user_by_name(name) or directory.state.users.get(name)
    if found is None or not (
        found.kind == "person"
        or found.id in {principal.user_id, principal.on_behalf_of}
        or "service.view" in directory.permissions(principal, found.workspace_id)
    ):
        raise not_found("user", name, "`rung user list` lists them")
    return found


def _check_may_see(identity: Identity, principal: Principal, user: User) -> None:
    directory = identity.system.directory
    may = directory.permissions(principal)
    if user.id in {principal.user_id, principal.on_behalf_of} or "token.view" in may:
        return
    of_service = directory.permissions(principal, user.workspace_id)
    if user.kind != "service" or "service.view" not in of_service:
        raise forbidden("token.view", "to see tokens of others", in_cluster=True)


def _token(request: web.Request) -> Token:
    """Return the token that the path names, by its id, or the name of one of one's own.

    Raises:
        Problem: there is none that who asks may see, or there are several of the name.
    """
    identity, principal = request.app[IDENTITY], request[PRINCIPAL]
    name, directory = request.match_info["token"], identity.system.directory
    hint = "`rung token list` lists them"
    token = directory.state.tokens.get(name)
    if token is None:
        own = directory.tokens_of(_own(identity, principal).id)
        named = [it for it in own if it.name == name]
        if len(named) > 1:
            ids = " or ".join(it.id for it in named)
            raise Problem(409, "ambiguous", f"you have several tokens {name!r}: give {ids}")
        if not named:
            raise not_found("token", name, hint)
        return named[0]
    try:
        _check_may_see(identity, principal, directory.state.users[token.user_id])
    except Problem:
        raise not_found("token", name, hint) from None
    return token


_JSON: Final = "application/json"
ROUTES: Final = (
    Route(
        "GET",
        "/tokens",
        list_tokens,
        "List tokens and sessions",
        api.TokenList,
        query=TokenQuery,
        problems=(403, 404),
    ),
    Route(
        "POST",
        "/tokens",
        create_token,
        "Create a token",
        api.TokenIssued,
        status=201,
        body=Body(_JSON, record=api.TokenWanted),
        problems=(403, 404, 409, 413, 415, 422),
    ),
    Route(
        "POST",
        "/tokens/{token}/rotate",
        rotate_token,
        "Give a token another secret",
        api.TokenIssued,
        body=Body(_JSON, record=api.TokenRotation),
        problems=(403, 404, 409, 413, 415, 422),
    ),
    Route(
        "POST",
        "/tokens/{token}/revoke",
        revoke_token,
        "Revoke a token",
        api.TokenRevoked,
        problems=(403, 404, 409),
    ),
    Route(
        "POST",
        "/users/{user}/password",
        set_password,
        "Set a password",
        api.PasswordSet,
        body=Body(_JSON, record=api.PasswordWanted),
        problems=(403, 404, 409, 413, 415, 422),
    ),
)

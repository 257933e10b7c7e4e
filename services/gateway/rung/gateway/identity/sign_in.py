"""Signing in and out: with a password, or by the identity provider.

    page        /auth/start  ─▶ provider ─▶ /auth/callback ─▶ session in a cookie
    program     /auth/loopback ─▶ browser, provider ─▶ program ─▶ /auth/code ─▶ session as a token
    terminal    /auth/device ─▶ any browser, provider ╌╌ /auth/device/token ─▶ session as a token

The page's state, nonce and verifier are in a cookie of the browser that began, so any replica can
answer the callback, and nobody else's browser can bring its code. A program draws its own; its
verifier comes with the code, so that a code without it, or with another, is worth nothing.

Why somebody is not let in is in the log. They are told what they can do about it, and nothing by
which names could be guessed.
"""

import base64
import hashlib
import hmac
import re
import secrets
import time
from typing import Annotated, Final, NoReturn

import structlog
import yarl
from aiohttp import web
from msgspec import Meta, Struct

from rung import api
from rung.events.changes import RevokeToken
from rung.gateway.context import reply
from rung.gateway.directory.asking import Refused
from rung.gateway.directory.state import User
from rung.gateway.identity.attempts import keys_of
from rung.gateway.identity.authentication import principal_of
from rung.gateway.identity.cookies import PendingSignIn, check_origin
from rung.gateway.identity.identity import IDENTITY, Identity
from rung.gateway.identity.oidc.accounts import user_of
from rung.gateway.identity.oidc.id_token import Claims
from rung.gateway.identity.oidc.provider import (
    Pending,
    Provider,
    ProviderUnavailable,
    SignInRefused,
    is_loopback,
)
from rung.gateway.identity.principal import PRINCIPAL, ROOT
from rung.gateway.identity.sessions import Session, begin_session
from rung.gateway.problem import Problem, bad_parameter, not_found, unavailable
from rung.gateway.requests.json_body import read_record
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.route import Body, Route
from rung.gateway.timestamp import timestamp

CALLBACK: Final = "/api/v1/auth/callback"
_NEXT: Final = re.compile(r"/[A-Za-z0-9/_.~%?=&:+*<>-]{0,500}")
"""A view of the page, behind its `#`; so nobody is ever sent to another site."""
_NO_SIGN_IN: Final = (
    "the name or the password is wrong, or the account has no password or is not active"
)

_log = structlog.get_logger()


class StartQuery(Struct, forbid_unknown_fields=True):
    """Where the page goes on."""

    next: Annotated[str, Meta(max_length=500, description="view of the page")] = "/"


class CallbackQuery(Struct):
    """With what the identity provider sends the browser back, among other things."""

    code: str = ""
    state: str = ""
    error: str = ""
    iss: str = ""


async def show_sign_in_methods(request: web.Request) -> web.Response:
    """Show how one signs in here, and who has."""
    read_query(request, NoQuery)
    identity = request.app[IDENTITY]
    settings = identity.settings.provider
    directory = identity.system.directory
    try:
        principal = await principal_of(request)
        user, held = principal.name, directory.permissions(principal)
    except Problem:
        user, held = None, frozenset()
    users = directory.state.users.values()
    return reply(
        api.SignInMethods(
            passwords=identity.settings.passwords and any(it.password_hash for it in users),
            provider=None if settings is None else settings.name,
            device_codes=settings is not None,
            user=user,
            permissions=sorted(held),
        )
    )


async def sign_in_with_password(request: web.Request) -> web.Response:
    """Sign in with the password of a local account."""
    wanted = await read_record(request, api.PasswordSignIn)
    identity = request.app[IDENTITY]
    if wanted.cookie:
        check_origin(request)
    if not identity.settings.passwords:
        raise Problem(403, "no-passwords", "this server has no passwords; sign in another way")
    keys = keys_of(wanted.name, request.remote or "")
    wait_s = identity.attempts.wait_s(keys, time.monotonic())
    if wait_s > 0:
        seconds = int(wait_s) + 1
        raise Problem(
            429,
            "too-many-attempts",
            f"too many failed sign-ins; try again in {seconds} s",
            headers={"Retry-After": str(seconds)},
        )
    # Counted before it is known to fail, so that attempts at one time are counted as well.
    identity.attempts.failed(keys, time.monotonic())
    directory = identity.system.directory
    user = directory.user_by_name(wanted.name)
    expected = None if user is None else directory.password_hash(user.id)
    if not await identity.passwords.verify(expected, wanted.password) or user is None:
        _log.warning("sign-in failed", name=wanted.name[:200], address=request.remote)
        raise _unauthorized(_NO_SIGN_IN)
    identity.attempts.succeeded(keys)
    return await _signed_in(identity, user, client=wanted.client, cookie=wanted.cookie)


async def start_sign_in(request: web.Request) -> web.StreamResponse:
    """Send the browser to the identity provider."""
    query = read_query(request, StartQuery)
    if _NEXT.fullmatch(query.next) is None:
        raise bad_parameter("next", "must be a view of the page, such as /x/k3f9x2ma")
    identity, provider = request.app[IDENTITY], _provider(request)
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    digest = hashlib.sha256(verifier.encode()).digest()
    try:
        url = await provider.authorization_url(
            provider.page,
            redirect_uri=_callback(identity),
            state=state,
            nonce=nonce,
            challenge=base64.urlsafe_b64encode(digest).decode().rstrip("="),
        )
    except ProviderUnavailable as error:
        _log.warning("identity provider unavailable", reason=str(error))
        return _to_page("/sign-in/unavailable")
    response = _redirection(url)
    identity.cookies.set_pending(response, PendingSignIn(state, nonce, verifier, query.next))
    return response


async def finish_sign_in(request: web.Request) -> web.StreamResponse:
    """Take the browser back from the identity provider, with a session if it has signed in."""
    query = CallbackQuery(
        **{name: request.query.get(name, "") for name in CallbackQuery.__struct_fields__}
    )
    identity, provider = request.app[IDENTITY], _provider(request)
    pending = identity.cookies.pending_of(request)
    session: Session | None = None
    if pending is None or not _same(query.state, pending.state):
        where = "/sign-in/expired"
    elif query.error or not query.code or query.iss not in {"", provider.settings.issuer}:
        _log.warning("sign-in failed", reason=query.error[:200] or "no code of this one")
        where = "/sign-in/refused"
    else:
        try:
            claims = await provider.redeem(
                provider.page,
                code=query.code,
                verifier=pending.verifier,
                redirect_uri=_callback(identity),
                nonce=pending.nonce,
            )
            session, _ = await _session_of(identity, claims, "page")
            where = pending.next if _NEXT.fullmatch(pending.next) else "/"
        except (SignInRefused, Refused) as error:
            _log.warning("sign-in failed", reason=str(error))
            where = "/sign-in/refused"
        except ProviderUnavailable as error:
            _log.warning("identity provider unavailable", reason=str(error))
            where = "/sign-in/unavailable"
    response = _to_page(where)
    identity.cookies.forget_pending(response)
    if session is not None:
        identity.cookies.set_session(response, session.secret, lasts_s=session.lasts_s)
    return response


async def show_sign_in_address(request: web.Request) -> web.Response:
    """Show where a browser signs in for a program on its machine."""
    wanted = await read_record(request, api.LoopbackSignIn)
    provider = _provider(request)
    _check_loopback(wanted.redirect_uri)
    try:
        url = await provider.authorization_url(
            provider.cli,
            redirect_uri=wanted.redirect_uri,
            state=wanted.state,
            nonce=wanted.nonce,
            challenge=wanted.code_challenge,
        )
    except ProviderUnavailable as error:
        raise unavailable(str(error)) from error
    return reply(api.SignInAddress(url=url))


async def sign_in_with_code(request: web.Request) -> web.Response:
    """Sign in with the code that the browser brought to a program."""
    wanted = await read_record(request, api.CodeSignIn)
    identity, provider = request.app[IDENTITY], _provider(request)
    _check_loopback(wanted.redirect_uri)
    try:
        claims = await provider.redeem(
            provider.cli,
            code=wanted.code,
            verifier=wanted.code_verifier,
            redirect_uri=wanted.redirect_uri,
            nonce=wanted.nonce,
        )
        return await _token_of(identity, claims, wanted.client)
    except (SignInRefused, Refused, ProviderUnavailable) as error:
        _refuse(error)


async def begin_device_sign_in(request: web.Request) -> web.Response:
    """Give a code that somebody enters in any browser."""
    try:
        code = await _provider(request).begin_device()
    except (SignInRefused, ProviderUnavailable) as error:
        _refuse(error)
    return reply(
        api.DeviceCode(
            device_code=code.device_code,
            user_code=code.user_code,
            verification_uri=code.verification_uri,
            verification_uri_complete=code.verification_uri_complete,
            expires_s=code.expires_in,
            interval_s=code.interval,
        )
    )


async def sign_in_with_device_code(request: web.Request) -> web.Response:
    """Sign in with a device code, once somebody has entered it; 202 until then."""
    wanted = await read_record(request, api.DeviceSignIn)
    identity, provider = request.app[IDENTITY], _provider(request)
    try:
        found = await provider.poll_device(wanted.device_code)
        if isinstance(found, Pending):
            return reply(api.DevicePending(interval_s=5 if found.slower else 0), status=202)
        return await _token_of(identity, found, wanted.client)
    except (SignInRefused, Refused, ProviderUnavailable) as error:
        _refuse(error)


async def sign_out(request: web.Request) -> web.Response:
    """End the session, or revoke the token, with which this is sent."""
    identity, principal = request.app[IDENTITY], request[PRINCIPAL]
    if principal.via == ROOT:
        raise Problem(
            409,
            "not-a-session",
            "this is the token that the server was started with; it ends when that is stopped",
        )
    await identity.system.attempt(RevokeToken(token_id=principal.via))
    response = reply(api.SignedOut(token_id=principal.via))
    identity.cookies.forget_session(response)
    return response


async def _session_of(identity: Identity, claims: Claims, client: str) -> tuple[Session, User]:
    user = await user_of(identity.system, claims)
    hours = identity.settings.session_hours
    return await begin_session(identity.system, user, hours=hours, client=client), user


async def _token_of(identity: Identity, claims: Claims, client: str) -> web.Response:
    session, user = await _session_of(identity, claims, client)
    return _session_reply(session, user, cookie=False)


async def _signed_in(identity: Identity, user: User, *, client: str, cookie: bool) -> web.Response:
    hours = identity.settings.session_hours
    try:
        session = await begin_session(
            identity.system, user, hours=hours, client="page" if cookie else client
        )
    except Refused as error:
        raise _unauthorized(_NO_SIGN_IN) from error
    response = _session_reply(session, user, cookie=cookie)
    if cookie:
        identity.cookies.set_session(response, session.secret, lasts_s=session.lasts_s)
    return response


def _session_reply(session: Session, user: User, *, cookie: bool) -> web.Response:
    return reply(
        api.SignedIn(
            user=user.name,
            token=None if cookie else session.secret,
            token_id=session.token_id,
            expires_at=timestamp(session.expires_ms),
        )
    )


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _provider(request: web.Request) -> Provider:
    provider = request.app[IDENTITY].provider
    if provider is None:
        raise not_found("identity provider", "", "sign in with a password, or a token")
    return provider


def _callback(identity: Identity) -> str:
    assert identity.settings.public_url is not None, "checked with the settings"
    return identity.settings.public_url.rstrip("/") + CALLBACK


def _check_loopback(uri: str) -> None:
    """Refuse a redirection to anywhere but the machine of the program that asks."""
    try:
        parsed = yarl.URL(uri)
        safe = (
            parsed.scheme == "http"
            and parsed.host is not None
            and is_loopback(parsed.host)
            and parsed.user is None
            and not parsed.query_string
            and not parsed.fragment
        )
    except ValueError:
        safe = False
    if not safe:
        raise bad_parameter("redirect_uri", "must be http://127.0.0.1:PORT/… of your machine")


def _to_page(view: str) -> web.Response:
    return _redirection(f"/#{view}")


def _redirection(url: str) -> web.Response:
    headers = {"Location": url, "Cache-Control": "no-store", "Content-Type": "text/plain"}
    return web.Response(status=303, headers=headers)


def _refuse(error: SignInRefused | Refused | ProviderUnavailable) -> NoReturn:
    if isinstance(error, ProviderUnavailable):
        raise unavailable(str(error)) from error
    _log.warning("sign-in failed", reason=str(error))
    raise _unauthorized(str(error)) from error


def _unauthorized(detail: str) -> Problem:
    headers = {"WWW-Authenticate": 'Bearer realm="rung"'}
    return Problem(401, "unauthorized", detail, headers=headers)


_JSON: Final = "application/json"
ROUTES: Final = (
    Route(
        "GET",
        "/auth/methods",
        show_sign_in_methods,
        "How one signs in here",
        api.SignInMethods,
        about="anybody",
    ),
    Route(
        "POST",
        "/auth/password",
        sign_in_with_password,
        "Sign in with a password",
        api.SignedIn,
        body=Body(_JSON, record=api.PasswordSignIn),
        problems=(401, 403, 413, 415, 422, 429),
        about="anybody",
    ),
    Route(
        "GET",
        "/auth/start",
        start_sign_in,
        "Go to the identity provider",
        media_type="text/plain",
        status=303,
        query=StartQuery,
        problems=(404,),
        about="anybody",
    ),
    Route(
        "GET",
        "/auth/callback",
        finish_sign_in,
        "Come back from the identity provider",
        media_type="text/plain",
        status=303,
        query=CallbackQuery,
        problems=(404,),
        about="anybody",
    ),
    Route(
        "POST",
        "/auth/loopback",
        show_sign_in_address,
        "Where a browser signs in for a program",
        api.SignInAddress,
        body=Body(_JSON, record=api.LoopbackSignIn),
        problems=(404, 413, 415, 422),
        about="anybody",
    ),
    Route(
        "POST",
        "/auth/code",
        sign_in_with_code,
        "Sign in with a code",
        api.SignedIn,
        body=Body(_JSON, record=api.CodeSignIn),
        problems=(401, 404, 413, 415, 422),
        about="anybody",
    ),
    Route(
        "POST",
        "/auth/device",
        begin_device_sign_in,
        "Get a code for a browser elsewhere",
        api.DeviceCode,
        problems=(401, 404),
        about="anybody",
    ),
    Route(
        "POST",
        "/auth/device/token",
        sign_in_with_device_code,
        "Sign in with a device code",
        api.SignedIn,
        body=Body(_JSON, record=api.DeviceSignIn),
        also={202: "Nobody has entered the code yet"},
        problems=(401, 404, 413, 415, 422),
        about="anybody",
    ),
    Route(
        "POST",
        "/auth/sign-out",
        sign_out,
        "End this session",
        api.SignedOut,
        problems=(409,),
        about="signed-in",
    ),
)

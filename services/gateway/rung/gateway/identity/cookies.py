"""Cookies of the page: the session, and a sign-in under way at the identity provider.

Scripts cannot read them (`HttpOnly`), and other sites' requests do not carry them but for the
navigation to this server (`SameSite=Lax`), with which nothing can be changed. Where this server is
reached by https they are `Secure`, and their names begin with `__Host-`, so that no neighbouring
host can set them.
"""

import base64
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct

from rung.gateway.problem import Problem

PENDING_S: Final = 600
"""How long somebody may take to sign in at the identity provider."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class PendingSignIn(Struct, frozen=True, array_like=True):
    """A sign-in under way: drawn here, known to the browser that began it alone."""

    state: str
    nonce: str
    verifier: str
    next: str


class Cookies:
    """Sets and reads the cookies of a server, which is reached by https or not."""

    def __init__(self, *, secure: bool) -> None:
        self._secure: Final = secure
        prefix = "__Host-" if secure else ""
        self._session: Final = f"{prefix}rung_session"
        self._pending: Final = f"{prefix}rung_sign_in"

    def session_of(self, request: web.Request) -> str | None:
        """Return the secret of the request's session."""
        return request.cookies.get(self._session)

    def set_session(self, response: web.StreamResponse, secret: str, *, lasts_s: int) -> None:
        """Have the browser keep a session."""
        self._set(response, self._session, secret, lasts_s)

    def forget_session(self, response: web.StreamResponse) -> None:
        """Have the browser forget its session."""
        self._set(response, self._session, "", 0)

    def pending_of(self, request: web.Request) -> PendingSignIn | None:
        """Return the sign-in that the browser began, None if there is none or it is damaged."""
        text = request.cookies.get(self._pending, "")
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            found = base64.urlsafe_b64decode(padded)
            return msgspec.json.decode(found, type=PendingSignIn)
        except (ValueError, msgspec.DecodeError):
            return None

    def set_pending(self, response: web.StreamResponse, pending: PendingSignIn) -> None:
        """Have the browser keep a sign-in under way."""
        text = base64.urlsafe_b64encode(msgspec.json.encode(pending)).decode().rstrip("=")
        self._set(response, self._pending, text, PENDING_S)

    def forget_pending(self, response: web.StreamResponse) -> None:
        """Have the browser forget the sign-in, so that its state cannot be used again."""
        self._set(response, self._pending, "", 0)

    def _set(self, response: web.StreamResponse, name: str, value: str, lasts_s: int) -> None:
        response.set_cookie(
            name,
            value,
            max_age=lasts_s,
            path="/",
            httponly=True,
            samesite="Lax",
            secure=self._secure,
        )


def check_origin(request: web.Request) -> None:
    """Refuse what another site has a browser send.

    Browsers say with each request that changes something from where it comes, and scripts cannot
    change what they say.

    Raises:
        Problem: it comes from another site, or nothing says from where.
    """
    if request.method in _SAFE_METHODS or _is_same_origin(request):
        return
    raise Problem(
        403,
        "foreign-origin",
        "a request that is signed in by cookie must come from the page of this server; send"
        " `Authorization: Bearer TOKEN` from anywhere else",
    )


def _is_same_origin(request: web.Request) -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    scheme, _, host = request.headers.get("Origin", "").partition("://")
    return scheme in {"http", "https"} and host != "" and host == request.headers.get("Host")

"""Signing in, tokens, and who somebody is."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from rung.api.listing import Listing
from rung.api.states import Time

_Name = Annotated[str, Meta(max_length=200)]
_Password = Annotated[str, Meta(max_length=1024)]
_Days = Annotated[int, Meta(ge=1, le=3650)]
_Scope = Annotated[list[_Name], Meta(max_length=100)]
_Opaque = Annotated[str, Meta(min_length=1, max_length=4096)]
_Challenge = Annotated[
    str, Meta(pattern="^[A-Za-z0-9_-]{43}$", description="SHA-256 of the verifier")
]
_Verifier = Annotated[str, Meta(pattern="^[A-Za-z0-9._~-]{43,128}$")]
_Drawn = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{22,200}$", description="drawn by the client")]

TokenKind = Literal["personal", "service", "session"]


class SignInMethods(Struct, kw_only=True):
    """How one signs in here, and who has."""

    passwords: Annotated[bool, Meta(description="whether local accounts have passwords")]
    provider: Annotated[str | None, Meta(description="name of the identity provider")] = None
    device_codes: Annotated[bool, Meta(description="whether terminals may sign in by it")] = False
    user: Annotated[str | None, Meta(description="name of who sent the request, if known")] = None
    permissions: Annotated[list[str], Meta(description="what the user may in the cluster")] = []


class PasswordSignIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """A sign-in with a password."""

    name: _Name
    password: _Password
    cookie: Annotated[bool, Meta(description="answer with a cookie in place of a token")] = False
    client: Annotated[_Name, Meta(description="for the list of sessions")] = ""


class SignedIn(Struct, kw_only=True):
    """A new session."""

    user: Annotated[str, Meta(description="name of the user")]
    token: Annotated[str | None, Meta(description="shown this once; null: it is in the cookie")]
    token_id: str
    expires_at: Time


class SignedOut(Struct, kw_only=True):
    """A session that ended."""

    token_id: str


class LoopbackSignIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """A sign-in in a browser for a program on the same machine, which waits for the code."""

    redirect_uri: Annotated[str, Meta(max_length=200, description="http://127.0.0.1:PORT/…")]
    code_challenge: _Challenge
    state: _Drawn
    nonce: _Drawn


class SignInAddress(Struct, kw_only=True):
    """Where the browser goes."""

    url: str


class CodeSignIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """The code with which the browser came back to a program."""

    code: _Opaque
    code_verifier: _Verifier
    redirect_uri: Annotated[str, Meta(max_length=200)]
    nonce: _Drawn
    client: Annotated[_Name, Meta(description="for the list of sessions")] = ""


class DeviceCode(Struct, kw_only=True):
    """A code that somebody enters in any browser."""

    device_code: Annotated[str, Meta(description="for /auth/device/token")]
    user_code: Annotated[str, Meta(description="what to enter")]
    verification_uri: Annotated[str, Meta(description="where to enter it")]
    verification_uri_complete: Annotated[str | None, Meta(description="with the code in it")]
    expires_s: int
    interval_s: Annotated[int, Meta(description="between two requests for the token")]


class DeviceSignIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for the token of a device code."""

    device_code: _Opaque
    client: Annotated[_Name, Meta(description="for the list of sessions")] = ""


class DevicePending(Struct, kw_only=True):
    """Nobody has entered the device code yet."""

    interval_s: Annotated[int, Meta(description="more to wait between two requests than before")]


class PasswordWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """Another password."""

    password: _Password
    current: Annotated[_Password | None, Meta(description="one's own; not needed for others'")] = (
        None
    )


class PasswordSet(Struct, kw_only=True):
    """A password that holds from now on; sessions of before have ended."""

    user: str


class Token(Struct, kw_only=True):
    """A token or a session, without its secret."""

    id: str
    kind: TokenKind
    name: str
    user: Annotated[str, Meta(description="name of whom it stands for")]
    scope: Annotated[list[str] | None, Meta(description="its permissions; null: all of the user")]
    workspace: Annotated[str | None, Meta(description="name of the only one; null: all")]
    created_at: Time
    expires_at: Time | None
    used_at: Annotated[Time | None, Meta(description="to the hour; null: never")]
    current: Annotated[bool, Meta(description="whether this request was sent with it")]


class TokenList(Listing[Token], kw_only=True):
    """Tokens and sessions."""

    items: list[Token]
    next_cursor: str | None = None


class TokenWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A new token."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    user: Annotated[_Name | None, Meta(description="a service account; null: oneself")] = None
    scope: Annotated[
        _Scope | None, Meta(description="permissions, or `read` or `people`; null: all")
    ] = None
    workspace: Annotated[_Name | None, Meta(description="null: all")] = None
    expires_days: Annotated[_Days | None, Meta(description="null: never")] = 90


class TokenIssued(Struct, kw_only=True):
    """A new token, or another secret of one."""

    token: Token
    secret: Annotated[str, Meta(description="shown this once")]
    before_until: Annotated[
        Time | None, Meta(description="until when the secret before opens, too; null: no longer")
    ] = None


class TokenRotation(Struct, kw_only=True, forbid_unknown_fields=True):
    """Another secret for a token."""

    overlap_s: Annotated[
        int, Meta(ge=0, le=604_800, description="how long the secret before opens, too")
    ] = 0
    expires_days: Annotated[_Days | None, Meta(description="from now; null: as before")] = None


class TokenRevoked(Struct, kw_only=True):
    """A token that is no longer valid."""

    id: str

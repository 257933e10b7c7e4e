"""Changes of tokens, sessions and roles."""

from typing import Literal

from msgspec import Struct

TokenKind = Literal["personal", "service", "session"]


class IssueToken(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="token.issue"):
    """A new token of a user, or a session."""

    token_id: str
    user_id: str
    digest: str
    """SHA-256 of the secret, in hexadecimal digits."""
    kind: TokenKind = "personal"
    name: str = ""
    """For people."""
    scope: list[str] | None = None
    """The permissions that it is limited to; None: all that its user has."""
    workspace_id: str | None = None
    """The one workspace that it is limited to; None: all."""
    expires_ms: int | None = None
    """Since 1970; None: never."""


class RotateToken(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="token.rotate"):
    """A token gets another secret; the one before is no longer valid."""

    token_id: str
    digest: str
    expires_ms: int | None = None
    """None: as before."""


class RevokeToken(Struct, frozen=True, kw_only=True, tag="token.revoke"):
    """A token or session is no longer valid."""

    token_id: str


class RevokeTokens(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="token.revoke_all"):
    """All tokens and sessions of a user are no longer valid, or those of a kind."""

    user_id: str
    kind: TokenKind | None = None


class NoteTokenUse(Struct, frozen=True, kw_only=True, tag="token.use"):
    """A token was used at the time of the request; written at most once an hour."""

    token_id: str


class AssignRole(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="role.assign"):
    """A user or a group gets a role, in one workspace or in all of the cluster."""

    assignment_id: str
    role: str
    user_id: str | None = None
    group_id: str | None = None
    workspace_id: str | None = None
    """None: in the cluster."""


class RemoveAssignment(Struct, frozen=True, kw_only=True, tag="role.remove"):
    """A role is taken away."""

    assignment_id: str

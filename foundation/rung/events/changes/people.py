"""Changes of users, service accounts and groups."""

from typing import Literal

from msgspec import Struct, field

UserKind = Literal["person", "service"]


class CreateUser(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="user.create"):
    """A new user, or service account."""

    user_id: str
    name: str
    """Unique in the installation."""
    kind: UserKind = "person"
    display_name: str = ""
    email: str = ""
    workspace_id: str | None = None
    """Of a service account: the workspace whose administrators manage it; None: the cluster's."""
    issuer: str = ""
    """The identity provider that manages the user; empty: none does."""
    external_id: str = ""
    """By which that provider knows the user; unique there, empty: it did not say."""
    given_name: str = ""
    family_name: str = ""


class ChangeUser(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="user.change"):
    """Another name, display name or address, or another who manages the user."""

    user_id: str
    name: str | None = None
    display_name: str | None = None
    email: str | None = None
    issuer: str | None = None
    """The identity provider that manages the user from now on; empty: none does."""
    external_id: str | None = None
    given_name: str | None = None
    family_name: str | None = None


class SetUserActive(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="user.set_active"):
    """A user may sign in and act, or no longer: then all tokens and sessions are revoked."""

    user_id: str
    active: bool


class RetireUser(Struct, frozen=True, kw_only=True, tag="user.retire"):
    """A user is deleted at the identity provider, and inactive for ever.

    Tokens are revoked, groups left; name and identities are free for somebody else. The user stays
    on record, under another name.
    """

    user_id: str


class SetPassword(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="user.set_password"):
    """Another password of a local account."""

    user_id: str
    password_hash: str | None
    """In the format of argon2id; None: the user cannot sign in with a password."""


class LinkIdentity(Struct, frozen=True, kw_only=True, tag="identity.link"):
    """An account at an identity provider is this user."""

    user_id: str
    issuer: str
    subject: str


class UnlinkIdentity(Struct, frozen=True, kw_only=True, tag="identity.unlink"):
    """An account at an identity provider is no longer this user."""

    user_id: str
    issuer: str
    subject: str


class CreateGroup(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="group.create"):
    """A new group of users."""

    group_id: str
    name: str
    """Unique in the installation."""
    description: str = ""
    issuer: str = ""
    """The identity provider that manages its members; empty: none does."""
    external_id: str = ""
    """By which that provider knows the group; empty: it did not say."""


class ChangeGroup(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="group.change"):
    """Another name or description, or another who manages it."""

    group_id: str
    name: str | None = None
    description: str | None = None
    issuer: str | None = None
    """The identity provider that manages its members from now on; empty: none does."""
    external_id: str | None = None


class RemoveGroup(Struct, frozen=True, kw_only=True, tag="group.remove"):
    """A group ends, and with it all roles that it was given."""

    group_id: str


class ChangeMembers(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="group.members"):
    """Users join a group, or leave it."""

    group_id: str
    add: list[str] = field(default_factory=list[str])
    """Ids of users."""
    remove: list[str] = field(default_factory=list[str])
    """Ids of users."""


class SyncMemberships(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="user.sync"):
    """The groups of a user at an identity provider, which replace those of before from there."""

    user_id: str
    issuer: str
    groups: list[str] = field(default_factory=list[str])
    """Ids of groups."""

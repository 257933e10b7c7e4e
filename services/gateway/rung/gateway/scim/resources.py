"""Users and groups as SCIM has them: the attributes that the directory keeps, and no others.

What a client sends besides is left out, as RFC 7644 allows. A user has one address: the primary
one, else the first.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field
from scim2_models import (
    URN,
    AuthenticationScheme,
    Bulk,
    CaseExact,
    ChangePassword,
    ComplexAttribute,
    ETag,
    Filter,
    Meta,
    Mutability,
    Patch,
    Reference,
    Required,
    Resource,
    ResourceType,
    ScimPolicy,
    ServiceProviderConfig,
    Sort,
    Uniqueness,
)

from rung.gateway.directory import state
from rung.gateway.scim.errors import ROOT

RESULTS_MAX: Final = 1_000
POLICY: Final = ScimPolicy(
    unknown=ScimPolicy.Unknown.ignore,
    remove_value_as_filter=ScimPolicy.RemoveValue.apply,
    unmatched_path_filter=ScimPolicy.UnmatchedPathFilter.create,
)
"""What identity providers send: more attributes than there are, `remove` with a value, and
filters in paths that describe what is to be added (Entra ID)."""


class Name(ComplexAttribute):
    """The parts of a person's name."""

    given_name: str | None = None
    family_name: str | None = None


class Email(ComplexAttribute):
    """An address."""

    value: str | None = None
    type: Annotated[str | None, Field(examples=["work"])] = None
    primary: bool | None = None


class Membership(ComplexAttribute):
    """A group that a user is in."""

    value: Annotated[str | None, Mutability.read_only, CaseExact.true] = None
    ref: Annotated[Reference["Group"] | None, Mutability.read_only] = Field(
        None, serialization_alias="$ref", validation_alias="$ref"
    )
    display: Annotated[str | None, Mutability.read_only] = None


class User(Resource[Any]):
    """A user whom the identity provider manages."""

    __schema__ = URN("urn:ietf:params:scim:schemas:core:2.0:User")

    user_name: Annotated[str | None, Uniqueness.server, Required.true] = None
    name: Name | None = None
    display_name: str | None = None
    active: bool | None = None
    emails: list[Email] | None = None
    groups: Annotated[list[Membership] | None, Mutability.read_only] = None

    Name: ClassVar[type[ComplexAttribute]] = Name
    Emails: ClassVar[type[ComplexAttribute]] = Email
    Groups: ClassVar[type[ComplexAttribute]] = Membership


class Member(ComplexAttribute):
    """A user in a group."""

    value: Annotated[str | None, Mutability.immutable, CaseExact.true] = None
    ref: Annotated[Reference["User"] | None, Mutability.immutable] = Field(
        None, serialization_alias="$ref", validation_alias="$ref"
    )
    type: Annotated[str | None, Mutability.immutable] = Field(None, examples=["User"])


class Group(Resource[Any]):
    """A group that the identity provider manages."""

    __schema__ = URN("urn:ietf:params:scim:schemas:core:2.0:Group")

    display_name: Annotated[str | None, Uniqueness.server, Required.true] = None
    members: list[Member] | None = None

    Members: ClassVar[type[ComplexAttribute]] = Member


RESOURCE_TYPES: Final = (ResourceType.from_resource(User), ResourceType.from_resource(Group))
CONFIG: Final = ServiceProviderConfig(
    patch=Patch(supported=True),
    bulk=Bulk(supported=False, max_operations=0, max_payload_size=0),
    filter=Filter(supported=True, max_results=RESULTS_MAX),
    change_password=ChangePassword(supported=False),
    sort=Sort(supported=False),
    etag=ETag(supported=True),
    authentication_schemes=[
        AuthenticationScheme(
            type=AuthenticationScheme.Type.oauthbearertoken,
            name="Bearer token",
            description="A token of a service account, with the scope directory.provision alone",
            primary=True,
        )
    ],
)


def version_of(thing: state.Thing) -> str:
    """Return the ETag of what has a version."""
    return f'W/"{thing.version}"'


def user_of(user: state.User, groups: Iterable[state.Group], base: str) -> User:
    """Return a user of the directory.

    Args:
        user: the user.
        groups: that the user is in, of those that the provider manages.
        base: scheme and host of the answer's addresses.
    """
    named = bool(user.given_name or user.family_name)
    found = [
        Membership(value=it.id, ref=_ref(base, "Groups", it), display=it.name) for it in groups
    ]
    return User(
        id=user.id,
        external_id=user.external_id or None,
        user_name=user.name,
        name=Name(given_name=user.given_name or None, family_name=user.family_name or None)
        if named
        else None,
        display_name=user.display_name or None,
        active=user.active,
        emails=[Email(value=user.email, type="work", primary=True)] if user.email else None,
        groups=found or None,
        meta=_meta(base, "User", user),
    )


def group_of(group: state.Group, members: Iterable[state.User], base: str) -> Group:
    """Return a group of the directory, with the members whom the provider manages."""
    found = [Member(value=it.id, ref=_ref(base, "Users", it), type="User") for it in members]
    return Group(
        id=group.id,
        external_id=group.external_id or None,
        display_name=group.name,
        members=found or None,
        meta=_meta(base, "Group", group),
    )


def address_of(user: User) -> str:
    """Return the primary address of a user, else the first one; empty: there is none."""
    found = sorted(user.emails or [], key=lambda it: not it.primary)
    return next((it.value for it in found if it.value), "")


def _ref(base: str, endpoint: str, thing: state.Thing) -> Any:
    return f"{base}{ROOT}/{endpoint}/{thing.id}"


def _meta(base: str, kind: str, thing: state.Thing) -> Meta:
    return Meta(
        resource_type=kind,
        created=_time(thing.created_ms),
        last_modified=_time(thing.changed_ms),
        location=_ref(base, f"{kind}s", thing),
        version=version_of(thing),
    )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)

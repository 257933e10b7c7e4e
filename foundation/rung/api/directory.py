"""Answers and bodies about users, groups, workspaces, projects and roles."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from rung.api.listing import Listing
from rung.api.states import Time

_NAME = Annotated[str, Meta(description="unique, whatever the case of its letters")]


class Recorded(Struct, kw_only=True):
    """What all that is in the directory has."""

    id: str
    name: str
    version: Annotated[int, Meta(description="as in the ETag; counts changes from 1")]
    created_at: Annotated[Time | None, Meta(description="null: it was always there")]
    changed_at: Time | None


class User(Recorded, kw_only=True):
    """A user, or a service account."""

    kind: Literal["person", "service"]
    display_name: str
    email: str
    active: Annotated[bool, Meta(description="false: may no longer sign in and act")]
    workspace_id: Annotated[
        str | None, Meta(description="of a service account: where it is managed")
    ] = None
    issuer: Annotated[str, Meta(description="the identity provider that manages it, if any")] = ""
    groups: Annotated[list[str], Meta(description="ids of the groups that it is in")] = []


class UserList(Listing[User], kw_only=True):
    """A page of users or service accounts, by id."""

    items: list[User]
    next_cursor: str | None


class UserWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A new user."""

    name: _NAME
    display_name: str = ""
    email: str = ""


class AccountWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A new service account."""

    name: _NAME
    display_name: str = ""
    workspace: Annotated[
        str | None,
        Meta(
            description="id or name of the one whose administrators manage it; null: the cluster"
        ),
    ] = None


class UserChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """What of a user or a service account changes; null: as it is."""

    name: str | None = None
    display_name: str | None = None
    email: str | None = None
    issuer: Annotated[
        str | None,
        Meta(description="the identity provider that manages the user; empty: none does"),
    ] = None


class Member(Struct, kw_only=True):
    """A member of a group."""

    id: str
    name: str
    issuer: Annotated[
        str, Meta(description="the identity provider that it was synced from; empty: none")
    ]


class Group(Recorded, kw_only=True):
    """A group of users."""

    description: str
    issuer: Annotated[str, Meta(description="the identity provider that manages it, if any")]
    members: list[Member]


class GroupList(Listing[Group], kw_only=True):
    """A page of groups, by id."""

    items: list[Group]
    next_cursor: str | None


class GroupWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A new group."""

    name: _NAME
    description: str = ""
    from_provider: bool = False
    """It is the identity provider's group of that name, whose members come with their sign-ins."""


class GroupChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """What of a group changes; null: as it is."""

    name: str | None = None
    description: str | None = None
    issuer: Annotated[
        str | None,
        Meta(description="the identity provider that manages it; empty: none does"),
    ] = None


class MembersWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """Who joins a group, and who leaves it: ids or names of users."""

    add: Annotated[list[str], Meta(max_length=1_000)] = []
    remove: Annotated[list[str], Meta(max_length=1_000)] = []


class Workspace(Recorded, kw_only=True):
    """A workspace."""

    description: str
    owner_id: str
    owner: Annotated[str, Meta(description="the owner's name")]
    default_pool: Annotated[str, Meta(description="of experiments that name none; may be empty")]
    storage: Annotated[
        str,
        Meta(
            description="the storage area of its experiments' checkpoints, in the installation's"
            " object store; empty: none"
        ),
    ]
    archived: bool
    permissions: Annotated[list[str], Meta(description="what the asker may there")]


class WorkspaceList(Listing[Workspace], kw_only=True):
    """A page of workspaces, by id."""

    items: list[Workspace]
    next_cursor: str | None


class WorkspaceWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A new workspace."""

    name: _NAME
    description: str = ""
    owner: Annotated[str | None, Meta(description="id or name of a user; null: the asker")] = None
    default_pool: str = ""
    storage: Annotated[
        str, Meta(description="a storage area, such as vision or teams/vision; empty: none")
    ] = ""


class WorkspaceChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """What of a workspace changes; null: as it is."""

    name: str | None = None
    description: str | None = None
    owner: Annotated[str | None, Meta(description="id or name of a user")] = None
    default_pool: str | None = None
    storage: Annotated[
        str | None,
        Meta(description="a storage area, of experiments submitted from now on; empty: none"),
    ] = None


class Project(Recorded, kw_only=True):
    """A project of a workspace."""

    workspace_id: str
    workspace: Annotated[str, Meta(description="the workspace's name")]
    description: str
    archived: bool


class ProjectList(Listing[Project], kw_only=True):
    """A page of projects, by id."""

    items: list[Project]
    next_cursor: str | None


class ProjectWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A new project."""

    workspace: Annotated[str, Meta(description="id or name")]
    name: Annotated[str, Meta(description="unique in its workspace")]
    description: str = ""


class ProjectChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """What of a project changes; null: as it is."""

    name: str | None = None
    description: str | None = None


class ProjectMove(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a project goes."""

    workspace: Annotated[str, Meta(description="id or name")]


class Role(Struct, kw_only=True):
    """A role, and what it may."""

    name: str
    description: str
    places: list[Literal["cluster", "workspace"]]
    permissions: list[str]


class RoleList(Listing[Role], kw_only=True):
    """All roles."""

    items: list[Role]


class Assignment(Struct, kw_only=True):
    """A role that somebody has."""

    id: str
    role: str
    user_id: str | None
    user: Annotated[str | None, Meta(description="the user's name")]
    group_id: str | None
    group: Annotated[str | None, Meta(description="the group's name")]
    workspace_id: Annotated[str | None, Meta(description="null: in the cluster")]
    workspace: Annotated[str | None, Meta(description="the workspace's name")]
    by: Annotated[str, Meta(description="id of the user who gave it; empty: always there")]
    created_at: Time | None


class AssignmentList(Listing[Assignment], kw_only=True):
    """A page of assignments, by id."""

    items: list[Assignment]
    next_cursor: str | None


class AssignmentWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A role for a user or for a group."""

    role: str
    user: Annotated[str | None, Meta(description="id or name")] = None
    group: Annotated[str | None, Meta(description="id or name")] = None
    workspace: Annotated[str | None, Meta(description="id or name; null: in the cluster")] = None


class SavedSearch(Recorded, kw_only=True):
    """A filter of experiments under a name."""

    query: Annotated[str, Meta(description="the filter")]
    workspace_id: Annotated[str | None, Meta(description="where it is shared; null: one's own")]
    workspace: Annotated[str | None, Meta(description="the workspace's name")]
    user: Annotated[str, Meta(description="name of the user who saved it first")]
    editable: Annotated[bool, Meta(description="whether the asker may change and remove it")]


class SavedSearchList(Listing[SavedSearch], kw_only=True):
    """A page of saved searches, by id."""

    items: list[SavedSearch]
    next_cursor: str | None


class SavedSearchWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A saved search, new or with another filter."""

    name: Annotated[str, Meta(description="unique in its workspace, or among one's own")]
    query: Annotated[str, Meta(description="a filter of experiments")]
    workspace: Annotated[
        str | None,
        Meta(description="id or name: its members share it; null: one's own"),
    ] = None


class Removed(Struct, kw_only=True):
    """Something is there no longer."""

    id: str

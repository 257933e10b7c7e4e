"""Changes of the directory: one record for each thing that somebody may ask for.

A change is part of `directory.change_requested`, and of `directory.changed` once it is decided.
The id of a new thing is drawn by the gateway. In a change of something that exists, None leaves a
field as it is.
"""

from typing import Final

from rung.events.changes.access import (
    AssignRole,
    IssueToken,
    NoteTokenUse,
    RemoveAssignment,
    RevokeToken,
    RevokeTokens,
    RotateToken,
    TokenKind,
)
from rung.events.changes.model import (
    ArchiveModel,
    ChangeModel,
    ChangeVersion,
    CreateModel,
    MoveModel,
    RegisterVersion,
    RemoveModel,
    RemoveVersion,
)
from rung.events.changes.people import (
    ChangeGroup,
    ChangeMembers,
    ChangeUser,
    CreateGroup,
    CreateUser,
    LinkIdentity,
    RemoveGroup,
    RetireUser,
    SetPassword,
    SetUserActive,
    SyncMemberships,
    UnlinkIdentity,
    UserKind,
)
from rung.events.changes.resource import (
    PolicyKind,
    RemovePolicy,
    RemoveSearch,
    RemoveSecret,
    RemoveTemplate,
    RemoveWebhook,
    SaveSearch,
    SetPolicy,
    SetSecret,
    SetTemplate,
    SetWebhook,
)
from rung.events.changes.workspace import (
    ArchiveProject,
    ArchiveWorkspace,
    ChangeProject,
    ChangeWorkspace,
    CreateProject,
    CreateWorkspace,
    MoveProject,
)

OfPeople = (
    CreateUser
    | ChangeUser
    | SetUserActive
    | RetireUser
    | SetPassword
    | LinkIdentity
    | UnlinkIdentity
    | CreateGroup
    | ChangeGroup
    | RemoveGroup
    | ChangeMembers
    | SyncMemberships
)
OfAccess = (
    IssueToken
    | RotateToken
    | RevokeToken
    | RevokeTokens
    | NoteTokenUse
    | AssignRole
    | RemoveAssignment
)
OfWorkspaces = (
    CreateWorkspace
    | ChangeWorkspace
    | ArchiveWorkspace
    | CreateProject
    | ChangeProject
    | ArchiveProject
    | MoveProject
)
OfResources = (
    SetPolicy
    | RemovePolicy
    | SetTemplate
    | RemoveTemplate
    | SetWebhook
    | RemoveWebhook
    | SaveSearch
    | RemoveSearch
    | SetSecret
    | RemoveSecret
)
OfModels = (
    CreateModel
    | ChangeModel
    | ArchiveModel
    | MoveModel
    | RemoveModel
    | RegisterVersion
    | ChangeVersion
    | RemoveVersion
)
Change = OfPeople | OfAccess | OfWorkspaces | OfResources | OfModels
"""Every change, told apart by its tag `type`."""

_IDS: Final = (
    "token_id",
    "assignment_id",
    "policy_id",
    "template_id",
    "webhook_id",
    "search_id",
    "secret_id",
    "model_version_id",
    "model_id",
    "group_id",
    "project_id",
    "user_id",
    "workspace_id",
)
_ABOUT: Final[dict[str, str]] = {"RevokeTokens": "user_id", "AssignRole": "assignment_id"}


def subject_of_change(change: Change) -> str:
    """Return what a change is about: `user/8f3k2m9q`, `workspace/default`."""
    fields = change.__struct_fields__
    name = _ABOUT.get(type(change).__name__) or next(name for name in _IDS if name in fields)
    value: str = getattr(change, name)
    return f"{name.removesuffix('_id')}/{value}"


__all__ = [
    "ArchiveModel",
    "ArchiveProject",
    "ArchiveWorkspace",
    "AssignRole",
    "Change",
    "ChangeGroup",
    "ChangeMembers",
    "ChangeModel",
    "ChangeProject",
    "ChangeUser",
    "ChangeVersion",
    "ChangeWorkspace",
    "CreateGroup",
    "CreateModel",
    "CreateProject",
    "CreateUser",
    "CreateWorkspace",
    "IssueToken",
    "LinkIdentity",
    "MoveModel",
    "MoveProject",
    "NoteTokenUse",
    "OfAccess",
    "OfModels",
    "OfPeople",
    "OfResources",
    "OfWorkspaces",
    "PolicyKind",
    "RegisterVersion",
    "RemoveAssignment",
    "RemoveGroup",
    "RemoveModel",
    "RemovePolicy",
    "RemoveSearch",
    "RemoveSecret",
    "RemoveTemplate",
    "RemoveVersion",
    "RemoveWebhook",
    "RetireUser",
    "RevokeToken",
    "RevokeTokens",
    "RotateToken",
    "SaveSearch",
    "SetPassword",
    "SetPolicy",
    "SetSecret",
    "SetTemplate",
    "SetUserActive",
    "SetWebhook",
    "SyncMemberships",
    "TokenKind",
    "UnlinkIdentity",
    "UserKind",
    "subject_of_change",
]

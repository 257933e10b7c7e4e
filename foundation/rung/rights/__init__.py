"""Rights: permissions, and which of them each role has.

A permission is an object and a verb, `experiment.view`. Those of the cluster are held everywhere
or not at all; those of a workspace are held in one workspace, or in all by a role in the cluster.
The table is the only one: the processor of the directory decides by it, the gateway enforces it,
and `docs/RIGHTS.md` is made from it.
"""

from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

Place = Literal["cluster", "workspace"]


class Permission(Struct, frozen=True):
    """One thing that somebody may do."""

    name: str
    place: Place
    text: str
    """What it allows, for people."""


class Role(Struct, frozen=True):
    """A named set of permissions."""

    name: str
    text: str
    permissions: frozenset[str]
    places: tuple[Place, ...] = ("cluster", "workspace")
    """Where it may be assigned."""


_PERMISSIONS: Final = (
    Permission("experiment.view", "workspace", "see experiments, trials, curves, logs, streams"),
    Permission("experiment.create", "workspace", "submit, fork and continue experiments"),
    Permission(
        "experiment.edit",
        "workspace",
        "pause, resume, cancel and kill; extend, label, rename, archive; retention; move trials",
    ),
    Permission(
        "experiment.spend", "workspace", "raise priority, weight and slots; choose another pool"
    ),
    Permission("experiment.move", "workspace", "move experiments to another project or workspace"),
    Permission("experiment.delete", "workspace", "delete experiments and their logs"),
    Permission("checkpoint.download", "workspace", "download checkpoints and their files"),
    Permission("checkpoint.delete", "workspace", "delete checkpoints"),
    Permission("model.view", "workspace", "see registered models and their versions"),
    Permission("model.edit", "workspace", "register, change and delete models"),
    Permission("workspace.view", "workspace", "see that the workspace exists, and its usage"),
    Permission(
        "workspace.edit",
        "workspace",
        "rename the workspace, change owner, default pool, storage area",
    ),
    Permission("workspace.archive", "workspace", "archive the workspace, and open it again"),
    Permission("project.view", "workspace", "see projects"),
    Permission("project.edit", "workspace", "create, rename, archive and move projects"),
    Permission("role.view", "workspace", "see who has which role"),
    Permission("role.assign", "workspace", "give and take roles, none beyond one's own rights"),
    Permission("service.view", "workspace", "see service accounts"),
    Permission("service.edit", "workspace", "create and change service accounts and their tokens"),
    Permission("template.view", "workspace", "see and use templates"),
    Permission("template.edit", "workspace", "create, change and remove templates"),
    Permission("policy.view", "workspace", "see policies"),
    Permission("policy.edit", "workspace", "create, change and remove policies"),
    Permission("search.view", "workspace", "see saved searches that are shared"),
    Permission("search.edit", "workspace", "share saved searches, change and remove them"),
    Permission("secret.view", "workspace", "see the names of secrets; nobody sees their values"),
    Permission("secret.use", "workspace", "have trials get secrets"),
    Permission("secret.edit", "workspace", "set and remove secrets"),
    Permission("webhook.view", "workspace", "see webhooks and their deliveries"),
    Permission("webhook.edit", "workspace", "create, change, test and remove webhooks"),
    Permission("workspace.create", "cluster", "create workspaces"),
    Permission("user.view", "cluster", "see users"),
    Permission("user.edit", "cluster", "create, change, deactivate users who may no more"),
    Permission("user.impersonate", "cluster", "act for another user, on record as both"),
    Permission("group.view", "cluster", "see groups and their members"),
    Permission("group.edit", "cluster", "create, change and remove groups; change members"),
    Permission("token.view", "cluster", "see tokens of others, never their secrets"),
    Permission("token.edit", "cluster", "revoke tokens of others"),
    Permission(
        "directory.provision",
        "cluster",
        "by SCIM: create, change, deactivate, delete users and groups of the identity provider",
    ),
    Permission("audit.view", "cluster", "see who did what; audit the ledger"),
    Permission(
        "cluster.view", "cluster", "see agents, all of the status, metrics of the services"
    ),
    Permission("pool.view", "cluster", "see pools and the length of their queues"),
    Permission("pool.configure", "cluster", "choose a pool's policy, drain agents"),
    Permission("deadletter.view", "cluster", "see dead letters"),
    Permission("deadletter.edit", "cluster", "retry and drop dead letters"),
)
PERMISSIONS: Final[dict[str, Permission]] = {it.name: it for it in _PERMISSIONS}
"""Every permission by its name."""
ALL: Final = frozenset(PERMISSIONS)
OF_WORKSPACES: Final = frozenset(it.name for it in _PERMISSIONS if it.place == "workspace")
"""Those that a role in one workspace may give."""
EVERYBODY: Final = frozenset({"user.view", "group.view", "pool.view"})
"""What each active user may without a role: names, to find colleagues and where to train."""

_VIEWER: Final = frozenset(
    {
        "experiment.view",
        "checkpoint.download",
        "model.view",
        "workspace.view",
        "project.view",
        "role.view",
        "template.view",
        "policy.view",
        "search.view",
    }
)
_RESTRICTED: Final = _VIEWER | {
    "experiment.create",
    "experiment.edit",
    "secret.view",
    "secret.use",
    "search.edit",
    "webhook.view",
}
_EDITOR: Final = _RESTRICTED | {
    "experiment.spend",
    "experiment.move",
    "experiment.delete",
    "checkpoint.delete",
    "model.edit",
    "project.edit",
    "template.edit",
    "webhook.edit",
    "service.view",
}

ROLES: Final[dict[str, Role]] = {
    role.name: role
    for role in (
        Role("viewer", "sees everything of a workspace, and changes nothing", _VIEWER),
        Role(
            "editor-restricted",
            "trains within what policies give by default, and deletes nothing",
            _RESTRICTED,
        ),
        Role("editor", "trains, spends within the policies, and tidies up", _EDITOR),
        Role("workspace-admin", "may all that there is in a workspace", OF_WORKSPACES),
        Role(
            "model-registry-viewer",
            "sees models and downloads what they consist of, and nothing else",
            frozenset({"model.view", "checkpoint.download", "workspace.view", "project.view"}),
        ),
        Role(
            "auditor",
            "reads everything, also who did what, and changes nothing",
            frozenset(name for name in ALL if name.endswith(".view")) | {"checkpoint.download"},
        ),
        Role(
            "provisioner",
            "is an identity provider that manages its own users and groups by SCIM",
            frozenset({"directory.provision"}),
            ("cluster",),
        ),
        Role("cluster-admin", "may everything", ALL, ("cluster",)),
    )
}
"""Every role by its name, the one table of rights."""
OWNER: Final = ROLES["workspace-admin"]
"""What the owner of a workspace is there."""
ADMINISTRATOR: Final = "cluster-admin"
"""The role without which no installation may be."""


def permissions_of(role: str, *, in_cluster: bool) -> frozenset[str]:
    """Return what a role gives where it is assigned; of an unknown one, nothing."""
    found = ROLES.get(role)
    if found is None:
        return frozenset()
    return found.permissions if in_cluster else found.permissions & OF_WORKSPACES


def roles_with(permission: str) -> tuple[str, ...]:
    """Return the names of the roles that have a permission, the least first."""
    found = [role for role in ROLES.values() if permission in role.permissions]
    return tuple(
        role.name for role in sorted(found, key=lambda it: (len(it.permissions), it.name))
    )


def missing_from(scope: Iterable[str]) -> list[str]:
    """Return the names in a scope that are no permissions."""
    return [name for name in scope if name not in PERMISSIONS]

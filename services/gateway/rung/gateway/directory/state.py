"""The state of the directory: all that there is, indexes of names, and who may do what."""

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from msgspec import Struct, field

from rung import rights
from rung.events.changes import PolicyKind, TokenKind, UserKind
from rung.events.directory import ADMIN, DEFAULT, SYSTEM


class Thing(Struct, kw_only=True, omit_defaults=True):
    """What all that is in the directory has."""

    TABLE: ClassVar[str]
    """The field of `State` with all of its kind."""

    id: str
    name: str = ""
    version: int = 1
    """How often it was changed, with its creation."""
    created_ms: int = 0
    """Since 1970."""
    changed_ms: int = 0
    """Since 1970."""


class User(Thing, kw_only=True, omit_defaults=True):
    """A person, or a service account."""

    TABLE: ClassVar[str] = "users"

    kind: UserKind = "person"
    display_name: str = ""
    email: str = ""
    workspace_id: str | None = None
    """Of a service account: where it is managed; None: in the cluster."""
    issuer: str = ""
    """The identity provider that manages the user; empty: none does."""
    external_id: str = ""
    """By which that provider knows the user; unique there."""
    given_name: str = ""
    family_name: str = ""
    active: bool = True
    retired: bool = False
    """Deleted at the identity provider: inactive for ever."""
    password_hash: str | None = None
    identities: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Issuer and subject, of accounts at identity providers."""


class Group(Thing, kw_only=True, omit_defaults=True):
    """A group of users."""

    TABLE: ClassVar[str] = "groups"

    description: str = ""
    issuer: str = ""
    """The identity provider that manages it; empty: none does."""
    external_id: str = ""
    """By which that provider knows the group."""
    members: dict[str, str] = field(default_factory=dict[str, str])
    """Id of a user → the issuer that this was synced from; empty: somebody added the user."""


class Token(Thing, kw_only=True, omit_defaults=True):
    """A token or a session that is valid until it expires."""

    TABLE: ClassVar[str] = "tokens"

    user_id: str
    digest: str
    kind: TokenKind = "personal"
    scope: list[str] | None = None
    """The permissions that it is limited to; None: all that its user has."""
    workspace_id: str | None = None
    """The one workspace that it is limited to; None: all."""
    expires_ms: int | None = None
    used_ms: int | None = None
    """When it was last used, to the hour; None: never."""
    rotated_ms: int | None = None


class Workspace(Thing, kw_only=True, omit_defaults=True):
    """A workspace."""

    TABLE: ClassVar[str] = "workspaces"

    owner_id: str
    description: str = ""
    default_pool: str = ""
    storage: str = ""
    archived: bool = False


class Project(Thing, kw_only=True, omit_defaults=True):
    """A project of a workspace."""

    TABLE: ClassVar[str] = "projects"

    workspace_id: str
    description: str = ""
    archived: bool = False


class Assignment(Thing, kw_only=True, omit_defaults=True):
    """A role of a user or a group, in a workspace or in the cluster."""

    TABLE: ClassVar[str] = "assignments"

    role: str
    user_id: str | None = None
    group_id: str | None = None
    workspace_id: str | None = None
    by: str = ""
    """Id of the user who gave it."""


class Policy(Thing, kw_only=True, omit_defaults=True):
    """A policy of a workspace, a project, a pool, or the cluster."""

    TABLE: ClassVar[str] = "policies"

    kind: PolicyKind
    document: str
    workspace_id: str | None = None
    project_id: str | None = None
    pool: str | None = None
    by: str = ""
    """Id of the user who set it last."""


class Template(Thing, kw_only=True, omit_defaults=True):
    """A template of experiment files."""

    TABLE: ClassVar[str] = "templates"

    workspace_id: str
    document: str
    by: str = ""


class Webhook(Thing, kw_only=True, omit_defaults=True):
    """A subscription."""

    TABLE: ClassVar[str] = "webhooks"

    workspace_id: str
    document: str
    secret_id: str | None = None
    project_id: str | None = None
    experiment_id: str | None = None
    active: bool = True
    by: str = ""


class Search(Thing, kw_only=True, omit_defaults=True):
    """A saved search, of a user or shared in a workspace."""

    TABLE: ClassVar[str] = "searches"

    query: str
    user_id: str
    workspace_id: str | None = None


class Secret(Thing, kw_only=True, omit_defaults=True):
    """A secret by reference: its value is an encrypted object in the object store."""

    TABLE: ClassVar[str] = "secrets"

    workspace_id: str
    digest: str
    reference: str
    description: str = ""
    by: str = ""


class Model(Thing, kw_only=True, omit_defaults=True):
    """A registered model."""

    TABLE: ClassVar[str] = "models"

    workspace_id: str
    description: str = ""
    labels: list[str] = field(default_factory=list[str])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    archived: bool = False
    newest: int = 0
    """The number of the last version that was registered, whether it is there or not."""
    by: str = ""


class ModelVersion(Thing, kw_only=True, omit_defaults=True):
    """A version of a model: a checkpoint that stays as long as this is there."""

    TABLE: ClassVar[str] = "model_versions"

    model_id: str
    number: int
    """From 1 on, unique in its model."""
    experiment_id: str
    trial_id: str
    checkpoint_id: str
    notes: str = ""
    labels: list[str] = field(default_factory=list[str])
    by: str = ""


class State(Struct, kw_only=True, omit_defaults=True):
    """The directory."""

    level: int = 1
    """The logic level of its decisions."""
    version: int = 0
    """How many changes there were."""
    users: dict[str, User] = field(default_factory=dict[str, User])
    groups: dict[str, Group] = field(default_factory=dict[str, Group])
    tokens: dict[str, Token] = field(default_factory=dict[str, Token])
    workspaces: dict[str, Workspace] = field(default_factory=dict[str, Workspace])
    projects: dict[str, Project] = field(default_factory=dict[str, Project])
    assignments: dict[str, Assignment] = field(default_factory=dict[str, Assignment])
    policies: dict[str, Policy] = field(default_factory=dict[str, Policy])
    templates: dict[str, Template] = field(default_factory=dict[str, Template])
    webhooks: dict[str, Webhook] = field(default_factory=dict[str, Webhook])
    searches: dict[str, Search] = field(default_factory=dict[str, Search])
    secrets: dict[str, Secret] = field(default_factory=dict[str, Secret])
    models: dict[str, Model] = field(default_factory=dict[str, Model])
    model_versions: dict[str, ModelVersion] = field(default_factory=dict[str, ModelVersion])
    awaited: dict[str, str] = field(default_factory=dict[str, str])
    """Request id → id of the version that is registered once its checkpoint is held. The
    processor's alone: a reader of the directory's changes has none."""
    names: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """Where a name is unique → the name in small letters → the id of what has it."""
    identities: dict[str, str] = field(default_factory=dict[str, str])
    """Issuer and subject, as `identity_key` joins them → id of a user."""
    digests: dict[str, str] = field(default_factory=dict[str, str])
    """Digest of a token's secret → id of the token."""
    expiring: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """When tokens expire, and their ids; sorted."""


_SMALL: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def folded(name: str) -> str:
    """Return a name as it is compared: ASCII letters small, all others as they are.

    Unicode's tables differ between releases of Python, and the past must not.
    """
    return name.translate(_SMALL)


def identity_key(issuer: str, subject: str) -> str:
    """Return the key of an account at an identity provider."""
    return f"{issuer}\n{subject}"


def space_of(thing: Thing) -> str | None:
    """Return where the name of a thing is unique; None: it need not be."""
    match thing:
        case User() | Group() | Workspace():
            return thing.TABLE
        case Project() | Template() | Webhook() | Secret() | Model():
            return f"{thing.TABLE}/{thing.workspace_id}"
        case Policy():
            place = thing.project_id or thing.workspace_id or thing.pool or ""
            return f"{thing.TABLE}/{place_of(thing)}/{place}"
        case Search():
            return f"{thing.TABLE}/{thing.workspace_id or f'of {thing.user_id}'}"
        case _:
            return None


def place_of(policy: Policy) -> str:
    """Return what a policy is about: `project`, `workspace`, `pool` or `cluster`."""
    if policy.project_id is not None:
        return "project"
    if policy.workspace_id is not None:
        return "workspace"
    return "cluster" if policy.pool is None else "pool"


def table_of(state: State, thing: Thing) -> dict[str, Any]:
    """Return the table in which a thing is."""
    table: dict[str, Any] = getattr(state, thing.TABLE)
    return table


def put(state: State, thing: Thing) -> None:
    """Add a thing to its table and the index of names."""
    table_of(state, thing)[thing.id] = thing
    space = space_of(thing)
    if space is not None:
        state.names.setdefault(space, {})[folded(thing.name)] = thing.id


def drop(state: State, thing: Thing) -> None:
    """Remove a thing from its table and the index of names."""
    del table_of(state, thing)[thing.id]
    unname(state, thing)


def unname(state: State, thing: Thing) -> None:
    """Remove a thing from the index of names."""
    space = space_of(thing)
    if space is None:
        return
    names = state.names[space]
    del names[folded(thing.name)]
    if not names:
        del state.names[space]


def new_directory() -> State:
    """Return the directory as each installation has it at first.

    The user `admin` is its cluster administrator, and what was submitted before there was a
    directory is in the workspace `default` and its project.
    """
    state = State()
    put(state, User(id=ADMIN, name=ADMIN))
    put(state, Workspace(id=DEFAULT, name=DEFAULT, owner_id=ADMIN))
    put(state, Project(id=DEFAULT, name=DEFAULT, workspace_id=DEFAULT))
    put(state, Assignment(id=ADMIN, role=rights.ADMINISTRATOR, user_id=ADMIN))
    return state


def held(state: State) -> dict[str, list[Assignment]]:
    """Return the assignments that each user has, by the user's own or a group's."""
    found: dict[str, list[Assignment]] = {}
    for it in state.assignments.values():
        group = state.groups.get(it.group_id or "")
        holders = [it.user_id] if it.user_id is not None else group.members if group else ()
        for user_id in holders:
            found.setdefault(user_id, []).append(it)
    return found


def rights_of(
    state: State,
    user_id: str,
    workspace_id: str | None = None,
    assignments: Iterable[Assignment] | None = None,
) -> frozenset[str]:
    """Return what a user may, by all roles: in a workspace, or in the cluster if none is given.

    A role in the cluster holds in each workspace. One who is not active may nothing.

    Args:
        state: the directory.
        user_id: whose rights.
        workspace_id: where; None: in the cluster.
        assignments: those that `held` has for the user; looked for among all if not given.
    """
    if user_id == SYSTEM:
        return rights.ALL
    user = state.users.get(user_id)
    if user is None or not user.active:
        return frozenset()
    if assignments is None:
        assignments = [it for it in state.assignments.values() if _has(state, it, user_id)]
    found = rights.EVERYBODY
    for it in assignments:
        if it.workspace_id in {None, workspace_id}:
            found |= rights.permissions_of(it.role, in_cluster=it.workspace_id is None)
    workspace = None if workspace_id is None else state.workspaces.get(workspace_id)
    if workspace is not None and workspace.owner_id == user_id:
        found |= rights.OWNER.permissions
    return found


def limited(
    found: frozenset[str],
    scope: frozenset[str] | None,
    limit: str | None,
    workspace_id: str | None,
) -> frozenset[str]:
    """Return what a token leaves of permissions.

    Args:
        found: those of its user, in a workspace or in the cluster.
        scope: those that it is limited to; None: all.
        limit: the one workspace that it is limited to; None: all.
        workspace_id: where; None: in the cluster.
    """
    if scope is not None:
        found &= scope
    if limit is not None and limit != workspace_id:
        found &= rights.EVERYBODY
    return found


def given_by(state: State, group_id: str) -> list[tuple[str, str | None]]:
    """Return the roles of a group, each with its workspace."""
    return [
        (it.role, it.workspace_id) for it in state.assignments.values() if it.group_id == group_id
    ]


def places_of(state: State, user_id: str) -> list[str | None]:
    """Return the workspaces where a user has a role or is the owner; None is the cluster."""
    found: dict[str | None, None] = {None: None}
    for it in state.assignments.values():
        if _has(state, it, user_id):
            found[it.workspace_id] = None
    for workspace in state.workspaces.values():
        if workspace.owner_id == user_id:
            found[workspace.id] = None
    return list(found)


def _has(state: State, assignment: Assignment, user_id: str) -> bool:
    if assignment.user_id is not None:
        return assignment.user_id == user_id
    group = state.groups.get(assignment.group_id or "")
    return group is not None and user_id in group.members


def user_by_external_id(state: State, issuer: str, external_id: str) -> User | None:
    """Return the user whom an identity provider knows by an id that is not empty."""
    for user in state.users.values():
        if external_id and user.external_id == external_id and user.issuer == issuer:
            return user
    return None


def administrators(state: State) -> list[str]:
    """Return the ids of the active users who are cluster administrators, by a role or a group."""
    found: dict[str, None] = {}
    for it in state.assignments.values():
        if it.role != rights.ADMINISTRATOR or it.workspace_id is not None:
            continue
        group = state.groups.get(it.group_id or "")
        holders = [it.user_id] if it.user_id is not None else list(group.members if group else ())
        for user_id in holders:
            user = state.users.get(user_id)
            if user is not None and user.active:
                found[user_id] = None
    return list(found)


def tokens_of(state: State, user_id: str) -> list[Token]:
    """Return the tokens and sessions of a user."""
    return [it for it in state.tokens.values() if it.user_id == user_id]


def versions_of(state: State, model_id: str) -> list[ModelVersion]:
    """Return the versions of a model, in the order of their numbers."""
    return [it for it in state.model_versions.values() if it.model_id == model_id]


def holders(
    state: State, experiment_id: str, checkpoint_id: str | None = None
) -> list[ModelVersion]:
    """Return the versions of models that hold checkpoints of an experiment, or one of them."""
    return [
        it
        for it in state.model_versions.values()
        if it.experiment_id == experiment_id and checkpoint_id in {None, it.checkpoint_id}
    ]

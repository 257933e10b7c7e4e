"""The processor of the directory: which changes of users, rights and workspaces are made.

Theory of operation
===================

There is one key, `directory`, so all requests have one order. A request names who asked (`by`), by
which token (`via`), for whom (`on_behalf_of`), and one change. It is answered by one decision:

    change_requested ──▶ changed          the change is in force, with the next version
                     └─▶ change_refused   nothing changes; a code, a reason, the field at fault

The registration of a model's version is answered in two steps, for its checkpoint must be there,
and stay: the request leads to `hold_requested`, and what checkpoint-gc answers to that
(`hold_answered`) is decided on as the request itself. What a version holds is released
(`hold_released`) when it is deleted, or not registered after all. A request that awaits such an
answer (`state.awaited`) is not decided on twice, and no other may use the id of its version.

What is on record as changed is all that the state is folded of, so a reader of decisions alone
(`Directory`, in each gateway) has the same state. A request is checked in this order:

1. whether who asked is who he says, at this point of the order: the user is active, the token is
   not revoked and not expired. So a request that is behind a revocation is refused, although the
   gateway that took it did not know yet;
2. what he may: his roles, those of his groups, what he owns; less what his token leaves out; and
   if it is for somebody else, only what both may, and only with `user.impersonate`;
3. the rule of the change: what it is about is there, in the version that its author saw, the names
   are free, and the permission is held where it is needed;
4. that it gives nobody a right that its giver does not have. That is more than roles: to set
   somebody's password or identity, to make a token of a service account, or to add somebody to a
   group is to give the rights of that user or group;
5. that an active cluster administrator is left.

`system` is the gateway itself, which signs people in and syncs groups; it may everything, and no
request of a client is taken as its own. An identity provider, that is who has
`directory.provision`, may create, change, deactivate and retire users whom it manages (`issuer`),
and do the same with its groups and their members, whatever these may: whoever gave a role to such
a group left to the provider who is in it. It never touches passwords, identities, tokens, roles,
service accounts, or what is managed here. What is one's own (password, tokens, name) may be
changed without a permission, but not by a token with a scope or a workspace, and not for somebody
else.

Invariants
----------

* Names are unique in their space (`state.space_of`), whatever the case of ASCII letters; so are
  ids in their tables, identities, and digests of tokens. Names of archived things stay taken.
* What a version of a model names is held by checkpoint-gc, from before it is registered until
  after it is deleted. Numbers of versions are never used again.
* There is always an active user with the role cluster-admin in the cluster.
* After each change nobody but the one whom it is about may more than before, and that one nothing
  that its giver may not. (A new workspace is its owner's; members of an identity provider's groups
  have what these were given.)
* A user who is deactivated has no tokens; a group that is removed has no assignments. Both have
  no right from the next request on. Roles of a user who is activated again are as they were.
* Users, workspaces and projects are never removed, so what is on record about them has a name. A
  user who was retired has another one, and is never active again: who comes by the same name later
  is somebody else.

Time comes from requests alone. Tokens that have been expired for a week, by the clock of the
gateway that took a request, are forgotten; so a gateway whose clock is wrong by more than that
signs people out, and nothing else.

Not handled: what a document says (policies, templates, webhooks: their gateways check them before
they ask), whether a pool exists, and values of secrets, which are never in the ledger.
"""

import re
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any, Final, assert_never

from msgspec import json, structs

from rung import rights
from rung.events import Payload, changes, topic
from rung.events.directory import (
    DEFAULT,
    ROOT,
    SYSTEM,
    ChangeRefused,
    ChangeRequested,
    DirectoryChanged,
    HoldAnswered,
    HoldReleased,
    HoldRequested,
    Refusal,
)
from rung.events.installation import LEVEL
from rung.gateway.directory.state import (
    Assignment,
    Group,
    Model,
    ModelVersion,
    Policy,
    Project,
    Search,
    Secret,
    State,
    Template,
    Thing,
    Token,
    User,
    Webhook,
    Workspace,
    administrators,
    drop,
    folded,
    given_by,
    identity_key,
    limited,
    new_directory,
    places_of,
    put,
    rights_of,
    space_of,
    table_of,
    tokens_of,
    unname,
    user_by_external_id,
    versions_of,
)

NAME: Final = "directory"
Handles = (
    ChangeRequested
    | HoldAnswered
    | DirectoryChanged
    | ChangeRefused
    | HoldRequested
    | HoldReleased
)
_OfGroups = changes.CreateGroup | changes.ChangeGroup | changes.RemoveGroup | changes.ChangeMembers

FORGOTTEN_MS: Final = 7 * 24 * 3600 * 1000
"""How long tokens that have expired are kept."""
NAME_MAX: Final = 100
TEXT_MAX: Final = 10_000
LABELS_MAX: Final = 100
METADATA_MAX: Final = 100_000
"""Bytes of a model's metadata, as JSON."""
DOCUMENT_MAX: Final = 200_000
_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_UNSEEN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that no name may have: controls, bidirectional marks, and what Unicode says may be
left out of sight. A fixed table, for what is decided must not depend on the release of Python."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ROLES: Final = (
    "viewer, editor-restricted, editor, workspace-admin, model-registry-viewer, auditor,"
    " cluster-admin"
)
"""Roles that a refusal proposes: its words are on record, so a new role is not among them."""
_RESERVED: Final = frozenset({SYSTEM, ROOT})


class DirectoryProcessor:
    """The processor of the topic `requests`; see `rung.runtime.Processor`."""

    name = NAME
    facts = topic.REQUESTS
    decisions = topic.DIRECTORY
    handles = Handles
    level = LEVEL
    version = 1
    state_type = State

    def initial(self, key: str) -> State:  # noqa: ARG002 - there is one key
        """Return the directory as each installation has it at first."""
        return new_directory()

    def ended(self, state: State) -> bool:  # noqa: ARG002 - it never does
        """Return whether the directory has ended: never."""
        return False

    def evolve(self, state: State, event: Handles) -> None:
        """Fold a request or a decision."""
        match event:
            case ChangeRequested():
                state.level = max(state.level, event.level)
            case DirectoryChanged() | ChangeRefused():
                evolve_decision(state, event)
            case HoldRequested():
                state.awaited[event.request_id] = event.model_version_id
            case HoldAnswered() | HoldReleased():
                pass  # what is decided on the answer makes the change
            case _:
                assert_never(event)

    def decide(self, state: State, fact: Handles) -> list[Payload]:
        """Return the decisions on a request, or on an answer of checkpoint-gc to one."""
        match fact:
            case ChangeRequested():
                return _decide(state, fact)
            case HoldAnswered():
                return _decide_held(state, fact)
            case _:
                return []


def _decide(state: State, fact: ChangeRequested) -> list[Payload]:
    if fact.request_id in state.awaited:
        return []  # it is answered once
    try:
        _check(state, fact)
    except _Refused as refused:
        return [_refusal(fact, refused)]
    change = fact.change
    if isinstance(change, changes.RegisterVersion):
        hold = HoldRequested(
            request_id=fact.request_id,
            by=fact.by,
            on_behalf_of=fact.on_behalf_of,
            experiment_id=change.experiment_id,
            checkpoint_id=change.checkpoint_id,
            model_version_id=change.model_version_id,
            area=change.area,
            request=fact,
        )
        return [hold]
    released: list[ModelVersion] = []
    if isinstance(change, changes.RemoveVersion):
        released = [state.model_versions[change.model_version_id]]
    elif isinstance(change, changes.RemoveModel):
        released = versions_of(state, change.model_id)
    return [
        _changed(state, fact),
        *(_release(fact, it.id, it.experiment_id, it.checkpoint_id) for it in released),
    ]


def _decide_held(state: State, answer: HoldAnswered) -> list[Payload]:
    """Register a version whose checkpoint stays; otherwise release that."""
    fact = answer.request
    change = fact.change
    assert isinstance(change, changes.RegisterVersion), change
    release = _release(fact, change.model_version_id, change.experiment_id, change.checkpoint_id)
    if fact.request_id not in state.awaited:
        # An answer that is repeated; or one to another installation, whose experiment is imported.
        return [] if change.model_version_id in state.model_versions else [release]
    if answer.refused:
        gone = _Refused("gone", answer.refused, "checkpoint_id")
        return [_refusal(fact, gone), release]
    try:
        _check(state, fact)
    except _Refused as refused:
        return [_refusal(fact, refused), release]
    return [_changed(state, fact)]


def _refusal(fact: ChangeRequested, refused: "_Refused") -> ChangeRefused:
    return ChangeRefused(
        request_id=fact.request_id,
        by=fact.by,
        on_behalf_of=fact.on_behalf_of,
        code=refused.code,
        reason=refused.reason,
        field=refused.field,
    )


def _changed(state: State, fact: ChangeRequested) -> DirectoryChanged:
    return DirectoryChanged(
        request_id=fact.request_id,
        by=fact.by,
        on_behalf_of=fact.on_behalf_of,
        version=state.version + 1,
        at_ms=fact.at_ms,
        change=fact.change,
    )


def _release(
    fact: ChangeRequested, version_id: str, experiment_id: str, checkpoint_id: str
) -> HoldReleased:
    return HoldReleased(
        request_id=fact.request_id,
        by=fact.by,
        on_behalf_of=fact.on_behalf_of,
        experiment_id=experiment_id,
        checkpoint_id=checkpoint_id,
        model_version_id=version_id,
    )


def evolve_decision(state: State, decision: DirectoryChanged | ChangeRefused) -> None:
    """Fold a decision; a refusal changes nothing of the directory."""
    state.awaited.pop(decision.request_id, None)
    if isinstance(decision, ChangeRefused):
        return
    state.version = decision.version
    _forget_expired(state, decision.at_ms - FORGOTTEN_MS)
    change = decision.change
    if isinstance(change, changes.OfPeople):
        _evolve_people(state, decision, change)
    elif isinstance(change, changes.OfAccess):
        _evolve_access(state, decision, change)
    elif isinstance(change, changes.OfWorkspaces):
        _evolve_workspaces(state, decision, change)
    elif isinstance(change, changes.OfResources):
        _evolve_resources(state, decision, change)
    elif isinstance(change, changes.OfModels):
        _evolve_models(state, decision, change)
    else:
        assert_never(change)


# Who asks.


class _Refused(Exception):
    """A request that is not met."""

    def __init__(self, code: Refusal, reason: str, field: str = "") -> None:
        self.code: Final = code
        self.reason: Final = reason
        self.field: Final = field
        super().__init__(reason)


class _Asker:
    """Who asked, and what that one may."""

    def __init__(self, state: State, fact: ChangeRequested) -> None:
        self.state: Final = state
        self.by: Final = fact.by
        self.at_ms: Final = fact.at_ms
        self.other: Final = fact.on_behalf_of
        self.token: Token | None = None
        if self.by == SYSTEM:
            return
        user = state.users.get(self.by)
        if user is None or not user.active:
            raise _Refused("revoked", f"user {self.by!r} is not there, or no longer active")
        if fact.via != ROOT:
            self.token = _valid_token(state, fact)
        if self.other is not None:
            known = state.users.get(self.other)
            if known is None or not known.active:
                raise _Refused("missing", f"there is no active user {self.other!r} to act for")
            own = limited(rights_of(state, self.by), *_limits(self.token), None)
            if "user.impersonate" not in own:
                raise _forbidden("user.impersonate", "to act for somebody else")

    @property
    def acting(self) -> str:
        """The user whose things are created and changed."""
        return self.other or self.by

    def rights(self, workspace_id: str | None = None) -> frozenset[str]:
        """Return what may be done in a workspace, or in the cluster."""
        found = rights_of(self.state, self.by, workspace_id)
        if self.other is not None:
            found &= rights_of(self.state, self.other, workspace_id)
        return limited(found, *_limits(self.token), workspace_id)

    def need(self, permission: str, workspace_id: str | None = None) -> None:
        """Refuse what needs a permission that is not held there."""
        if permission not in self.rights(workspace_id):
            raise _forbidden(permission, _where(self.state, workspace_id))

    def is_own(self, user_id: str) -> bool:
        """Return whether a user is who asked, by a token without limits."""
        free = self.token is None or (self.token.scope is None and self.token.workspace_id is None)
        return self.by == user_id and self.other is None and free

    def provisions(self, issuer: str) -> bool:
        """Return whether who asked is an identity provider, and manages what has this issuer."""
        return bool(issuer) and "directory.provision" in self.rights()

    def cover(self, given: Iterable[tuple[frozenset[str], str | None]], what: str) -> None:
        """Refuse what gives more than who asked has: permissions, each with its workspace."""
        for permissions, workspace_id in given:
            beyond = sorted(permissions - self.rights(workspace_id))
            if beyond:
                where = _where(self.state, workspace_id)
                raise _Refused(
                    "beyond", f"{what} has {beyond[0]} {where}, which you do not have there"
                )

    def cover_user(self, user_id: str) -> None:
        """Refuse what gives the rights of a user to one who has less."""
        self.cover(
            [
                (rights_of(self.state, user_id, place), place)
                for place in places_of(self.state, user_id)
            ],
            f"user {self.state.users[user_id].name!r}",
        )

    def cover_role(self, role: str, workspace_id: str | None) -> None:
        """Refuse to give or take a role that is more than who asked has."""
        given = rights.permissions_of(role, in_cluster=workspace_id is None)
        self.cover([(given, workspace_id)], f"the role {role}")

    def cover_group(self, group: Group) -> None:
        """Refuse to change who is in a group that may more than who asked."""
        for role, workspace_id in given_by(self.state, group.id):
            given = rights.permissions_of(role, in_cluster=workspace_id is None)
            self.cover([(given, workspace_id)], f"the group {group.name!r}")


def _valid_token(state: State, fact: ChangeRequested) -> Token:
    token = state.tokens.get(fact.via)
    if token is None or token.user_id != fact.by:
        raise _Refused("revoked", "the token or session is revoked; sign in again")
    if token.expires_ms is not None and token.expires_ms <= fact.at_ms:
        raise _Refused("revoked", "the token or session has expired; sign in again")
    return token


def _limits(token: Token | None) -> tuple[frozenset[str] | None, str | None]:
    if token is None:
        return None, None
    return None if token.scope is None else frozenset(token.scope), token.workspace_id


def _forbidden(permission: str, where: str) -> _Refused:
    having = " or ".join(rights.roles_with(permission))
    return _Refused(
        "forbidden", f"this needs the permission {permission} {where}; the role {having} has it"
    )


def _where(state: State, workspace_id: str | None) -> str:
    if workspace_id is None:
        return "in the cluster"
    known = state.workspaces.get(workspace_id)
    return f"in the workspace {known.name if known else workspace_id!r}"


# Checks, one for each change.


def _check(state: State, fact: ChangeRequested) -> None:
    """Check a request.

    Raises:
        _Refused: why it is not met.
    """
    asker = _Asker(state, fact)
    change = fact.change
    if isinstance(change, changes.OfPeople):
        _check_people(asker, change, fact.expected)
    elif isinstance(change, changes.OfAccess):
        _check_access(asker, change, fact.expected)
    elif isinstance(change, changes.OfWorkspaces):
        _check_workspaces(asker, change, fact.expected)
    elif isinstance(change, changes.OfResources):
        _check_resources(asker, change, fact.expected)
    elif isinstance(change, changes.OfModels):
        _check_models(asker, change, fact.expected, fact.request_id)
    else:
        assert_never(change)
    if not administrators(_after(state, change)):
        raise _Refused(
            "last-administrator",
            "no active cluster administrator would be left; give somebody else the role"
            f" {rights.ADMINISTRATOR} first",
        )


def _check_people(  # noqa: C901, PLR0912 - one case per change
    asker: _Asker, change: changes.OfPeople, expected: int | None
) -> None:
    state = asker.state
    match change:
        case changes.CreateUser():
            if change.kind == "service":
                asker.need("service.edit", change.workspace_id)
                _open_workspace(state, change.workspace_id)
            else:
                if not asker.provisions(change.issuer):
                    asker.need("user.edit")
                if change.workspace_id is not None:
                    raise _invalid("workspace_id", "only service accounts are of a workspace")
            _user_name(state, change.name)
            _texts(change, "display_name", "email", "issuer")
            _texts(change, "external_id", "given_name", "family_name")
            _free_external_id(state, change.issuer, change.external_id)
            _new(state.users, change.user_id, "user_id")
        case changes.ChangeUser():
            _check_change_user(asker, _user(state, change.user_id, expected), change)
        case changes.SetUserActive():
            _may_manage(asker, _user(state, change.user_id, expected), provided=True)
        case changes.RetireUser():
            user = _user(state, change.user_id, expected)
            _may_manage(asker, user, provided=True)
            if user.kind == "service":
                raise _invalid("user_id", "a service account is deactivated")
            _free(state, structs.replace(user, name=retired_name(user)))
        case changes.SetPassword():
            user = _user(state, change.user_id, expected)
            _may_manage(asker, user, own=True)
            _check_password(user, change)
        case changes.LinkIdentity():
            user = _user(state, change.user_id, expected)
            _may_manage(asker, user)
            _check_identity(state, user, change)
        case changes.UnlinkIdentity():
            user = _user(state, change.user_id, expected)
            _may_manage(asker, user)
            if (change.issuer, change.subject) not in user.identities:
                raise _Refused("missing", "the user has no such identity", "subject")
        case changes.SyncMemberships():
            user = _user(state, change.user_id, expected)
            asker.need("group.edit")
            _texts(change, "issuer", required=True)
            known = {group_id for group_id in change.groups if group_id in state.groups}
            if len(known) < len(change.groups):
                raise _invalid("groups", "names a group that is not there, or one twice")
            for group in _synced(state, user.id, change):
                asker.cover_group(group)
        case _:
            _check_groups(asker, change, expected)


def _check_groups(asker: _Asker, change: _OfGroups, expected: int | None) -> None:
    state = asker.state
    match change:
        case changes.CreateGroup():
            if not asker.provisions(change.issuer):
                asker.need("group.edit")
            _name(change.name)
            _free(state, Group(id="", name=change.name))
            _texts(change, "description", "issuer", "external_id")
            _new(state.groups, change.group_id, "group_id")
        case changes.ChangeGroup():
            group = _found(state.groups, change.group_id, "group", expected)
            if change.issuer is not None:
                asker.need("group.edit")
                asker.cover_group(group)
            elif not asker.provisions(group.issuer):
                asker.need("group.edit")
            _rename(state, group, change.name)
            _texts(change, "description", "issuer", "external_id")
        case changes.RemoveGroup():
            _may_manage_group(asker, _found(state.groups, change.group_id, "group", expected))
        case changes.ChangeMembers():
            _may_manage_group(asker, _found(state.groups, change.group_id, "group", expected))
            for user_id in change.add:
                _user(state, user_id, None, "add")
        case _:
            assert_never(change)


def _check_change_user(asker: _Asker, user: User, change: changes.ChangeUser) -> None:
    managed = change.issuer is None and change.external_id is None
    _may_manage(asker, user, own=managed, provided=change.issuer is None)
    if change.issuer is not None and user.kind == "service":
        raise _invalid("issuer", "no identity provider manages a service account")
    if change.name is not None and folded(change.name) != folded(user.name):
        _user_name(asker.state, change.name)
    _texts(change, "name", "display_name", "email", "issuer")
    _texts(change, "external_id", "given_name", "family_name")
    issuer = user.issuer if change.issuer is None else change.issuer
    external_id = change.external_id
    if external_id is None:
        external_id = user.external_id if issuer else ""
    if (issuer, external_id) != (user.issuer, user.external_id):
        _free_external_id(asker.state, issuer, external_id)


def _free_external_id(state: State, issuer: str, external_id: str) -> None:
    """Refuse an id of an identity provider that another user has."""
    if external_id and not issuer:
        raise _invalid("external_id", "is an identity provider's; no provider manages the user")
    if user_by_external_id(state, issuer, external_id) is not None:
        reason = f"there is a user with the external id {external_id[:100]!r} already"
        raise _Refused("taken", reason, "external_id")


def retired_name(user: User) -> str:
    """Return the name of a user who is retired, which leaves the one before to somebody else."""
    return f"{user.name}.retired-{user.id}"


def _may_manage_group(asker: _Asker, group: Group) -> None:
    """Refuse a change of who has the rights of a group to whom has not these rights."""
    if asker.provisions(group.issuer):
        return
    asker.need("group.edit")
    asker.cover_group(group)


def _may_manage(asker: _Asker, user: User, *, own: bool = False, provided: bool = False) -> None:
    """Refuse a change of a user to whom has neither the permission nor the rights of the user.

    Args:
        asker: who asked.
        user: whom it is about.
        own: whether one may change that of oneself.
        provided: whether the identity provider that manages the user may.
    """
    if own and asker.is_own(user.id):
        return
    if provided and user.kind == "person" and asker.provisions(user.issuer):
        return
    if user.kind == "service":
        asker.need("service.edit", user.workspace_id)
    else:
        asker.need("user.edit")
    asker.cover_user(user.id)


def _check_password(user: User, change: changes.SetPassword) -> None:
    if user.kind == "service":
        raise _invalid("user_id", "a service account has tokens, and no password")
    found = change.password_hash
    if found is not None and not (found.startswith("$argon2id$") and len(found) <= 1_000):
        raise _invalid("password_hash", "must be a hash by argon2id, never the password itself")


def _check_identity(state: State, user: User, change: changes.LinkIdentity) -> None:
    _texts(change, "issuer", "subject", required=True)
    if user.kind == "service":
        raise _invalid("user_id", "a service account does not sign in with an identity provider")
    holder = state.identities.get(identity_key(change.issuer, change.subject))
    if holder is not None:
        raise _Refused("taken", "this identity is linked to a user already", "subject")


def _synced(state: State, user_id: str, change: changes.SyncMemberships) -> list[Group]:
    """Return the groups that the user joins or leaves."""
    wanted = set(change.groups)
    return [
        group
        for group in state.groups.values()
        if (group.id in wanted and user_id not in group.members)
        or (group.id not in wanted and group.members.get(user_id) == change.issuer)
    ]


def _check_access(  # noqa: C901 - one case per change
    asker: _Asker, change: changes.OfAccess, expected: int | None
) -> None:
    state = asker.state
    match change:
        case changes.IssueToken():
            _check_issue(asker, change)
        case changes.RotateToken():
            token = _found(state.tokens, change.token_id, "token", expected)
            if asker.token is not token:
                _may_issue(asker, state.users[token.user_id])
            _check_secret(state, change.digest)
            _check_expiry(asker, change.expires_ms or token.expires_ms)
        case changes.RevokeToken():
            token = _found(state.tokens, change.token_id, "token", expected)
            if asker.token is not token:
                _may_revoke(asker, state.users[token.user_id])
        case changes.RevokeTokens():
            _may_revoke(asker, _user(state, change.user_id, expected))
        case changes.NoteTokenUse():
            _found(state.tokens, change.token_id, "token", expected)
            if asker.by != SYSTEM:
                raise _Refused("forbidden", "the gateway notes by itself which token was used")
        case changes.AssignRole():
            _check_assignment(asker, change)
        case changes.RemoveAssignment():
            found = _found(state.assignments, change.assignment_id, "assignment", expected)
            asker.need("role.assign", found.workspace_id)
            asker.cover_role(found.role, found.workspace_id)
        case _:
            assert_never(change)


def _check_issue(asker: _Asker, change: changes.IssueToken) -> None:
    state = asker.state
    user = _user(state, change.user_id, None)
    _new(state.tokens, change.token_id, "token_id")
    if not user.active:
        raise _invalid("user_id", "the user is not active")
    if (change.kind == "service") != (user.kind == "service"):
        raise _invalid("kind", "service accounts have tokens of the kind service, and people not")
    _may_issue(asker, user)
    _check_secret(state, change.digest)
    _texts(change, "name")
    if change.scope is not None:
        unknown = rights.missing_from(change.scope)
        if unknown or not change.scope:
            what = f"{unknown[0][:100]!r} is no permission" if unknown else "is empty"
            raise _invalid("scope", f"{what}; docs/RIGHTS.md lists them")
    if change.workspace_id is not None:
        _found(state.workspaces, change.workspace_id, "workspace", None)
    _check_expiry(asker, change.expires_ms)


def _may_issue(asker: _Asker, user: User) -> None:
    if asker.by == SYSTEM or asker.is_own(user.id):
        return
    if user.kind != "service":
        raise _Refused("forbidden", "a token of a person is made by that person, when signed in")
    _may_manage(asker, user)


def _may_revoke(asker: _Asker, user: User) -> None:
    if asker.is_own(user.id):
        return
    if user.kind == "service" and "service.edit" in asker.rights(user.workspace_id):
        return
    asker.need("token.edit")


def _check_secret(state: State, digest: str) -> None:
    if _DIGEST.fullmatch(digest) is None:
        raise _invalid("digest", "must be the SHA-256 of the secret, in 64 hexadecimal digits")
    if digest in state.digests:
        raise _Refused("taken", "this secret is in use; draw another one", "digest")


def _check_expiry(asker: _Asker, expires_ms: int | None) -> None:
    if expires_ms is not None and expires_ms <= asker.at_ms:
        raise _invalid("expires_ms", "lies in the past")
    token = asker.token
    if token is None or token.kind == "session" or token.expires_ms is None:
        return
    if expires_ms is None or expires_ms > token.expires_ms:
        raise _Refused("beyond", "a token cannot make one that outlives it", "expires_ms")


def _check_assignment(asker: _Asker, change: changes.AssignRole) -> None:
    state = asker.state
    _new(state.assignments, change.assignment_id, "assignment_id")
    role = rights.ROLES.get(change.role)
    if role is None:
        raise _invalid("role", f"{change.role[:100]!r} is none of {_ROLES}")
    place: rights.Place = "cluster" if change.workspace_id is None else "workspace"
    if place not in role.places:
        raise _invalid("workspace_id", f"{role.name} is a role of the whole cluster; name none")
    if (change.user_id is None) == (change.group_id is None):
        raise _invalid("user_id", "give a user or a group, and not both")
    if change.user_id is not None:
        _user(state, change.user_id, None)
    else:
        _found(state.groups, change.group_id or "", "group", None)
    _open_workspace(state, change.workspace_id)
    asker.need("role.assign", change.workspace_id)
    asker.cover_role(change.role, change.workspace_id)
    wanted = change.role, change.user_id, change.group_id, change.workspace_id
    for it in state.assignments.values():
        if (it.role, it.user_id, it.group_id, it.workspace_id) == wanted:
            raise _Refused("taken", "this role is assigned so already", "role")


def _check_workspaces(asker: _Asker, change: changes.OfWorkspaces, expected: int | None) -> None:
    state = asker.state
    match change:
        case changes.CreateWorkspace():
            asker.need("workspace.create")
            _name(change.name, without="/")
            _free(state, Workspace(id="", name=change.name, owner_id=""))
            _texts(change, "description", "default_pool", "storage")
            owner = _user(state, change.owner_id or asker.acting, None, "owner_id")
            if owner.id != asker.acting:
                asker.cover_role(rights.OWNER.name, None)
            _new(state.workspaces, change.workspace_id, "workspace_id")
        case changes.ChangeWorkspace():
            found = _found(state.workspaces, change.workspace_id, "workspace", expected)
            asker.need("workspace.edit", found.id)
            _rename(state, found, change.name, without="/")
            _texts(change, "description", "default_pool", "storage")
            if change.owner_id not in {None, found.owner_id}:
                _user(state, change.owner_id or "", None, "owner_id")
                asker.need("role.assign", found.id)
                asker.cover_role(rights.OWNER.name, found.id)
        case changes.ArchiveWorkspace():
            found = _found(state.workspaces, change.workspace_id, "workspace", expected)
            asker.need("workspace.archive", found.id)
            _not_built_in(found, "workspace")
        case changes.CreateProject():
            _found(state.workspaces, change.workspace_id, "workspace", None)
            asker.need("project.edit", change.workspace_id)
            _open_workspace(state, change.workspace_id)
            _name(change.name, without="/")
            _free(state, Project(id="", name=change.name, workspace_id=change.workspace_id))
            _texts(change, "description")
            _new(state.projects, change.project_id, "project_id")
        case changes.ChangeProject():
            project = _found(state.projects, change.project_id, "project", expected)
            asker.need("project.edit", project.workspace_id)
            _rename(state, project, change.name, without="/")
            _texts(change, "description")
        case changes.ArchiveProject():
            project = _found(state.projects, change.project_id, "project", expected)
            asker.need("project.edit", project.workspace_id)
            _not_built_in(project, "project")
        case changes.MoveProject():
            project = _found(state.projects, change.project_id, "project", expected)
            asker.need("project.edit", project.workspace_id)
            _check_move(asker, project, change.workspace_id)
        case _:
            assert_never(change)


def _check_move(asker: _Asker, project: Project, workspace_id: str) -> None:
    _not_built_in(project, "project")
    _found(asker.state.workspaces, workspace_id, "workspace", None)
    asker.need("project.edit", workspace_id)
    _open_workspace(asker.state, workspace_id)
    if workspace_id == project.workspace_id:
        raise _invalid("workspace_id", "the project is there already")
    _free(asker.state, Project(id="", name=project.name, workspace_id=workspace_id))


def _check_resources(  # noqa: C901, PLR0912 - one case per change
    asker: _Asker, change: changes.OfResources, expected: int | None
) -> None:
    state = asker.state
    match change:
        case changes.SetPolicy():
            _check_policy(asker, change, expected)
        case changes.RemovePolicy():
            policy = _found(state.policies, change.policy_id, "policy", expected)
            asker.need("policy.edit", workspace_of_policy(state, policy))
        case changes.SetTemplate():
            asker.need("template.edit", change.workspace_id)
            _check_set(state, _template(change, asker), expected, "template_id")
        case changes.RemoveTemplate():
            template = _found(state.templates, change.template_id, "template", expected)
            asker.need("template.edit", template.workspace_id)
        case changes.SetWebhook():
            asker.need("webhook.edit", change.workspace_id)
            _check_set(state, _webhook(change, asker), expected, "webhook_id")
            _check_webhook(state, change)
        case changes.RemoveWebhook():
            webhook = _found(state.webhooks, change.webhook_id, "webhook", expected)
            asker.need("webhook.edit", webhook.workspace_id)
        case changes.SaveSearch():
            known = state.searches.get(change.search_id)
            owner = asker.acting if known is None else known.user_id
            _may_search(asker, owner, change.workspace_id)
            search = _search(change, owner)
            _check_set(state, search, expected, "search_id")
        case changes.RemoveSearch():
            search = _found(state.searches, change.search_id, "search", expected)
            _may_search(asker, search.user_id, search.workspace_id)
        case changes.SetSecret():
            asker.need("secret.edit", change.workspace_id)
            _check_set(state, _secret(change, asker), expected, "secret_id")
            if _DIGEST.fullmatch(change.digest) is None:
                raise _invalid("digest", "must be the SHA-256 of the encrypted object")
        case changes.RemoveSecret():
            secret = _found(state.secrets, change.secret_id, "secret", expected)
            asker.need("secret.edit", secret.workspace_id)
            for it in state.webhooks.values():
                if it.secret_id == secret.id:
                    reason = f"the webhook {it.name!r} signs with it; change that one first"
                    raise _invalid("secret_id", reason)
        case _:
            assert_never(change)


def _may_search(asker: _Asker, owner: str, workspace_id: str | None) -> None:
    if workspace_id is not None:
        asker.need("search.edit", workspace_id)
    elif not asker.is_own(owner):
        raise _Refused("missing", "there is no search of this id", "search_id")


def _check_policy(asker: _Asker, change: changes.SetPolicy, expected: int | None) -> None:
    given = (change.workspace_id, change.project_id, change.pool)
    if sum(place is not None for place in given) > 1:
        raise _invalid("workspace_id", "give a workspace, a project or a pool, or none of them")
    if change.project_id is not None:
        _found(asker.state.projects, change.project_id, "project", None)
    policy = _policy(change, asker)
    asker.need("policy.edit", workspace_of_policy(asker.state, policy))
    _check_set(asker.state, policy, expected, "policy_id")


def workspace_of_policy(state: State, policy: Policy) -> str | None:
    """Return the workspace in which a policy holds, None if it is one of the cluster."""
    if policy.project_id is not None:
        return state.projects[policy.project_id].workspace_id
    return policy.workspace_id


def _check_webhook(state: State, change: changes.SetWebhook) -> None:
    if change.secret_id is not None:
        secret = state.secrets.get(change.secret_id)
        if secret is None or secret.workspace_id != change.workspace_id:
            raise _invalid("secret_id", "there is no such secret in this workspace")
    if change.project_id is not None:
        project = state.projects.get(change.project_id)
        if project is None or project.workspace_id != change.workspace_id:
            raise _invalid("project_id", "there is no such project in this workspace")


_Resource = Policy | Template | Webhook | Search | Secret


def _check_set(state: State, thing: _Resource, expected: int | None, field: str) -> None:
    """Check a thing that is created, or takes the place of the one with its id."""
    _name(thing.name)
    for name, most in (("document", DOCUMENT_MAX), ("query", TEXT_MAX), ("description", TEXT_MAX)):
        text: str = getattr(thing, name, "")
        if len(text) > most:
            raise _invalid(name, f"has {len(text):,} characters; at most {most:,} are kept")
    if thing.workspace_id is not None:
        _open_workspace(state, thing.workspace_id)
    known = table_of(state, thing).get(thing.id)
    if known is None:
        if expected is not None:
            raise _Refused("missing", f"there is no {_word(thing)} {thing.id!r}", field)
        _new(table_of(state, thing), thing.id, field)
        _free(state, thing)
        return
    _same_version(known, expected)
    if _space(known) != _space(thing):
        raise _invalid("workspace_id", f"a {_word(thing)} stays where it is; make another one")
    if folded(known.name) != folded(thing.name):
        _free(state, thing)


def _check_models(  # noqa: C901 - one case per change
    asker: _Asker, change: changes.OfModels, expected: int | None, request_id: str
) -> None:
    state = asker.state
    match change:
        case changes.CreateModel():
            _found(state.workspaces, change.workspace_id, "workspace", None)
            asker.need("model.edit", change.workspace_id)
            _open_workspace(state, change.workspace_id)
            _name(change.name, without="/")
            _free(state, Model(id="", name=change.name, workspace_id=change.workspace_id))
            _new(state.models, change.model_id, "model_id")
        case changes.ChangeModel():
            model = _open_model(asker, change.model_id, expected)
            _rename(state, model, change.name, without="/")
        case changes.ArchiveModel():
            _model(asker, change.model_id, expected)
        case changes.MoveModel():
            model = _model(asker, change.model_id, expected)
            _found(state.workspaces, change.workspace_id, "workspace", None)
            asker.need("model.edit", change.workspace_id)
            _open_workspace(state, change.workspace_id)
            if change.workspace_id == model.workspace_id:
                raise _invalid("workspace_id", "the model is there already")
            _free(state, structs.replace(model, workspace_id=change.workspace_id))
        case changes.RemoveModel():
            _model(asker, change.model_id, expected)
        case changes.RegisterVersion():
            _open_model(asker, change.model_id, None)
            _new(state.model_versions, change.model_version_id, "model_version_id")
            awaited = (it for key, it in state.awaited.items() if key != request_id)
            if change.model_version_id in awaited:
                raise _taken_id(change.model_version_id, "model_version_id")
        case changes.ChangeVersion():
            version = _version(asker, change.model_version_id, expected)
            _open_model(asker, version.model_id, None)
        case changes.RemoveVersion():
            _version(asker, change.model_version_id, expected)
        case _:
            assert_never(change)
    _check_model_texts(change)


def _check_model_texts(change: changes.OfModels) -> None:
    for name in ("description", "notes"):
        text: str = getattr(change, name, None) or ""
        if len(text) > TEXT_MAX:
            raise _invalid(name, f"has {len(text):,} characters; at most {TEXT_MAX:,} are kept")
    if isinstance(change, changes.RegisterVersion | changes.ChangeVersion) and change.name:
        _name(change.name)
    labels: list[str] = getattr(change, "labels", None) or []
    if len(labels) > LABELS_MAX or len(dict.fromkeys(labels)) < len(labels):
        raise _invalid("labels", f"must be at most {LABELS_MAX}, none of them twice")
    for label in labels:
        if not 0 < len(label) <= NAME_MAX or "\n" in label:
            raise _invalid("labels", f"must be lines of 1 to {NAME_MAX} characters each")
    size = len(json.encode(getattr(change, "metadata", None) or {}))
    if size > METADATA_MAX:
        raise _invalid(
            "metadata", f"has {size:,} bytes of JSON; at most {METADATA_MAX:,} are kept"
        )


def _model(asker: _Asker, model_id: str, expected: int | None) -> Model:
    model: Model = _found(asker.state.models, model_id, "model", expected)
    asker.need("model.edit", model.workspace_id)
    return model


def _open_model(asker: _Asker, model_id: str, expected: int | None) -> Model:
    model = _model(asker, model_id, expected)
    _open_workspace(asker.state, model.workspace_id)
    if model.archived:
        reason = f"the model {model.name!r} is archived; open it again first"
        raise _Refused("archived", reason, "model_id")
    return model


def _version(asker: _Asker, version_id: str, expected: int | None) -> ModelVersion:
    version = asker.state.model_versions.get(version_id)
    if version is None:
        reason = f"there is no version of a model {version_id[:100]!r}"
        raise _Refused("missing", reason, "model_version_id")
    _model(asker, version.model_id, None)
    _same_version(version, expected)
    return version


def _after(state: State, change: changes.Change) -> State:
    """Return the part of the state by which there are administrators, after a change."""
    match change:
        case changes.SetUserActive(active=False) | changes.RetireUser():
            user = structs.replace(state.users[change.user_id], active=False)
            return State(
                users=state.users | {user.id: user},
                groups=state.groups,
                assignments=state.assignments,
            )
        case changes.RemoveGroup():
            groups = {key: it for key, it in state.groups.items() if key != change.group_id}
        case changes.ChangeMembers():
            group = state.groups[change.group_id]
            members = {key: it for key, it in group.members.items() if key not in change.remove}
            members = dict.fromkeys(change.add, "") | members
            groups = state.groups | {group.id: structs.replace(group, members=members)}
        case changes.SyncMemberships():
            groups = dict(state.groups)
            for group in _synced(state, change.user_id, change):
                members = {key: it for key, it in group.members.items() if key != change.user_id}
                if group.id in change.groups:
                    members[change.user_id] = change.issuer
                groups[group.id] = structs.replace(group, members=members)
        case changes.RemoveAssignment():
            left = {k: it for k, it in state.assignments.items() if k != change.assignment_id}
            return State(users=state.users, groups=state.groups, assignments=left)
        case _:
            return state
    return State(users=state.users, groups=groups, assignments=state.assignments)


# What a field may be.


def _invalid(field: str, text: str) -> _Refused:
    return _Refused("invalid", f"{field}: {text}", field)


def _word(thing: Thing) -> str:
    return (
        "version of a model" if isinstance(thing, ModelVersion) else type(thing).__name__.lower()
    )


def _space(thing: Thing) -> str:
    found = space_of(thing)
    assert found is not None, thing
    return found


def _new(table: dict[str, Any], name: str, field: str) -> None:
    if _ID.fullmatch(name) is None or name in _RESERVED:
        raise _invalid(field, "must be 1 to 40 small letters, digits and dashes")
    if name in table:
        raise _taken_id(name, field)


def _taken_id(name: str, field: str) -> _Refused:
    return _Refused("taken", f"the id {name!r} is in use; draw another one", field)


def _found(table: dict[str, Any], name: str, word: str, expected: int | None) -> Any:
    found = table.get(name)
    if found is None:
        raise _Refused("missing", f"there is no {word} {name[:100]!r}", f"{word}_id")
    _same_version(found, expected)
    return found


def _same_version(found: Thing, expected: int | None) -> None:
    if expected not in {None, found.version}:
        raise _Refused(
            "changed",
            f"another change came first: this {_word(found)} has version {found.version};"
            " read it again",
        )


def _user(state: State, name: str, expected: int | None, field: str = "user_id") -> User:
    found = state.users.get(name)
    if found is None or found.retired:
        raise _Refused("missing", f"there is no user {name[:100]!r}", field)
    _same_version(found, expected)
    return found


def _not_built_in(thing: Thing, word: str) -> None:
    if thing.id == DEFAULT:
        reason = f"the {word} {thing.name!r} is there from the beginning, and stays"
        raise _Refused("built-in", reason, f"{word}_id")


def _open_workspace(state: State, workspace_id: str | None) -> None:
    if workspace_id is None:
        return
    found: Workspace = _found(state.workspaces, workspace_id, "workspace", None)
    if found.archived:
        reason = f"the workspace {found.name!r} is archived; open it again first"
        raise _Refused("archived", reason, "workspace_id")


def _name(name: str, without: str = "") -> None:
    if not 0 < len(name) <= NAME_MAX or name != name.strip():
        raise _invalid(
            "name", f"must be 1 to {NAME_MAX} characters, without spaces at its beginning and end"
        )
    unseen = _UNSEEN.search(name)
    if unseen is not None:
        raise _invalid(
            "name",
            f"must be without control characters and invisible ones; it has {unseen[0]!a}",
        )
    wrong = [letter for letter in without if letter in name]
    if wrong:
        raise _invalid("name", f"must be without {' and '.join(map(repr, wrong))}")


def _user_name(state: State, name: str) -> None:
    _name(name, without="/ ")
    if folded(name) in _RESERVED:
        raise _Refused("taken", f"the name {name!r} is Rung's own; choose another one", "name")
    _free(state, User(id="", name=name))


def _free(state: State, thing: Thing) -> None:
    """Refuse a name that another thing has in the same space."""
    if folded(thing.name) in state.names.get(_space(thing), {}):
        reason = f"there is a {_word(thing)} of the name {thing.name!r} already; choose another"
        raise _Refused("taken", reason, "name")


def _rename(state: State, thing: Thing, name: str | None, *, without: str = "") -> None:
    if name is None:
        return
    _name(name, without)
    if folded(name) == folded(thing.name):
        return
    _free(state, structs.replace(thing, name=name))


def _texts(change: Any, *fields: str, required: bool = False) -> None:
    for field in fields:
        text: str | None = getattr(change, field)
        if text is None:
            continue
        if len(text) > TEXT_MAX:
            raise _invalid(field, f"has {len(text):,} characters; at most {TEXT_MAX:,} are kept")
        if "\n" in text and field != "description":
            raise _invalid(field, "must be one line")
        if required and not text:
            raise _invalid(field, "must not be empty")


# What follows from each change.


def _evolve_people(state: State, decision: DirectoryChanged, change: changes.OfPeople) -> None:  # noqa: C901, PLR0912 - one case per change
    at_ms = decision.at_ms
    match change:
        case changes.CreateUser():
            user = User(
                id=change.user_id,
                name=change.name,
                created_ms=at_ms,
                changed_ms=at_ms,
                kind=change.kind,
                display_name=change.display_name,
                email=change.email,
                workspace_id=change.workspace_id,
                issuer=change.issuer,
                external_id=change.external_id,
                given_name=change.given_name,
                family_name=change.family_name,
            )
            put(state, user)
        case changes.ChangeUser():
            user = state.users[change.user_id]
            fields = "name", "display_name", "email", "issuer"
            names = "external_id", "given_name", "family_name"
            _set(state, user, at_ms, change, *fields, *names)
            if not user.issuer:
                user.external_id = ""
        case changes.RetireUser():
            _retire(state, state.users[change.user_id], at_ms)
        case changes.SetUserActive():
            user = state.users[change.user_id]
            user.active = change.active
            _touch(user, at_ms)
            if not user.active:
                _revoke(state, tokens_of(state, user.id))
        case changes.SetPassword():
            user = state.users[change.user_id]
            user.password_hash = change.password_hash
            _touch(user, at_ms)
        case changes.LinkIdentity():
            user = state.users[change.user_id]
            user.identities.append((change.issuer, change.subject))
            state.identities[identity_key(change.issuer, change.subject)] = user.id
            _touch(user, at_ms)
        case changes.UnlinkIdentity():
            user = state.users[change.user_id]
            user.identities.remove((change.issuer, change.subject))
            del state.identities[identity_key(change.issuer, change.subject)]
            _touch(user, at_ms)
        case changes.SyncMemberships():
            for group in _synced(state, change.user_id, change):
                group.members.pop(change.user_id, None)
                if group.id in change.groups:
                    group.members[change.user_id] = change.issuer
                _touch(group, at_ms)
        case _:
            _evolve_groups(state, at_ms, change)


def _retire(state: State, user: User, at_ms: int) -> None:
    _revoke(state, tokens_of(state, user.id))
    for issuer, subject in user.identities:
        del state.identities[identity_key(issuer, subject)]
    for group in state.groups.values():
        if group.members.pop(user.id, None) is not None:
            _touch(group, at_ms)
    unname(state, user)
    user.active, user.retired = False, True
    user.name, user.external_id, user.password_hash = retired_name(user), "", None
    user.identities = []
    _touch(user, at_ms)
    put(state, user)


def _evolve_groups(
    state: State,
    at_ms: int,
    change: _OfGroups,
) -> None:
    match change:
        case changes.CreateGroup():
            group = Group(
                id=change.group_id,
                name=change.name,
                created_ms=at_ms,
                changed_ms=at_ms,
                description=change.description,
                issuer=change.issuer,
                external_id=change.external_id,
            )
            put(state, group)
        case changes.ChangeGroup():
            fields = "name", "description", "issuer", "external_id"
            _set(state, state.groups[change.group_id], at_ms, change, *fields)
        case changes.RemoveGroup():
            drop(state, state.groups[change.group_id])
            for key in [
                k for k, it in state.assignments.items() if it.group_id == change.group_id
            ]:
                del state.assignments[key]
        case changes.ChangeMembers():
            group = state.groups[change.group_id]
            for user_id in change.remove:
                group.members.pop(user_id, None)
            for user_id in change.add:
                group.members.setdefault(user_id, "")
            _touch(group, at_ms)
        case _:
            assert_never(change)


def _evolve_access(state: State, decision: DirectoryChanged, change: changes.OfAccess) -> None:
    at_ms = decision.at_ms
    match change:
        case changes.IssueToken():
            token = Token(
                id=change.token_id,
                name=change.name,
                created_ms=at_ms,
                changed_ms=at_ms,
                user_id=change.user_id,
                digest=change.digest,
                kind=change.kind,
                scope=change.scope,
                workspace_id=change.workspace_id,
                expires_ms=change.expires_ms,
            )
            put(state, token)
            state.digests[token.digest] = token.id
            _note_expiry(state, token)
        case changes.RotateToken():
            token = state.tokens[change.token_id]
            _revoke(state, [token])
            if change.expires_ms is not None:
                token.expires_ms = change.expires_ms
            token.digest, token.rotated_ms = change.digest, at_ms
            _touch(token, at_ms)
            put(state, token)
            state.digests[token.digest] = token.id
            _note_expiry(state, token)
        case changes.RevokeToken():
            _revoke(state, [state.tokens[change.token_id]])
        case changes.RevokeTokens():
            found = tokens_of(state, change.user_id)
            _revoke(state, [it for it in found if change.kind in {None, it.kind}])
        case changes.NoteTokenUse():
            token = state.tokens[change.token_id]
            token.used_ms = max(token.used_ms or 0, at_ms)
        case changes.AssignRole():
            assignment = Assignment(
                id=change.assignment_id,
                created_ms=at_ms,
                changed_ms=at_ms,
                role=change.role,
                user_id=change.user_id,
                group_id=change.group_id,
                workspace_id=change.workspace_id,
                by=decision.by,
            )
            put(state, assignment)
        case changes.RemoveAssignment():
            del state.assignments[change.assignment_id]
        case _:
            assert_never(change)


def _revoke(state: State, tokens: Iterable[Token]) -> None:
    for token in tokens:
        del state.tokens[token.id]
        del state.digests[token.digest]
        if token.expires_ms is not None:
            place = bisect_left(state.expiring, (token.expires_ms, token.id))
            del state.expiring[place]


def _note_expiry(state: State, token: Token) -> None:
    if token.expires_ms is not None:
        insort(state.expiring, (token.expires_ms, token.id))


def _forget_expired(state: State, before_ms: int) -> None:
    while state.expiring and state.expiring[0][0] < before_ms:
        _revoke(state, [state.tokens[state.expiring[0][1]]])


def _evolve_workspaces(
    state: State, decision: DirectoryChanged, change: changes.OfWorkspaces
) -> None:
    at_ms = decision.at_ms
    match change:
        case changes.CreateWorkspace():
            workspace = Workspace(
                id=change.workspace_id,
                name=change.name,
                created_ms=at_ms,
                changed_ms=at_ms,
                owner_id=change.owner_id or decision.on_behalf_of or decision.by,
                description=change.description,
                default_pool=change.default_pool,
                storage=change.storage,
            )
            put(state, workspace)
        case changes.ChangeWorkspace():
            workspace = state.workspaces[change.workspace_id]
            fields = "name", "description", "owner_id", "default_pool", "storage"
            _set(state, workspace, at_ms, change, *fields)
        case changes.ArchiveWorkspace():
            _set(state, state.workspaces[change.workspace_id], at_ms, change, "archived")
        case changes.CreateProject():
            project = Project(
                id=change.project_id,
                name=change.name,
                created_ms=at_ms,
                changed_ms=at_ms,
                workspace_id=change.workspace_id,
                description=change.description,
            )
            put(state, project)
        case changes.ChangeProject():
            _set(state, state.projects[change.project_id], at_ms, change, "name", "description")
        case changes.ArchiveProject():
            _set(state, state.projects[change.project_id], at_ms, change, "archived")
        case changes.MoveProject():
            project = state.projects[change.project_id]
            for webhook in state.webhooks.values():
                if webhook.project_id == project.id:
                    webhook.active = False  # its receiver is of the workspace before
                    _touch(webhook, at_ms)
            _set(state, project, at_ms, change, "workspace_id")
        case _:
            assert_never(change)


def _evolve_resources(  # noqa: C901 - one case per change
    state: State, decision: DirectoryChanged, change: changes.OfResources
) -> None:
    thing: _Resource
    match change:
        case changes.SetPolicy():
            thing = _policy(change, decision)
        case changes.SetTemplate():
            thing = _template(change, decision)
        case changes.SetWebhook():
            thing = _webhook(change, decision)
        case changes.SaveSearch():
            known = state.searches.get(change.search_id)
            acting = decision.on_behalf_of or decision.by
            thing = _search(change, acting if known is None else known.user_id)
        case changes.SetSecret():
            thing = _secret(change, decision)
        case changes.RemovePolicy():
            return drop(state, state.policies[change.policy_id])
        case changes.RemoveTemplate():
            return drop(state, state.templates[change.template_id])
        case changes.RemoveWebhook():
            return drop(state, state.webhooks[change.webhook_id])
        case changes.RemoveSearch():
            return drop(state, state.searches[change.search_id])
        case changes.RemoveSecret():
            return drop(state, state.secrets[change.secret_id])
        case _:
            assert_never(change)
    return _replace(state, thing, decision.at_ms)


def _evolve_models(state: State, decision: DirectoryChanged, change: changes.OfModels) -> None:
    at_ms = decision.at_ms
    match change:
        case changes.CreateModel():
            model = Model(
                id=change.model_id,
                name=change.name,
                created_ms=at_ms,
                changed_ms=at_ms,
                workspace_id=change.workspace_id,
                description=change.description,
                labels=change.labels,
                metadata=change.metadata,
                by=decision.on_behalf_of or decision.by,
            )
            put(state, model)
        case changes.ChangeModel():
            fields = "name", "description", "labels", "metadata"
            _set(state, state.models[change.model_id], at_ms, change, *fields)
        case changes.ArchiveModel():
            _set(state, state.models[change.model_id], at_ms, change, "archived")
        case changes.MoveModel():
            _set(state, state.models[change.model_id], at_ms, change, "workspace_id")
        case changes.RemoveModel():
            for version in versions_of(state, change.model_id):
                drop(state, version)
            drop(state, state.models[change.model_id])
        case changes.RegisterVersion():
            model = state.models[change.model_id]
            model.newest += 1
            _touch(model, at_ms)
            version = ModelVersion(
                id=change.model_version_id,
                name=change.name,
                created_ms=at_ms,
                changed_ms=at_ms,
                model_id=model.id,
                number=model.newest,
                experiment_id=change.experiment_id,
                trial_id=change.trial_id,
                checkpoint_id=change.checkpoint_id,
                notes=change.notes,
                labels=change.labels,
                by=decision.on_behalf_of or decision.by,
            )
            put(state, version)
        case changes.ChangeVersion():
            version = state.model_versions[change.model_version_id]
            _set(state, version, at_ms, change, "name", "notes", "labels")
        case changes.RemoveVersion():
            drop(state, state.model_versions[change.model_version_id])
        case _:
            assert_never(change)


def _replace(state: State, thing: _Resource, at_ms: int) -> None:
    """Put a thing in the place of the one with its id, if there is one."""
    known = table_of(state, thing).get(thing.id)
    thing.created_ms = thing.changed_ms = at_ms
    if known is not None:
        unname(state, known)
        thing.version, thing.created_ms = known.version + 1, known.created_ms
    put(state, thing)


def _policy(change: changes.SetPolicy, by: "_Asker | DirectoryChanged") -> Policy:
    return Policy(
        id=change.policy_id,
        name=change.name,
        kind=change.kind,
        document=change.document,
        workspace_id=change.workspace_id,
        project_id=change.project_id,
        pool=change.pool,
        by=by.by,
    )


def _template(change: changes.SetTemplate, by: "_Asker | DirectoryChanged") -> Template:
    return Template(
        id=change.template_id,
        name=change.name,
        workspace_id=change.workspace_id,
        document=change.document,
        by=by.by,
    )


def _webhook(change: changes.SetWebhook, by: "_Asker | DirectoryChanged") -> Webhook:
    return Webhook(
        id=change.webhook_id,
        name=change.name,
        workspace_id=change.workspace_id,
        document=change.document,
        secret_id=change.secret_id,
        project_id=change.project_id,
        experiment_id=change.experiment_id,
        active=change.active,
        by=by.by,
    )


def _search(change: changes.SaveSearch, user_id: str) -> Search:
    return Search(
        id=change.search_id,
        name=change.name,
        query=change.query,
        user_id=user_id,
        workspace_id=change.workspace_id,
    )


def _secret(change: changes.SetSecret, by: "_Asker | DirectoryChanged") -> Secret:
    return Secret(
        id=change.secret_id,
        name=change.name,
        workspace_id=change.workspace_id,
        digest=change.digest,
        reference=change.reference,
        description=change.description,
        by=by.by,
    )


def _touch(thing: Thing, at_ms: int) -> None:
    thing.version += 1
    thing.changed_ms = at_ms


def _set(state: State, thing: Thing, at_ms: int, change: Any, *fields: str) -> None:
    """Set the fields that a change gives, in the table and in the index of names."""
    unname(state, thing)
    for field in fields:
        value = getattr(change, field)
        if value is not None:
            setattr(thing, field, value)
    _touch(thing, at_ms)
    put(state, thing)

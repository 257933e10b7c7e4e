"""The directory's decisions: given what is there, when somebody asks, then this is the answer."""

# ruff: noqa: S106 - ids of tokens and secrets

import hashlib

import pytest

from gateway.directory.scenario import DAY_MS, Office
from rung import rights
from rung.events.changes import (
    ArchiveProject,
    ArchiveWorkspace,
    AssignRole,
    Change,
    ChangeGroup,
    ChangeMembers,
    ChangeProject,
    ChangeUser,
    ChangeWorkspace,
    CreateGroup,
    CreateProject,
    CreateUser,
    CreateWorkspace,
    IssueToken,
    LinkIdentity,
    MoveProject,
    NoteTokenUse,
    RemoveAssignment,
    RemoveGroup,
    RemovePolicy,
    RemoveSearch,
    RemoveSecret,
    RemoveTemplate,
    RemoveWebhook,
    RevokeToken,
    RevokeTokens,
    RotateToken,
    SaveSearch,
    SetPassword,
    SetPolicy,
    SetSecret,
    SetTemplate,
    SetUserActive,
    SetWebhook,
    SyncMemberships,
    UnlinkIdentity,
)
from rung.events.directory import ADMIN, DEFAULT, SYSTEM
from rung.gateway.directory.state import State, administrators, rights_of

HASH = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA"


def digest(text: str) -> str:
    """Return the digest of a secret."""
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def office() -> Office:
    """Return a directory with Anna, who owns the workspace vision, and Bob, who has nothing."""
    office = Office()
    for name in ("anna", "bob", "cleo"):
        office.done(CreateUser(user_id=f"u-{name}", name=name))
    office.done(CreateWorkspace(workspace_id="vision", name="Vision", owner_id="u-anna"))
    office.done(CreateProject(project_id="p1", workspace_id="vision", name="digits"))
    office.done(CreateGroup(group_id="g1", name="Team A"))
    return office


def role(name: str, user: str, workspace: str | None = None, key: str = "") -> AssignRole:
    """Return the assignment of a role to a user."""
    return AssignRole(
        assignment_id=key or f"a-{user}-{name}", role=name, user_id=user, workspace_id=workspace
    )


def token(name: str, user: str, **more: object) -> IssueToken:
    """Return a new token of a user."""
    return IssueToken(token_id=name, user_id=user, digest=digest(name), **more)  # type: ignore[arg-type]


def test_what_is_there_from_the_beginning() -> None:
    """One administrator, and a workspace with a project for what was submitted before."""
    office = Office()
    assert administrators(office.state) == [ADMIN]
    assert rights_of(office.state, ADMIN) == rights.ALL
    assert list(office.state.workspaces) == list(office.state.projects) == [DEFAULT]


@pytest.mark.parametrize("unseen", ["\x1b", "\x85", "\u200b", "\u202e", "\ufe0f", "\U000e0061"])
def test_names_have_no_characters_that_cannot_be_seen(office: Office, unseen: str) -> None:
    """Else two people would have names that look the same, or turn a line round."""
    name = f"an{unseen}na"
    refused = ("invalid", "name")
    assert office.ask(CreateUser(user_id="x", name=name)) == refused
    assert office.ask(ChangeUser(user_id="u-bob", name=name)) == refused
    assert office.ask(ChangeGroup(group_id="g1", name=name)) == refused
    assert office.ask(CreateWorkspace(workspace_id="x", name=name)) == refused
    assert office.ask(ChangeProject(project_id="p1", name=name)) == refused
    office.done(CreateUser(user_id="x", name="ännа-李-😀"))  # noqa: RUF001 - other scripts stay


def test_names_are_unique_whatever_their_case(office: Office) -> None:
    """Also those of what is archived; a project's only in its workspace."""
    assert office.ask(CreateUser(user_id="x", name="ANNA")) == ("taken", "name")
    assert office.ask(CreateGroup(group_id="x", name="team a")) == ("taken", "name")
    office.done(ArchiveWorkspace(workspace_id="vision", archived=True))
    assert office.ask(CreateWorkspace(workspace_id="x", name="vision")) == ("taken", "name")
    office.done(CreateProject(project_id="p2", workspace_id=DEFAULT, name="digits"))
    office.done(ChangeUser(user_id="u-bob", name="Bob"))
    assert office.ask(ChangeUser(user_id="u-bob", name="Anna")) == ("taken", "name")
    office.done(ChangeUser(user_id="u-bob", name="robert"))
    office.done(CreateUser(user_id="x", name="bob"))


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (CreateUser(user_id="U 1", name="dora"), ("invalid", "user_id")),
        (CreateUser(user_id="u-anna", name="dora"), ("taken", "user_id")),
        (CreateUser(user_id="system", name="dora"), ("invalid", "user_id")),
        (CreateUser(user_id="x", name="do ra"), ("invalid", "name")),
        (CreateUser(user_id="x", name=""), ("invalid", "name")),
        (CreateUser(user_id="x", name="d\x00"), ("invalid", "name")),
        (CreateUser(user_id="x", name="d" * 101), ("invalid", "name")),
        (CreateUser(user_id="x", name="System"), ("taken", "name")),
        (CreateUser(user_id="x", name="d", email="a\nb"), ("invalid", "email")),
        (CreateUser(user_id="x", name="d", workspace_id="vision"), ("invalid", "workspace_id")),
        (
            CreateUser(user_id="x", name="d", kind="service", workspace_id="none"),
            ("missing", "workspace_id"),
        ),
        (ChangeUser(user_id="none", name="d"), ("missing", "user_id")),
        (SetPassword(user_id="u-bob", password_hash="secret"), ("invalid", "password_hash")),
        (UnlinkIdentity(user_id="u-bob", issuer="i", subject="s"), ("missing", "subject")),
        (LinkIdentity(user_id="u-bob", issuer="", subject="s"), ("invalid", "issuer")),
        (ChangeMembers(group_id="none", add=["u-bob"]), ("missing", "group_id")),
        (ChangeMembers(group_id="g1", add=["none"]), ("missing", "add")),
        (SyncMemberships(user_id="u-bob", issuer="i", groups=["no"]), ("invalid", "groups")),
        (ChangeGroup(group_id="g1", name="a" * 101), ("invalid", "name")),
        (CreateWorkspace(workspace_id="x", name="a/b"), ("invalid", "name")),
        (CreateWorkspace(workspace_id="x", name="a", owner_id="none"), ("missing", "owner_id")),
        (ArchiveWorkspace(workspace_id=DEFAULT, archived=True), ("built-in", "workspace_id")),
        (ArchiveProject(project_id=DEFAULT, archived=True), ("built-in", "project_id")),
        (MoveProject(project_id=DEFAULT, workspace_id="vision"), ("built-in", "project_id")),
        (MoveProject(project_id="p1", workspace_id="vision"), ("invalid", "workspace_id")),
        (MoveProject(project_id="p1", workspace_id="none"), ("missing", "workspace_id")),
        (ChangeProject(project_id="p1", name=" x"), ("invalid", "name")),
        (role("emperor", "u-bob"), ("invalid", "role")),
        (role("cluster-admin", "u-bob", "vision"), ("invalid", "workspace_id")),
        (role("viewer", "none"), ("missing", "user_id")),
        (AssignRole(assignment_id="x", role="viewer"), ("invalid", "user_id")),
        (
            AssignRole(assignment_id="x", role="viewer", group_id="no"),
            ("missing", "group_id"),
        ),
        (role("viewer", "u-bob", "none"), ("missing", "workspace_id")),
        (RemoveAssignment(assignment_id="none"), ("missing", "assignment_id")),
        (token("t", ADMIN, scope=[]), ("invalid", "scope")),
        (token("t", ADMIN, scope=["no.such"]), ("invalid", "scope")),
        (token("t", ADMIN, expires_ms=1), ("invalid", "expires_ms")),
        (token("t", ADMIN, kind="service"), ("invalid", "kind")),
        (token("t", ADMIN, workspace_id="none"), ("missing", "workspace_id")),
        (
            IssueToken(token_id="t", user_id=ADMIN, digest="secret"),
            ("invalid", "digest"),
        ),
        (RevokeToken(token_id="none"), ("missing", "token_id")),
        (
            SetPolicy(
                policy_id="x",
                name="p",
                kind="defaults",
                document="",
                workspace_id="vision",
                pool="gpus",
            ),
            ("invalid", "workspace_id"),
        ),
        (
            SetTemplate(template_id="x", workspace_id="vision", name="t", document="d" * 200_001),
            ("invalid", "document"),
        ),
        (
            SetSecret(
                secret_id="x", workspace_id="vision", name="s", digest="value", reference="r"
            ),
            ("invalid", "digest"),
        ),
        (
            SetWebhook(
                webhook_id="x", workspace_id="vision", name="w", document="", secret_id="no"
            ),
            ("invalid", "secret_id"),
        ),
        (RemovePolicy(policy_id="x"), ("missing", "policy_id")),
        (RemoveTemplate(template_id="x"), ("missing", "template_id")),
        (RemoveWebhook(webhook_id="x"), ("missing", "webhook_id")),
        (RemoveSearch(search_id="x"), ("missing", "search_id")),
        (RemoveSecret(secret_id="x"), ("missing", "secret_id")),
    ],
    ids=lambda it: "" if isinstance(it, tuple) else type(it).__name__,
)
def test_what_cannot_be_is_refused_with_the_field(
    office: Office, change: Change, refused: tuple[str, str]
) -> None:
    """An administrator may all, so what is refused is the fault of the change."""
    version = office.state.version
    assert office.ask(change) == refused
    assert office.state.version == version


@pytest.mark.parametrize(
    "change",
    [
        CreateUser(user_id="x", name="x"),
        CreateUser(user_id="x", name="x", kind="service", workspace_id="vision"),
        ChangeUser(user_id="u-cleo", name="x"),
        SetUserActive(user_id="u-cleo", active=False),
        SetPassword(user_id="u-cleo", password_hash=HASH),
        LinkIdentity(user_id="u-bob", issuer="i", subject="s"),
        CreateGroup(group_id="x", name="x"),
        ChangeGroup(group_id="g1", name="x"),
        ChangeMembers(group_id="g1", add=["u-bob"]),
        SyncMemberships(user_id="u-bob", issuer="i", groups=["g1"]),
        RemoveGroup(group_id="g1"),
        CreateWorkspace(workspace_id="x", name="x"),
        ChangeWorkspace(workspace_id="vision", name="x"),
        ArchiveWorkspace(workspace_id="vision", archived=True),
        CreateProject(project_id="x", workspace_id="vision", name="x"),
        ChangeProject(project_id="p1", name="x"),
        MoveProject(project_id="p1", workspace_id=DEFAULT),
        role("viewer", "u-bob", "vision"),
        token("x", "u-cleo"),
        SetPolicy(policy_id="x", name="x", kind="defaults", document=""),
        SetTemplate(template_id="x", workspace_id="vision", name="x", document=""),
        SetWebhook(webhook_id="x", workspace_id="vision", name="x", document=""),
        SaveSearch(search_id="x", workspace_id="vision", name="x", query=""),
        SetSecret(
            secret_id="x", workspace_id="vision", name="x", digest=digest("x"), reference="r"
        ),
    ],
    ids=lambda it: type(it).__name__,
)
def test_who_has_no_right_is_refused(office: Office, change: Change) -> None:
    """Bob, who has no role, changes nothing but what is his own."""
    found = office.ask(change, by="u-bob")
    assert found is not None
    assert found[0] == "forbidden"


def test_what_is_ones_own_needs_no_right(office: Office) -> None:
    """Name, password, tokens and searches of oneself; not by a token with limits."""
    own: list[Change] = [
        ChangeUser(user_id="u-bob", display_name="Bob"),
        SetPassword(user_id="u-bob", password_hash=HASH),
        SaveSearch(search_id="s1", name="mine", query="owner:me"),
        token("t1", "u-bob"),
        RotateToken(token_id="t1", digest=digest("again")),
    ]
    for change in own:
        office.done(change, by="u-bob")
    office.done(token("limited", "u-bob", scope=["experiment.view"]), by="u-bob")
    for change in own[:3]:
        found = office.ask(change, by="u-bob", via="limited")
        assert found is not None
    office.done(RevokeToken(token_id="limited"), by="u-bob", via="limited")
    assert office.ask(RemoveSearch(search_id="s1"), by="u-cleo") == ("missing", "search_id")
    office.done(RemoveSearch(search_id="s1"), by="u-bob")


def test_nobody_gives_more_than_he_has(office: Office) -> None:
    """The owner of a workspace gives what there is in it, and nothing elsewhere."""
    office.done(role("workspace-admin", "u-bob", "vision"), by="u-anna")
    office.done(role("viewer", "u-cleo", "vision"), by="u-bob")
    found = office.ask(role("viewer", "u-cleo", DEFAULT, "x"), by="u-bob")
    assert found == ("forbidden", "")
    # One who may assign roles in the cluster, and has no more than an editor there.
    office.done(RemoveAssignment(assignment_id="a-u-cleo-viewer"), by="u-anna")
    office.done(role("workspace-admin", "u-cleo"))
    assert office.ask(role("cluster-admin", "u-cleo", None, "x"), by="u-cleo") == ("beyond", "")
    office.done(role("workspace-admin", "u-bob", None, "y"), by="u-cleo")
    assert office.ask(RemoveAssignment(assignment_id=ADMIN), by="u-cleo") == ("beyond", "")


def test_to_become_somebody_is_to_have_his_rights(office: Office) -> None:
    """A token of a service account, and a member of a group, have what those have."""
    office.done(
        CreateUser(user_id="bot", name="bot", kind="service", workspace_id="vision"), by="u-anna"
    )
    office.done(token("b1", "bot", kind="service"), by="u-anna")
    office.done(role("cluster-admin", "bot"))
    more = token("b2", "bot", kind="service")
    assert office.ask(more, by="u-anna") == ("beyond", "")
    assert office.ask(more) is None
    assert office.ask(SetUserActive(user_id="bot", active=False), by="u-anna") == ("beyond", "")
    assert office.ask(token("b3", "u-bob")) == ("forbidden", "")
    assert office.ask(SetPassword(user_id="bot", password_hash=HASH)) == ("invalid", "user_id")


def test_a_token_is_limited_in_all_that_it_does(office: Office) -> None:
    """By its scope, its workspace, and its end; and what it makes has these limits, too."""
    office.done(token("w", ADMIN, workspace_id="vision"))
    office.done(token("s", ADMIN, scope=["workspace.create"]))
    office.done(token("e", ADMIN, expires_ms=office.now_ms + 10 * DAY_MS))
    rename = ChangeWorkspace(workspace_id="vision", description="x")
    office.done(rename, via="w")
    assert office.ask(ChangeWorkspace(workspace_id=DEFAULT, description="x"), via="w") == (
        "forbidden",
        "",
    )
    assert office.ask(rename, via="s") == ("forbidden", "")
    office.done(CreateWorkspace(workspace_id="made", name="made"), via="s")
    assert office.ask(token("x", ADMIN), via="s") == ("forbidden", "")
    assert office.ask(token("x", ADMIN), via="e") == ("beyond", "expires_ms")
    office.done(token("x", ADMIN, expires_ms=office.now_ms + DAY_MS), via="e")
    office.now_ms += 2 * DAY_MS
    assert office.ask(rename, via="x") == ("revoked", "")
    assert office.directory.principal_of_token(digest("x"), now_ms=office.now_ms) is None


def test_what_is_done_for_another_is_what_both_may(office: Office) -> None:
    """And both are on record."""
    office.done(
        CreateProject(project_id="p2", workspace_id="vision", name="b"), on_behalf_of="u-anna"
    )
    found = office.ask(CreateUser(user_id="x", name="x"), on_behalf_of="u-anna")
    assert found == ("forbidden", "")
    assert office.ask(
        CreateProject(project_id="p3", workspace_id="vision", name="c"),
        by="u-bob",
        on_behalf_of="u-anna",
    ) == ("forbidden", "")
    assert office.ask(SetPassword(user_id="u-anna", password_hash=HASH), on_behalf_of="u-anna")
    assert office.ask(rename_of("p1"), on_behalf_of="nobody") == ("missing", "")


def rename_of(project_id: str) -> ChangeProject:
    """Return a change that its owner may make."""
    return ChangeProject(project_id=project_id, description="x")


def test_what_is_revoked_has_lost_all_at_once(office: Office) -> None:
    """A request behind the revocation is refused, whatever the gateway knew that took it."""
    office.done(token("t1", "u-anna", expires_ms=office.now_ms + DAY_MS), by="u-anna")
    office.done(rename_of("p1"), by="u-anna", via="t1")
    office.done(SetUserActive(user_id="u-anna", active=False))
    assert office.ask(rename_of("p1"), by="u-anna", via="t1") == ("revoked", "")
    assert office.ask(rename_of("p1"), by="u-anna") == ("revoked", "")
    assert office.directory.principal_of_token(digest("t1"), now_ms=office.now_ms) is None
    assert not office.state.expiring
    office.done(SetUserActive(user_id="u-anna", active=True))
    assert office.ask(rename_of("p1"), by="u-anna", via="t1") == ("revoked", "")
    office.done(rename_of("p1"), by="u-anna")  # her roles are as they were
    # A group takes its roles with it.
    office.done(ChangeMembers(group_id="g1", add=["u-bob"]))
    office.done(AssignRole(assignment_id="x", role="editor", group_id="g1", workspace_id="vision"))
    office.done(rename_of("p1"), by="u-bob")
    office.done(RemoveGroup(group_id="g1"))
    assert office.ask(rename_of("p1"), by="u-bob") == ("forbidden", "")
    assert "x" not in office.state.assignments


def test_there_is_always_an_administrator(office: Office) -> None:
    """By a role or by a group: the last one stays, in all ways in which it could go."""
    last = ("last-administrator", "")
    assert office.ask(SetUserActive(user_id=ADMIN, active=False)) == last
    assert office.ask(RemoveAssignment(assignment_id=ADMIN)) == last
    office.done(AssignRole(assignment_id="x", role="cluster-admin", group_id="g1"))
    assert office.ask(RemoveAssignment(assignment_id=ADMIN)) == last  # the group is empty
    office.done(SyncMemberships(user_id="u-bob", issuer="idp", groups=["g1"]), by=SYSTEM)
    office.done(SetUserActive(user_id=ADMIN, active=False))
    assert administrators(office.state) == ["u-bob"]
    for change in (
        ChangeMembers(group_id="g1", remove=["u-bob"]),
        SyncMemberships(user_id="u-bob", issuer="idp"),
        RemoveGroup(group_id="g1"),
        RemoveAssignment(assignment_id="x"),
        SetUserActive(user_id="u-bob", active=False),
    ):
        assert office.ask(change, by="u-bob") == last, change


def test_groups_of_an_identity_provider_replace_those_of_before(office: Office) -> None:
    """Those that somebody added stay, also where the provider does not name them."""
    office.done(CreateGroup(group_id="g2", name="Team B", issuer="idp"))
    office.done(ChangeMembers(group_id="g1", add=["u-bob"]))
    office.done(SyncMemberships(user_id="u-bob", issuer="idp", groups=["g1", "g2"]), by=SYSTEM)
    office.done(SyncMemberships(user_id="u-bob", issuer="idp"), by=SYSTEM)
    assert office.state.groups["g1"].members == {"u-bob": ""}
    assert office.state.groups["g2"].members == {}


def test_the_first_of_two_changes_wins(office: Office) -> None:
    """One that names the version that it saw is refused if another came first."""
    version = office.state.projects["p1"].version
    office.done(rename_of("p1"), expected=version)
    assert office.ask(rename_of("p1"), expected=version) == ("changed", "")
    assert office.state.projects["p1"].version == version + 1


def test_an_archived_workspace_takes_nothing_new(office: Office) -> None:
    """It is opened again first."""
    office.done(ArchiveWorkspace(workspace_id="vision", archived=True), by="u-anna")
    new = CreateProject(project_id="p2", workspace_id="vision", name="b")
    assert office.ask(new, by="u-anna") == ("archived", "workspace_id")
    assert office.ask(role("viewer", "u-bob", "vision")) == ("archived", "workspace_id")
    office.done(ArchiveWorkspace(workspace_id="vision", archived=False), by="u-anna")
    office.done(new, by="u-anna")


def test_a_project_that_moves_leaves_its_webhooks_behind(office: Office) -> None:
    """Their receivers are of the workspace before: they are told nothing of the one after."""
    hook = SetWebhook(
        webhook_id="w1", workspace_id="vision", name="w", document="{}", project_id="p1"
    )
    office.done(hook, by="u-anna")
    office.done(MoveProject(project_id="p1", workspace_id=DEFAULT))
    assert not office.state.webhooks["w1"].active
    assert office.state.names["projects/default"]["digits"] == "p1"
    assert "projects/vision" not in office.state.names


def test_what_lies_in_a_workspace_is_set_changed_and_removed(office: Office) -> None:
    """Policies, templates, webhooks, shared searches, secrets: by the owner of the workspace."""
    secret = SetSecret(
        secret_id="s1", workspace_id="vision", name="s", digest=digest("s"), reference="secrets/s"
    )
    made: list[Change] = [
        SetPolicy(policy_id="x", name="p", kind="defaults", document="a", workspace_id="vision"),
        SetPolicy(policy_id="y", name="p", kind="constraints", document="a", project_id="p1"),
        SetTemplate(template_id="x", workspace_id="vision", name="t", document="a"),
        secret,
        SetWebhook(webhook_id="x", workspace_id="vision", name="w", document="a", secret_id="s1"),
        SaveSearch(search_id="x", workspace_id="vision", name="q", query="state:errored"),
    ]
    for change in made * 2:
        office.done(change, by="u-anna")
    assert office.state.templates["x"].version == 2
    assert office.state.policies["y"].by == "u-anna"
    elsewhere = SetTemplate(template_id="x", workspace_id=DEFAULT, name="t", document="a")
    assert office.ask(elsewhere) == ("invalid", "workspace_id")
    double = SetTemplate(template_id="y", workspace_id="vision", name="T", document="a")
    assert office.ask(double, by="u-anna") == ("taken", "name")
    assert office.ask(RemoveSecret(secret_id="s1"), by="u-anna") == ("invalid", "secret_id")
    for change in (
        RemoveWebhook(webhook_id="x"),
        RemoveSecret(secret_id="s1"),
        RemoveTemplate(template_id="x"),
        RemoveSearch(search_id="x"),
        RemovePolicy(policy_id="x"),
        RemovePolicy(policy_id="y"),
    ):
        office.done(change, by="u-anna")
    left = office.state
    tables = left.templates, left.webhooks, left.secrets, left.policies, left.searches
    assert tables == ({}, {}, {}, {}, {})


def test_expired_tokens_are_forgotten_after_a_week(office: Office) -> None:
    """Until then they are listed; their secrets and ids are free afterwards."""
    office.done(token("t1", ADMIN, expires_ms=office.now_ms + DAY_MS))
    office.done(NoteTokenUse(token_id="t1"), by=SYSTEM)
    assert office.ask(NoteTokenUse(token_id="t1")) == ("forbidden", "")
    office.now_ms += 2 * DAY_MS
    office.done(token("t2", ADMIN))
    assert set(office.state.tokens) == {"t1", "t2"}
    office.now_ms += 7 * DAY_MS
    office.done(RevokeTokens(user_id=ADMIN, kind="session"))
    assert set(office.state.tokens) == {"t2"}
    office.done(RevokeTokens(user_id=ADMIN))
    assert (office.state.tokens, office.state.digests) == ({}, {})


def test_decisions_alone_give_the_same_directory(office: Office) -> None:
    """A gateway folds no requests, and has what the processor has."""
    expected: State = office.state
    assert office.directory.state == expected
    admin = office.directory.user_by_name("Admin")
    assert admin is not None
    assert admin.id == ADMIN

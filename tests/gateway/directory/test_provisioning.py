"""Provisioning: what an identity provider may do with its own users and groups, and no others."""

import pytest

from gateway.directory.scenario import Office
from rung.events.changes import (
    AssignRole,
    Change,
    ChangeGroup,
    ChangeMembers,
    ChangeUser,
    CreateGroup,
    CreateUser,
    IssueToken,
    LinkIdentity,
    RemoveGroup,
    RetireUser,
    SetPassword,
    SetUserActive,
)
from rung.events.directory import ADMIN

ISSUER = "https://id.example.org"
ROBOT = "u-okta"


@pytest.fixture
def office() -> Office:
    """Return a directory with an identity provider, two of its users, and one who is not."""
    office = Office()
    office.done(CreateUser(user_id=ROBOT, name="okta", kind="service"))
    office.done(AssignRole(assignment_id="a1", role="provisioner", user_id=ROBOT))
    office.done(CreateUser(user_id="u-local", name="local"))
    office.done(
        CreateUser(user_id="u-anna", name="anna", issuer=ISSUER, external_id="00u1"), by=ROBOT
    )
    office.done(CreateUser(user_id="u-ben", name="ben", issuer=ISSUER), by=ROBOT)
    office.done(CreateGroup(group_id="g-admins", name="Admins", issuer=ISSUER), by=ROBOT)
    office.done(CreateGroup(group_id="g-local", name="local"))
    office.done(AssignRole(assignment_id="a2", role="cluster-admin", group_id="g-admins"))
    return office


@pytest.mark.parametrize(
    "change",
    [
        ChangeUser(user_id="u-ben", name="benny", given_name="Ben", external_id="00u2"),
        SetUserActive(user_id="u-ben", active=False),
        RetireUser(user_id="u-ben"),
        ChangeGroup(group_id="g-admins", name="Administrators", external_id="00g1"),
        ChangeMembers(group_id="g-admins", add=["u-ben"]),
        RemoveGroup(group_id="g-admins"),
    ],
)
def test_its_own_are_its_to_manage(office: Office, change: Change) -> None:
    """Also groups with more rights than it has itself: who gave the roles meant its members."""
    office.done(change, by=ROBOT)


@pytest.mark.parametrize(
    "change",
    [
        CreateUser(user_id="x", name="x"),
        CreateUser(user_id="x", name="x", kind="service", issuer=ISSUER),
        ChangeUser(user_id="u-local", display_name="x"),
        ChangeUser(user_id="u-local", issuer=ISSUER),
        ChangeUser(user_id="u-anna", issuer="https://other.example.org"),
        SetUserActive(user_id="u-local", active=False),
        SetUserActive(user_id=ADMIN, active=False),
        RetireUser(user_id="u-local"),
        SetPassword(user_id="u-anna", password_hash=None),
        LinkIdentity(user_id="u-anna", issuer=ISSUER, subject="mallory"),
        IssueToken(token_id="t", user_id="u-anna", digest="0" * 64),  # noqa: S106 - an id
        AssignRole(assignment_id="a9", role="cluster-admin", user_id="u-anna"),
        CreateGroup(group_id="x", name="x"),
        ChangeGroup(group_id="g-local", name="x"),
        ChangeGroup(group_id="g-admins", issuer="https://other.example.org"),
        ChangeMembers(group_id="g-local", add=["u-anna"]),
        RemoveGroup(group_id="g-local"),
    ],
)
def test_others_are_not(office: Office, change: Change) -> None:
    """Local users and groups, passwords, identities, tokens and roles stay out of its reach."""
    refused = office.ask(change, by=ROBOT)
    assert refused is not None
    assert refused[0] in {"forbidden", "beyond"}


def test_an_external_id_is_unique(office: Office) -> None:
    """By it somebody gets an account at the first sign-in."""
    change: Change = CreateUser(user_id="x", name="x", issuer=ISSUER, external_id="00u1")
    assert office.ask(change, by=ROBOT) == ("taken", "external_id")
    change = ChangeUser(user_id="u-ben", external_id="00u1")
    assert office.ask(change, by=ROBOT) == ("taken", "external_id")
    change = CreateUser(user_id="x", name="x", external_id="00u1")
    assert office.ask(change) == ("invalid", "external_id")


def test_a_retired_user_is_somebody_else(office: Office) -> None:
    """Who comes by the same name, external id and subject later has nothing of the one before."""
    office.done(LinkIdentity(user_id="u-anna", issuer=ISSUER, subject="s1"))
    office.done(ChangeMembers(group_id="g-admins", add=["u-anna"]), by=ROBOT)
    issued = IssueToken(token_id="t1", user_id="u-anna", digest="1" * 64)  # noqa: S106 - an id
    office.done(issued, by="system")
    office.done(RetireUser(user_id="u-anna"), by=ROBOT)
    gone = office.state.users["u-anna"]
    assert (gone.name, gone.active, gone.identities) == ("anna.retired-u-anna", False, [])
    assert office.state.tokens == {}
    assert office.state.groups["g-admins"].members == {}
    for change in (
        SetUserActive(user_id="u-anna", active=True),
        ChangeUser(user_id="u-anna", name="anna"),
        ChangeMembers(group_id="g-admins", add=["u-anna"]),
        RetireUser(user_id="u-anna"),
    ):
        refused = office.ask(change)
        assert refused is not None
        assert refused[0] == "missing"
    office.done(
        CreateUser(user_id="u-new", name="anna", issuer=ISSUER, external_id="00u1"), by=ROBOT
    )
    office.done(LinkIdentity(user_id="u-new", issuer=ISSUER, subject="s1"))


def test_a_local_user_is_adopted_by_an_administrator(office: Office) -> None:
    """From then on the provider manages the user, until an administrator takes the user back."""
    office.done(ChangeUser(user_id="u-local", issuer=ISSUER))
    office.done(ChangeUser(user_id="u-local", external_id="00u7"), by=ROBOT)
    office.done(ChangeUser(user_id="u-local", issuer=""))
    assert office.state.users["u-local"].external_id == ""
    refused = office.ask(ChangeUser(user_id="u-local", display_name="x"), by=ROBOT)
    assert refused == ("forbidden", "")


def test_the_last_administrator_stays(office: Office) -> None:
    """Whoever asks for it."""
    office.done(ChangeMembers(group_id="g-admins", add=["u-anna"]), by=ROBOT)
    office.done(SetUserActive(user_id=ADMIN, active=False))
    for change in (
        SetUserActive(user_id="u-anna", active=False),
        RetireUser(user_id="u-anna"),
        ChangeMembers(group_id="g-admins", remove=["u-anna"]),
        RemoveGroup(group_id="g-admins"),
    ):
        assert office.ask(change, by=ROBOT) == ("last-administrator", "")

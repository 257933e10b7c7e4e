"""Rights in the directory: each change, operation and list, for each role, wherever it is held.

Which role has which permission is `rung.rights`, of which docs/RIGHTS.md is made. Which permission
a change needs is named nowhere but in the words of that table ("create, rename, archive and move
projects") and in the processor; so the tables here say it once more, for each change of the
directory and each operation of the OpenAPI document that is the directory's to decide. What is
missing in them fails.
"""

# ruff: noqa: S106 - ids of tokens and secrets

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple, get_args

import pytest
from argon2 import PasswordHasher
from msgspec import structs

from gateway.conftest import World, until
from gateway.directory.test_routes import deciding, made
from gateway.test_authorization import Operation, operations
from rung.events import changes, topic
from rung.events.changes import Change
from rung.events.directory import (
    ADMIN,
    SYSTEM,
    ChangeRefused,
    ChangeRequested,
    DirectoryChanged,
    HoldRequested,
)
from rung.gateway.directory.directory import Directory
from rung.gateway.directory.processor import DirectoryProcessor, workspace_of_policy
from rung.gateway.identity.secret import digest_of, draw
from rung.gateway.routes import API
from rung.rights import ALL, EVERYBODY, OWNER, ROLES, permissions_of, roles_with
from rung.subscription.document import Subscription, written
from support.gateway.client import Client
from support.gateway.scenario import submitted

HOME: Final = "vision"
"""The workspace of what is asked about, and its project."""
ELSEWHERE: Final = "speech"
"""Another workspace, and its project."""
BOT: Final = "bot"
"""A service account of HOME."""
SOMEBODY: Final = "somebody"
"""A user without roles, whom others are asked about."""
NO_ONE: Final = "no one"
"""In place of a permission: nobody has it."""
ALMIGHTY: Final = "cluster-admin-everywhere"
"""The seat that may all."""
PROVISION: Final = "directory.provision"
HASH: Final = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA"
EXPERIMENT: Final = "hhhh1111"
"""In HOME."""
THEIRS: Final = "zzzz9999"
"""An experiment in ELSEWHERE."""
SPARE: Final = 3
"""Further tokens of each seat, which are rotated and revoked."""


# Who asks.


class Seat(NamedTuple):
    """A user, who has roles: each in a workspace, or in the cluster (None)."""

    name: str
    roles: tuple[tuple[str, str | None], ...] = ()
    owned: str | None = None
    """The workspace that is the user's."""
    group: bool = False
    """Whether the roles are those of a group that has the user."""

    @property
    def headers(self) -> dict[str, str]:
        """Of a request of this user."""
        return bearer(self.name)

    def may(self, permission: str, place: str | None) -> bool:
        """Return whether the table of rights gives a permission in a workspace or the cluster."""
        return permission in EVERYBODY or (
            (place is not None and place == self.owned and permission in OWNER.permissions)
            or any(
                permission in permissions_of(role, in_cluster=where is None)
                for role, where in self.roles
                if where in {None, place}
            )
        )


_secrets: dict[str, str] = {}


def bearer(token: str) -> dict[str, str]:
    """Return the headers of a request with the token of this id."""
    return {"Authorization": f"Bearer {_secret(token)}"}


def _secret(token: str) -> str:
    return _secrets.setdefault(token, draw())


SEATS: Final = (
    *(
        Seat(f"{role.name}-{word}", ((role.name, where),))
        for role in ROLES.values()
        for word, where in (("here", HOME), ("elsewhere", ELSEWHERE), ("everywhere", None))
        if ("cluster" if where is None else "workspace") in role.places
    ),
    Seat("nobody"),
    Seat("owner", owned=HOME),
    Seat("in-a-group", (("editor", HOME),), group=True),
    Seat("editor-here-viewer-there", (("editor", HOME), ("viewer", ELSEWHERE))),
    Seat("viewer-here-editor-there", (("viewer", HOME), ("editor", ELSEWHERE))),
    Seat("editor-in-both", (("editor", HOME), ("editor", ELSEWHERE))),
)
"""Each role where it may be held, none at all, and what else gives rights."""


def _people() -> Iterable[Change]:
    """Yield what makes the two workspaces and the seats, with their tokens."""
    yield changes.CreateUser(user_id=SOMEBODY, name=SOMEBODY)
    for seat in SEATS:
        yield changes.CreateUser(user_id=seat.name, name=seat.name)
    for name, owner in ((HOME, "owner"), (ELSEWHERE, ADMIN)):
        yield changes.CreateWorkspace(workspace_id=name, name=name, owner_id=owner)
        yield changes.CreateProject(project_id=name, workspace_id=name, name=name)
    yield changes.CreateUser(user_id=BOT, name=BOT, kind="service", workspace_id=HOME)
    ids = (f"a{number}" for number in itertools.count())
    for seat in SEATS:
        if seat.group:
            yield changes.CreateGroup(group_id=f"g-{seat.name}", name=seat.name)
            yield changes.ChangeMembers(group_id=f"g-{seat.name}", add=[seat.name])
        for role, where in seat.roles:
            yield changes.AssignRole(
                assignment_id=next(ids),
                role=role,
                user_id=None if seat.group else seat.name,
                group_id=f"g-{seat.name}" if seat.group else None,
                workspace_id=where,
            )
    for name in (*(seat.name for seat in SEATS), SOMEBODY):
        for token in (name, *(f"{name}-{number}" for number in range(SPARE))):
            yield changes.IssueToken(
                token_id=token, user_id=name, digest=digest_of(_secret(token)), name=token
            )
    yield changes.IssueToken(token_id=BOT, user_id=BOT, digest=digest_of("x"), kind="service")


def _things() -> Iterable[Change]:
    """Yield what makes one thing of each kind in each place; its name begins with the place."""
    document = written(Subscription(events=["rung.experiment.ended.v1"], to="example.com"))
    for where in (HOME, ELSEWHERE, None):
        name = where or "cluster"
        yield changes.CreateUser(
            user_id=f"{name}-bot", name=f"{name}-bot", kind="service", workspace_id=where
        )
        yield changes.CreateGroup(group_id=f"{name}-group", name=f"{name}-group")
        yield changes.AssignRole(
            assignment_id=f"{name}-role", role="viewer", user_id=SOMEBODY, workspace_id=where
        )
        yield changes.SetPolicy(
            policy_id=f"{name}-policy",
            name="p",
            kind="invariants",
            document="",
            workspace_id=where,
        )
        yield changes.SaveSearch(
            search_id=f"{name}-search", name="s", query="", workspace_id=where
        )
        if where is None:
            continue
        yield changes.SetPolicy(
            policy_id=f"{name}-project-policy",
            name="p",
            kind="invariants",
            document="",
            project_id=where,
        )
        yield changes.SetTemplate(
            template_id=f"{name}-template", workspace_id=where, name="t", document=""
        )
        yield changes.SetSecret(
            secret_id=f"{name}-secret",
            workspace_id=where,
            name="s",
            digest=digest_of("x"),
            reference="r",
        )
        yield changes.SetWebhook(
            webhook_id=f"{name}-hook", workspace_id=where, name="w", document=document
        )
        yield changes.CreateModel(model_id=f"{name}-model", workspace_id=where, name="m")
        yield changes.RegisterVersion(
            model_version_id=f"{name}-version",
            model_id=f"{name}-model",
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.0",
            checkpoint_id="c1",
        )


# What the processor decides.


class Decided(NamedTuple):
    """A change, and the permission that it needs; where it may be had by others, also that."""

    change: Change
    needs: str
    place: str | None = HOME
    also: str = ""
    """A permission of the cluster with which it is made, too."""
    target: str | None = None
    """Another workspace in which the permission is needed, too."""
    named: str = ""
    """The permission that a refusal names, where that is not `needs`."""
    code: str = "forbidden"

    def allows(self, seat: Seat) -> bool:
        """Return whether the table of rights lets somebody do it."""
        if self.also and seat.may(self.also, None):
            return True
        return seat.may(self.needs, self.place) and (
            self.target is None or seat.may(self.needs, self.target)
        )


DECIDED: Final = (
    Decided(changes.CreateUser(user_id="x", name="x"), "user.edit", None),
    Decided(
        changes.CreateUser(user_id="x", name="x", issuer="idp"),
        "user.edit",
        None,
        also=PROVISION,
    ),
    Decided(
        changes.CreateUser(user_id="x", name="x", kind="service", workspace_id=HOME),
        "service.edit",
    ),
    Decided(changes.CreateUser(user_id="x", name="x", kind="service"), "service.edit", None),
    Decided(changes.ChangeUser(user_id=SOMEBODY, display_name="x"), "user.edit", None),
    Decided(changes.ChangeUser(user_id=SOMEBODY, issuer="idp"), "user.edit", None),
    Decided(changes.ChangeUser(user_id=BOT, display_name="x"), "service.edit"),
    Decided(changes.SetUserActive(user_id=SOMEBODY, active=False), "user.edit", None),
    Decided(changes.SetUserActive(user_id=BOT, active=False), "service.edit"),
    Decided(
        changes.SetUserActive(user_id="theirs", active=False),
        "user.edit",
        None,
        also=PROVISION,
    ),
    Decided(changes.RetireUser(user_id=SOMEBODY), "user.edit", None),
    Decided(changes.RetireUser(user_id="theirs"), "user.edit", None, also=PROVISION),
    Decided(changes.SetPassword(user_id=SOMEBODY, password_hash=HASH), "user.edit", None),
    Decided(changes.LinkIdentity(user_id=SOMEBODY, issuer="i", subject="s"), "user.edit", None),
    Decided(changes.UnlinkIdentity(user_id="theirs", issuer="i", subject="t"), "user.edit", None),
    Decided(changes.CreateGroup(group_id="x", name="x"), "group.edit", None),
    Decided(
        changes.CreateGroup(group_id="x", name="x", issuer="idp"),
        "group.edit",
        None,
        also=PROVISION,
    ),
    Decided(changes.ChangeGroup(group_id="team", description="x"), "group.edit", None),
    Decided(
        changes.ChangeGroup(group_id="theirs", description="x"),
        "group.edit",
        None,
        also=PROVISION,
    ),
    Decided(changes.ChangeGroup(group_id="theirs", issuer=""), "group.edit", None),
    Decided(changes.RemoveGroup(group_id="team"), "group.edit", None),
    Decided(changes.RemoveGroup(group_id="theirs"), "group.edit", None, also=PROVISION),
    Decided(changes.ChangeMembers(group_id="team", add=[SOMEBODY]), "group.edit", None),
    Decided(
        changes.ChangeMembers(group_id="theirs", add=[SOMEBODY]),
        "group.edit",
        None,
        also=PROVISION,
    ),
    Decided(
        changes.SyncMemberships(user_id=SOMEBODY, issuer="idp", groups=["theirs"]),
        "group.edit",
        None,
    ),
    Decided(
        changes.IssueToken(token_id="x", user_id=BOT, digest=digest_of("y"), kind="service"),
        "service.edit",
    ),
    Decided(
        changes.IssueToken(token_id="x", user_id=SOMEBODY, digest=digest_of("y")), NO_ONE, None
    ),
    Decided(changes.RotateToken(token_id=BOT, digest=digest_of("y")), "service.edit"),
    Decided(changes.RotateToken(token_id=SOMEBODY, digest=digest_of("y")), NO_ONE, None),
    Decided(
        changes.RevokeToken(token_id=BOT), "service.edit", also="token.edit", named="token.edit"
    ),
    Decided(changes.RevokeToken(token_id=SOMEBODY), "token.edit", None),
    Decided(
        changes.RevokeTokens(user_id=BOT), "service.edit", also="token.edit", named="token.edit"
    ),
    Decided(changes.RevokeTokens(user_id=SOMEBODY), "token.edit", None),
    Decided(changes.NoteTokenUse(token_id=SOMEBODY), NO_ONE, None),
    Decided(
        changes.AssignRole(assignment_id="x", role="editor", user_id=SOMEBODY, workspace_id=HOME),
        "role.assign",
    ),
    Decided(
        changes.AssignRole(assignment_id="x", role="editor", user_id=SOMEBODY),
        "role.assign",
        None,
    ),
    Decided(changes.RemoveAssignment(assignment_id=f"{HOME}-role"), "role.assign"),
    Decided(changes.RemoveAssignment(assignment_id="cluster-role"), "role.assign", None),
    Decided(changes.CreateWorkspace(workspace_id="x", name="x"), "workspace.create", None),
    Decided(changes.ChangeWorkspace(workspace_id=HOME, name="x"), "workspace.edit"),
    Decided(changes.ChangeWorkspace(workspace_id=HOME, owner_id=SOMEBODY), "workspace.edit"),
    Decided(
        changes.ChangeWorkspace(workspace_id=HOME, owner_id=SOMEBODY),
        "role.assign",
        named="workspace.edit",
    ),
    Decided(changes.ArchiveWorkspace(workspace_id=HOME, archived=True), "workspace.archive"),
    Decided(changes.ArchiveWorkspace(workspace_id=HOME, archived=False), "workspace.archive"),
    Decided(changes.CreateProject(project_id="x", workspace_id=HOME, name="x"), "project.edit"),
    Decided(changes.ChangeProject(project_id=HOME, name="x"), "project.edit"),
    Decided(changes.ArchiveProject(project_id=HOME, archived=True), "project.edit"),
    Decided(
        changes.MoveProject(project_id=HOME, workspace_id=ELSEWHERE),
        "project.edit",
        target=ELSEWHERE,
    ),
    Decided(
        changes.SetPolicy(
            policy_id="x", name="x", kind="defaults", document="", workspace_id=HOME
        ),
        "policy.edit",
    ),
    Decided(
        changes.SetPolicy(policy_id="x", name="x", kind="defaults", document="", project_id=HOME),
        "policy.edit",
    ),
    Decided(
        changes.SetPolicy(policy_id="x", name="x", kind="defaults", document="", pool="gpus"),
        "policy.edit",
        None,
    ),
    Decided(
        changes.SetPolicy(policy_id="x", name="x", kind="defaults", document=""),
        "policy.edit",
        None,
    ),
    Decided(changes.RemovePolicy(policy_id=f"{HOME}-policy"), "policy.edit"),
    Decided(changes.RemovePolicy(policy_id=f"{HOME}-project-policy"), "policy.edit"),
    Decided(changes.RemovePolicy(policy_id="cluster-policy"), "policy.edit", None),
    Decided(
        changes.SetTemplate(template_id="x", workspace_id=HOME, name="x", document=""),
        "template.edit",
    ),
    Decided(changes.RemoveTemplate(template_id=f"{HOME}-template"), "template.edit"),
    Decided(
        changes.SetWebhook(webhook_id="x", workspace_id=HOME, name="x", document=""),
        "webhook.edit",
    ),
    Decided(changes.RemoveWebhook(webhook_id=f"{HOME}-hook"), "webhook.edit"),
    Decided(
        changes.SaveSearch(search_id="x", name="x", query="", workspace_id=HOME), "search.edit"
    ),
    Decided(changes.RemoveSearch(search_id=f"{HOME}-search"), "search.edit"),
    Decided(changes.RemoveSearch(search_id="cluster-search"), NO_ONE, None, code="missing"),
    Decided(
        changes.SetSecret(
            secret_id="x", workspace_id=HOME, name="x", digest=digest_of("x"), reference="r"
        ),
        "secret.edit",
    ),
    Decided(changes.RemoveSecret(secret_id=f"{HOME}-secret"), "secret.edit"),
    Decided(changes.CreateModel(model_id="x", workspace_id=HOME, name="x"), "model.edit"),
    Decided(changes.ChangeModel(model_id=f"{HOME}-model", name="x"), "model.edit"),
    Decided(changes.ArchiveModel(model_id=f"{HOME}-model", archived=True), "model.edit"),
    Decided(
        changes.MoveModel(model_id=f"{HOME}-unique", workspace_id=ELSEWHERE),
        "model.edit",
        target=ELSEWHERE,
    ),
    Decided(changes.RemoveModel(model_id=f"{HOME}-model"), "model.edit"),
    Decided(
        changes.RegisterVersion(
            model_version_id="x",
            model_id=f"{HOME}-model",
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.0",
            checkpoint_id="c2",
        ),
        "model.edit",
    ),
    Decided(changes.ChangeVersion(model_version_id=f"{HOME}-version", notes="x"), "model.edit"),
    Decided(changes.RemoveVersion(model_version_id=f"{HOME}-version"), "model.edit"),
)


@pytest.fixture(scope="module")
def processor() -> tuple[DirectoryProcessor, Any]:
    """Return the processor, and the state of a directory with all the seats and things."""
    deciding_ = DirectoryProcessor()
    state = deciding_.initial("directory")
    more: list[Change] = [
        changes.CreateUser(user_id="theirs", name="theirs", issuer="idp"),
        changes.LinkIdentity(user_id="theirs", issuer="i", subject="t"),
        changes.CreateGroup(group_id="team", name="team"),
        changes.CreateGroup(group_id="theirs", name="theirs", issuer="idp"),
        changes.CreateModel(model_id=f"{HOME}-unique", workspace_id=HOME, name="unique"),
    ]
    for number, row in enumerate(DECIDED):
        scope = sorted(ALL - {row.needs, row.also})
        token = changes.IssueToken(
            token_id=f"less-{number}", user_id=ALMIGHTY, digest=f"{number}", scope=scope
        )
        more.append(token)
    for version, change in enumerate([*_people(), *_things(), *more], 1):
        fact = DirectoryChanged(
            request_id=f"r{version}", by=SYSTEM, version=version, at_ms=version, change=change
        )
        deciding_.evolve(state, fact)
    return deciding_, state


def test_each_change_is_in_the_table() -> None:
    """A change that is not named here is a mistake."""
    assert {type(row.change) for row in DECIDED} == set(get_args(Change))


@pytest.mark.parametrize("row", DECIDED, ids=lambda it: type(it.change).__name__)
def test_each_change_by_each_role(processor: tuple[DirectoryProcessor, Any], row: Decided) -> None:
    """It is made, or refused with the permission's name and the roles that have it."""
    deciding_, state = processor
    for seat in SEATS:
        fact = ChangeRequested(
            request_id="x", by=seat.name, via=seat.name, at_ms=1_000, change=row.change
        )
        (decision, *_) = deciding_.decide(state, fact)
        if row.allows(seat):
            assert isinstance(decision, DirectoryChanged | HoldRequested), (seat, decision)
            continue
        assert isinstance(decision, ChangeRefused), (seat, decision)
        assert decision.code == row.code, (seat, decision)
        named = row.named or row.needs
        if named != NO_ONE:
            assert all(it in decision.reason for it in (named, *roles_with(named))), decision


@pytest.mark.parametrize(
    "number", [number for number, row in enumerate(DECIDED) if row.needs != NO_ONE]
)
def test_all_other_permissions_do_not_make_a_change(
    processor: tuple[DirectoryProcessor, Any], number: int
) -> None:
    """An administrator's token whose scope has all but the one permission is refused."""
    (deciding_, state), row = processor, DECIDED[number]
    fact = ChangeRequested(
        request_id="x", by=ALMIGHTY, via=f"less-{number}", at_ms=1_000, change=row.change
    )
    (decision, *_) = deciding_.decide(state, fact)
    assert isinstance(decision, ChangeRefused), (row, decision)
    assert decision.code == "forbidden", (row, decision)
    assert any(f" {it} " in decision.reason for it in (row.needs, row.named) if it), decision


# What the gateway answers.


class Making:
    """What makes the things that are asked about, as the administrator."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.count = itertools.count()
        self.spare = Counter[str]()

    def new_name(self) -> str:
        """Return a name that nothing has."""
        return f"n{next(self.count)}"

    async def make(self, path: str, **body: Any) -> str:
        """Make a thing; return its id."""
        found = await made(self.client, path, body)
        assert isinstance(found["id"], str)
        return found["id"]

    async def change(self, path: str, **body: Any) -> None:
        """Change a thing."""
        await made(self.client, path, body or None)

    def spare_token(self, user: str) -> str:
        """Return the id of a token of a user which is of no further use."""
        number = self.spare[user]
        self.spare[user] += 1
        assert number < SPARE
        return f"{user}-{number}"


Thing = Callable[[Making, Seat], Awaitable[str]]
"""Makes what an operation is about, for somebody; returns its id."""


async def nothing(make: Making, seat: Seat) -> str:
    """Make nothing."""
    return ""


async def oneself(make: Making, seat: Seat) -> str:
    """Return who asks."""
    return seat.name


async def own_token(make: Making, seat: Seat) -> str:
    """Return a token of who asks."""
    return make.spare_token(seat.name)


async def token_of_somebody(make: Making, seat: Seat) -> str:
    """Return a token of another person."""
    return make.spare_token(SOMEBODY)


async def somebody(make: Making, seat: Seat) -> str:
    """Return a person."""
    return SOMEBODY


async def user(make: Making, seat: Seat) -> str:
    """Make a person."""
    return await make.make("/users", name=make.new_name())


async def inactive_user(make: Making, seat: Seat) -> str:
    """Make a person who is deactivated."""
    found = await user(make, seat)
    await make.change(f"/users/{found}/deactivate")
    return found


async def provided_user(make: Making, seat: Seat) -> str:
    """Make a person whom an identity provider manages."""
    found = await user(make, seat)
    await make.change(f"/users/{found}", issuer="https://idp.example.com")
    return found


async def account(make: Making, seat: Seat) -> str:
    """Make a service account of HOME."""
    return await make.make("/service-accounts", name=make.new_name(), workspace=HOME)


async def account_of_cluster(make: Making, seat: Seat) -> str:
    """Make a service account of no workspace."""
    return await make.make("/service-accounts", name=make.new_name())


async def inactive_account(make: Making, seat: Seat) -> str:
    """Make a service account that is deactivated."""
    found = await account(make, seat)
    await make.change(f"/service-accounts/{found}/deactivate")
    return found


async def token_of_account(make: Making, seat: Seat) -> str:
    """Make a token of a service account."""
    body = {"name": make.new_name(), "user": await account(make, seat)}
    answer = await make.client.call("POST", "/tokens", json=body)
    assert answer.status == 201, answer
    found: str = answer.json["token"]["id"]
    return found


async def group(make: Making, seat: Seat) -> str:
    """Make a group."""
    return await make.make("/groups", name=make.new_name())


async def provided_group(make: Making, seat: Seat) -> str:
    """Make a group that an identity provider manages."""
    found = await group(make, seat)
    await make.change(f"/groups/{found}", issuer="https://idp.example.com")
    return found


async def home(make: Making, seat: Seat) -> str:
    """Return the workspace, open."""
    await make.change(f"/workspaces/{HOME}/unarchive")
    return HOME


async def closed_home(make: Making, seat: Seat) -> str:
    """Return the workspace, archived."""
    await make.change(f"/workspaces/{HOME}/archive")
    return HOME


async def project(make: Making, seat: Seat) -> str:
    """Make a project."""
    return await make.make("/projects", name=make.new_name(), workspace=HOME)


async def closed_project(make: Making, seat: Seat) -> str:
    """Make a project that is archived."""
    found = await project(make, seat)
    await make.change(f"/projects/{found}/archive")
    return found


async def assignment(make: Making, seat: Seat) -> str:
    """Give a role in HOME."""
    who = await user(make, seat)
    return await make.make("/assignments", role="viewer", user=who, workspace=HOME)


async def assignment_in_cluster(make: Making, seat: Seat) -> str:
    """Give a role in the cluster."""
    return await make.make("/assignments", role="viewer", user=await user(make, seat))


async def shared_search(make: Making, seat: Seat) -> str:
    """Save a search that HOME shares."""
    return await make.make("/searches", name=make.new_name(), query="", workspace=HOME)


async def search_of_another(make: Making, seat: Seat) -> str:
    """Save a search of the administrator's own."""
    return await make.make("/searches", name=make.new_name(), query="")


def policy(**place: str) -> Thing:
    """Return what sets a policy somewhere."""

    async def make_policy(make: Making, seat: Seat) -> str:
        return await make.make("/policies", name=make.new_name(), **POLICY, **place)

    return make_policy


async def webhook(make: Making, seat: Seat) -> str:
    """Make a webhook."""
    return await make.make("/webhooks", name=make.new_name(), workspace=HOME, **HOOK)


async def closed_webhook(make: Making, seat: Seat) -> str:
    """Make a webhook that is switched off."""
    found = await webhook(make, seat)
    await make.change(f"/webhooks/{found}/deactivate")
    return found


async def template(make: Making, seat: Seat) -> str:
    """Set a template."""
    path = f"/workspaces/{HOME}/templates"
    return await make.make(path, name=make.new_name(), document=TEMPLATE)


async def secret(make: Making, seat: Seat) -> str:
    """Set a secret."""
    return await make.make(f"/workspaces/{HOME}/secrets", name=make.new_name(), value="v")


async def model(make: Making, seat: Seat) -> str:
    """Make a model."""
    return await make.make("/models", name=make.new_name(), workspace=HOME)


async def closed_model(make: Making, seat: Seat) -> str:
    """Make a model that is archived."""
    found = await model(make, seat)
    await make.change(f"/models/{found}/archive")
    return found


POLICY: Final = {"kind": "constraints", "document": "max_restarts: {at_most: 3}\n"}
HOOK: Final[dict[str, Any]] = {
    "url": "https://hooks.example.com/x",
    "events": ["rung.experiment.ended.v1"],
}
TEMPLATE: Final = "max_restarts: 3\n"
PASSWORD: Final = "long enough for a test"  # noqa: S105 - of nobody


class Row(NamedTuple):
    """An operation about one thing, and the permissions that it needs."""

    operation: str
    needs: str
    """The permission with which it is done; empty: none is needed."""
    place: str | None = HOME
    """Where; None: in the cluster."""
    sees: str = ""
    """The permission without which the thing is not there; empty: everybody sees it."""
    thing: Thing = nothing
    body: Callable[[str, str], dict[str, Any]] | None = None
    """Of the id of the thing, and a new name."""
    unseen: int = 404
    """What is not seen: 404 in the path, 422 in the body."""
    done: tuple[int, ...] = (200, 201)
    own: bool = False
    """Whether the thing is that of who asks."""
    also: str = ""
    """A permission of the cluster with which it is done, too."""
    named: str = ""
    """The permission that a refusal names, where that is not `needs`."""
    moves: bool = False
    """Whether it needs the permission in ELSEWHERE, too, which the body names."""
    place_first: bool = False
    """Whether ELSEWHERE is looked for before it is seen whether one may."""

    def expected(self, seat: Seat) -> int | None:
        """Return the status of a refusal, None where it is done."""
        if self.sees and not seat.may(self.sees, self.place):
            return self.unseen
        able = (
            not self.needs
            or seat.may(self.needs, self.place)
            or (self.also != "" and seat.may(self.also, None))
        )
        if self.moves and (able or self.place_first):
            if not seat.may("workspace.view", ELSEWHERE):
                return 422
            able = able and seat.may(self.needs, ELSEWHERE)
        return None if able else 403

    def path(self, operation: Operation, thing: str) -> str:
        """Return the path of a request."""
        found = operation.path.removeprefix(API)
        names = re.findall(r"{(\w+)}", found)
        values = {"workspace": HOME} | ({names[-1]: thing} if names else {})
        return found.format(**values)


def _named(thing: str, name: str) -> dict[str, Any]:
    return {"name": name}


def _described(thing: str, name: str) -> dict[str, Any]:
    return {"description": name}


def _shown_as(thing: str, name: str) -> dict[str, Any]:
    return {"display_name": name}


def _placed(thing: str, name: str) -> dict[str, Any]:
    return {"name": name, "workspace": HOME}


def _for(thing: str, name: str) -> dict[str, Any]:
    return {"name": name, "user": thing}


def _empty(thing: str, name: str) -> dict[str, Any]:
    return {}


def _password(thing: str, name: str) -> dict[str, Any]:
    return {"password": PASSWORD}


def _elsewhere(thing: str, name: str) -> dict[str, Any]:
    return {"workspace": ELSEWHERE}


def _policy(**place: str) -> Callable[[str, str], dict[str, Any]]:
    return lambda _, name: {"name": name, **POLICY, **place}


ROWS: Final[dict[str, tuple[Row, ...]]] = {
    "users": (
        Row("create_user", "user.edit", None, body=_named),
        Row("show_user", "user.view", None, thing=somebody),
        Row("change_user", "user.edit", None, thing=user, body=_shown_as),
        Row("change_user", "", None, thing=oneself, body=_shown_as, own=True),
        Row("deactivate_user", "user.edit", None, thing=user),
        Row(
            "deactivate_user",
            "user.edit",
            None,
            thing=provided_user,
            also=PROVISION,
        ),
        Row("activate_user", "user.edit", None, thing=inactive_user),
        Row("set_password", "user.edit", None, thing=user, body=_password),
        Row("set_password", "", None, thing=oneself, body=_password, own=True),
        # A service account has none, which only who may is told.
        Row(
            "set_password",
            "service.edit",
            sees="service.view",
            thing=account,
            body=_password,
            done=(422,),
        ),
    ),
    "accounts": (
        Row("create_account", "service.edit", sees="workspace.view", body=_placed, unseen=422),
        Row("create_account", "service.edit", None, body=_named),
        *(
            Row(name, needs, place, "service.view", thing=thing, body=body)
            for place, usual, idle in (
                (HOME, account, inactive_account),
                (None, account_of_cluster, None),
            )
            for name, needs, thing, body in (
                ("show_account", "service.view", usual, None),
                ("change_account", "service.edit", usual, _shown_as),
                ("deactivate_account", "service.edit", usual, None),
                ("activate_account", "service.edit", idle, None),
            )
            if thing is not None
        ),
    ),
    "groups": (
        Row("create_group", "group.edit", None, body=_named),
        Row("show_group", "group.view", None, thing=group),
        Row("change_group", "group.edit", None, thing=group, body=_described),
        Row(
            "change_members",
            "group.edit",
            None,
            thing=group,
            body=lambda *_: {"add": [SOMEBODY]},
        ),
        Row("delete_group", "group.edit", None, thing=group),
        *(
            Row(name, "group.edit", None, thing=provided_group, body=body, also=PROVISION)
            for name, body in (("change_group", _described), ("delete_group", None))
        ),
    ),
    "tokens": (
        Row("create_token", "", None, body=_named),
        Row("create_token", NO_ONE, None, thing=somebody, body=_for),
        Row("create_token", "service.edit", sees="service.view", thing=account, body=_for),
        Row("rotate_token", "", None, thing=own_token, body=_empty, own=True),
        Row("rotate_token", NO_ONE, None, "token.view", token_of_somebody, _empty),
        Row("rotate_token", "service.edit", HOME, "service.view", token_of_account, _empty),
        Row("revoke_token", "", None, thing=own_token, own=True),
        Row("revoke_token", "token.edit", None, "token.view", token_of_somebody),
        Row(
            "revoke_token",
            "service.edit",
            HOME,
            "service.view",
            token_of_account,
            also="token.edit",
            named="token.edit",
        ),
    ),
    "workspaces": (
        Row("create_workspace", "workspace.create", None, body=_named),
        Row("show_workspace", "workspace.view", HOME, "workspace.view", home),
        Row("change_workspace", "workspace.edit", HOME, "workspace.view", home, _described),
        Row("archive_workspace", "workspace.archive", HOME, "workspace.view", home),
        Row("unarchive_workspace", "workspace.archive", HOME, "workspace.view", closed_home),
    ),
    "projects": (
        Row("create_project", "project.edit", sees="workspace.view", body=_placed, unseen=422),
        Row("show_project", "project.view", HOME, "project.view", project),
        Row("change_project", "project.edit", HOME, "project.view", project, _described),
        Row("archive_project", "project.edit", HOME, "project.view", project),
        Row("unarchive_project", "project.edit", HOME, "project.view", closed_project),
        Row(
            "move_project",
            "project.edit",
            HOME,
            "project.view",
            project,
            _elsewhere,
            moves=True,
            place_first=True,
        ),
    ),
    "assignments": (
        Row(
            "assign_role",
            "role.assign",
            HOME,
            "workspace.view",
            user,
            lambda thing, _: {"role": "viewer", "user": thing, "workspace": HOME},
            unseen=422,
        ),
        Row(
            "assign_role",
            "role.assign",
            None,
            thing=user,
            body=lambda thing, _: {"role": "viewer", "user": thing},
        ),
        *(
            Row(name, needs, place, "role.view", thing)
            for place, thing in ((HOME, assignment), (None, assignment_in_cluster))
            for name, needs in (
                ("show_assignment", "role.view"),
                ("delete_assignment", "role.assign"),
            )
        ),
    ),
    "searches": (
        Row("save_search", "", None, body=lambda _, name: {"name": name, "query": ""}),
        Row(
            "save_search",
            "search.edit",
            HOME,
            "workspace.view",
            body=lambda _, name: {"name": name, "query": "", "workspace": HOME},
            unseen=422,
        ),
        Row("delete_search", "search.edit", HOME, "search.view", shared_search),
        Row("delete_search", NO_ONE, None, NO_ONE, search_of_another),
    ),
    "policies": (
        Row(
            "set_policy",
            "policy.edit",
            HOME,
            "workspace.view",
            body=_policy(workspace=HOME),
            unseen=422,
        ),
        Row(
            "set_policy",
            "policy.edit",
            HOME,
            "project.view",
            body=_policy(project=HOME),
            unseen=422,
        ),
        Row("set_policy", "policy.edit", None, body=_policy()),
        Row("delete_policy", "policy.edit", HOME, "policy.view", policy(workspace=HOME)),
        Row("delete_policy", "policy.edit", HOME, "policy.view", policy(project=HOME)),
        Row("delete_policy", "policy.edit", None, thing=policy()),
    ),
    "webhooks": (
        Row(
            "create_webhook",
            "webhook.edit",
            HOME,
            "workspace.view",
            body=lambda _, name: {"name": name, "workspace": HOME, **HOOK},
            unseen=422,
        ),
        # Who sees a workspace is told that there is such a webhook, not what it says.
        *(
            Row(name, "webhook.edit", HOME, "workspace.view", thing, body)
            for name, thing, body in (
                ("change_webhook", webhook, _named),
                ("rotate_webhook_key", webhook, None),
                ("deactivate_webhook", webhook, None),
                ("activate_webhook", closed_webhook, None),
                ("delete_webhook", webhook, None),
            )
        ),
    ),
    "inputs": (
        Row(
            "set_template",
            "template.edit",
            HOME,
            "workspace.view",
            home,
            lambda _, name: {"name": name, "document": TEMPLATE},
        ),
        Row("delete_template", "template.edit", HOME, "workspace.view", template),
        Row(
            "set_secret",
            "secret.edit",
            HOME,
            "workspace.view",
            home,
            lambda _, name: {"name": name, "value": "v"},
        ),
        Row("delete_secret", "secret.edit", HOME, "workspace.view", secret),
    ),
    "models": (
        Row("create_model", "model.edit", HOME, "workspace.view", body=_placed, unseen=422),
        Row("change_model", "model.edit", HOME, "model.view", model, _described),
        Row("archive_model", "model.edit", HOME, "model.view", model),
        Row("unarchive_model", "model.edit", HOME, "model.view", closed_model),
        Row("move_model", "model.edit", HOME, "model.view", model, _elsewhere, moves=True),
        Row("delete_model", "model.edit", HOME, "model.view", model),
    ),
}
"""Subject → its operations about one thing."""


async def _ask(world: World, wanted: Iterable[Change]) -> None:
    """Put changes on record that the gateway itself asks for."""
    ids = (f"begin-{number}" for number in itertools.count())
    await world.write(
        *(ChangeRequested(request_id=next(ids), by=SYSTEM, at_ms=1, change=it) for it in wanted)
    )


@pytest.fixture
async def client(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """Return a client of a gateway beside which the processor runs; all seats have tokens."""
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr("rung.gateway.identity.passwords._hasher", cheap)
    world.settings = structs.replace(world.settings, heartbeat=0.05)
    await _ask(world, _people())
    async with deciding(world), world.gateway() as client:
        await made(client, "/workspaces", {"name": "last"})  # what was asked before is decided
        yield client


@pytest.mark.processes
@pytest.mark.parametrize("subject", ROWS)
async def test_each_operation_of_the_directory(world: World, client: Client, subject: str) -> None:
    """It is done, refused with the permission's name, or about nothing that there is."""
    served = {each.id: each for each in operations()}
    make, changed, wrong = Making(client), Counter[str](), list[Any]()
    for row in ROWS[subject]:
        operation, thing = served[row.operation], None
        for seat in SEATS:
            if thing is None or row.own:
                thing = await row.thing(make, seat)
            body = {} if row.body is None else {"json": row.body(thing, make.new_name())}
            path = row.path(operation, thing)
            answer = await client.call(operation.method, path, headers=seat.headers, **body)
            wanted, named = row.expected(seat), row.named or row.needs
            if wanted is None:
                right = answer.status in row.done
                if operation.method == "POST":
                    changed[seat.name] += answer.status in {200, 201}
                    thing = None
            else:
                right = answer.status == wanted
                if right and wanted == 403 and named != NO_ONE:
                    names = (named, *roles_with(named))
                    right = all(name in answer.json["detail"] for name in names)
            if not right:
                wrong.append((row.operation, seat.name, wanted or row.done, answer))
    assert wrong == []
    decided = [it for it in await world.all(topic.DIRECTORY) if isinstance(it, DirectoryChanged)]
    by = Counter(it.by for it in decided if it.by not in {SYSTEM, ADMIN})
    assert by == +changed  # what was refused has changed nothing


# What lists have.


LISTS: Final = {
    "list_users": ("/users", "users", "user.view"),
    "list_accounts": ("/service-accounts", "users", "service.view"),
    "list_groups": ("/groups", "groups", "group.view"),
    "list_workspaces": ("/workspaces", "workspaces", "workspace.view"),
    "list_projects": ("/projects", "projects", "project.view"),
    "list_assignments": ("/assignments", "assignments", "role.view"),
    "list_searches": ("/searches", "searches", "search.view"),
    "list_policies": ("/policies", "policies", "policy.view"),
    "list_webhooks": ("/webhooks", "webhooks", "webhook.view"),
    "list_models": ("/models", "models", "model.view"),
}
"""Operation → its path, the table of the directory that it lists, the permission to see one."""


def _listed(name: str, seat: Seat, directory: Directory) -> set[str]:
    """Return the ids of what somebody sees, by the table of rights."""
    state, (_, table, permission) = directory.state, LISTS[name]
    found: set[str] = set()
    for it in getattr(state, table).values():
        place = it.id if table == "workspaces" else getattr(it, "workspace_id", None)
        match name:
            case "list_users" | "list_accounts":
                seen = (it.kind == "service") == (name == "list_accounts")
                seen = seen and seat.may(permission, place)
            case "list_searches" if place is None:
                seen = it.user_id == seat.name
            case "list_policies":
                place = workspace_of_policy(state, it)
                seen = place is None or seat.may(permission, place)
            case _:
                seen = seat.may(permission, place)
        found |= {it.id} if seen else set()
    return found


async def test_lists_have_what_one_sees(world: World, client: Client) -> None:
    """Of each workspace and of the cluster, what the role there lets one see, and no more."""
    await _ask(world, [it for it in _things() if not isinstance(it, changes.RegisterVersion)])
    for seat in SEATS:
        await made(client, "/searches", {"name": "mine", "query": ""}, **seat.headers)
    directory = Directory(world.ledger)
    await directory.start()
    everything = dict.fromkeys(LISTS, 0)
    for name, (path, *_) in LISTS.items():
        for seat in SEATS:
            found = await client.get(f"{path}?limit=100", headers=seat.headers)
            assert found["next_cursor"] is None
            assert {it["id"] for it in found["items"]} == _listed(name, seat, directory), seat
            everything[name] = max(everything[name], len(found["items"]))
    assert min(everything.values()) >= 2
    for seat in SEATS:
        roles = await client.get("/roles", headers=seat.headers)
        assert {it["name"]: set(it["permissions"]) for it in roles["items"]} == {
            it.name: it.permissions for it in ROLES.values()
        }


async def test_tokens_are_listed_to_whom_they_concern(client: Client) -> None:
    """One's own to everybody; those of others with `token.view`, of accounts by `service.view`."""
    for seat in SEATS:
        own = await client.get("/tokens", headers=seat.headers)
        assert {it["user"] for it in own["items"]} == {seat.name}
        assert len(own["items"]) == 1 + SPARE
        others = await client.call("GET", f"/tokens?user={SOMEBODY}", headers=seat.headers)
        if seat.may("token.view", None):
            assert len(others.json["items"]) == 1 + SPARE
        else:
            assert others.status == 403, (seat, others)
            names = ("token.view", *roles_with("token.view"))
            assert all(name in others.json["detail"] for name in names), others
        of_bot = await client.call("GET", f"/tokens?user={BOT}", headers=seat.headers)
        if seat.may("service.view", HOME):
            assert [it["id"] for it in of_bot.json["items"]] == [BOT]
        else:
            assert of_bot.status == 404, (seat, of_bot)


# What everybody who is signed in may ask for.


ACTIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "pause": ("pause_experiment", {}),
    "resume": ("resume_experiment", {}),
    "cancel": ("cancel_experiment", {}),
    "kill": ("kill_experiment", {}),
    "describe": ("change_description", {"description": {"notes": "x"}}),
    "set": ("change_resources", {"resources": {"priority": 7}}),
    "retain": ("change_retention", {"retention": {}, "dry_run": True}),
    "delete": ("delete_experiment", {"dry_run": True}),
    "restore": ("restore_experiment", {}),
}
"""Action on many experiments → the operation on one, and what else the body has."""


async def _submit(world: World, client: Client, experiment_id: str, place: str) -> None:
    """Put an experiment on record, and wait until the gateway shows it."""
    fact = structs.replace(
        submitted(max_trials=1),
        experiment_id=experiment_id,
        workspace_id=place,
        project_id=place,
        owner=SOMEBODY,
    )
    await world.write(fact)
    await until(
        lambda: client.call("GET", f"/experiments/{experiment_id}"), lambda it: it.status == 200
    )


async def test_a_batch_needs_what_its_operation_needs(world: World, client: Client) -> None:
    """Each experiment of it, by the permission of the same change of one experiment."""
    await _submit(world, client, EXPERIMENT, HOME)
    served, refused = {each.id: each for each in operations()}, {"forbidden", "not-found"}
    for action, (operation, more) in ACTIONS.items():
        needs, body = served[operation].needs, {"action": action, "ids": [EXPERIMENT], **more}
        for seat in SEATS:
            answer = await client.call(
                "POST", "/experiments:batch", json=body, headers=seat.headers
            )
            assert answer.status == 200, answer
            (item,) = answer.json["items"]
            if seat.may(needs, HOME):
                assert item["kind"] not in refused, (seat, item)
                continue
            seen = seat.may("experiment.view", HOME)
            assert item["kind"] == ("forbidden" if seen else "not-found"), (seat, action, item)
            if seen:
                assert needs in item["reason"], item


async def _streamed(client: Client, seat: Seat, query: str, behind: str) -> list[str]:
    """Return the ids of the acts that a stream has, up to where a list ended."""
    url, found, last = f"{client.url}{API}/log/stream{query}", list[str](), ""
    wanted = [int(it) for it in behind.split(".")]
    async with (
        asyncio.timeout(30),
        client.session.get(url, headers=seat.headers) as response,
    ):
        assert response.status == 200, await response.read()
        async for line in response.content:
            name, _, value = line.decode().strip().partition(": ")
            if name == "data":
                found.append(json.loads(value)["id"])
            if name == "" and value == "still here":
                reached = [int(it) for it in last.split(".")]
                if all(map(int.__ge__, reached, wanted)):
                    break
            if name == "id":
                last = value
    return found


async def test_the_log_and_its_stream_have_what_one_sees(world: World, client: Client) -> None:
    """All of it with `audit.view`; else one's own acts, and those on experiments one sees."""
    for name, place in ((EXPERIMENT, HOME), (THEIRS, ELSEWHERE)):
        await _submit(world, client, name, place)
        path = f"/experiments/{name}/description"
        assert (await client.call("POST", path, json={"notes": "x"})).status == 200
    for seat in SEATS:
        await made(client, "/searches", {"name": "mine", "query": ""}, **seat.headers)
    everything = await until(
        lambda: client.get("/log?limit=100"), lambda it: len(it["items"]) == len(SEATS) + 5
    )
    by_actor, about = Counter[str](), dict[str, set[str]]()
    for it in everything["items"]:
        by_actor[it["actor"]] += 1
        about.setdefault(it["experiment_id"], set()).add(it["id"])

    for seat in SEATS:
        listed = await client.get("/log?limit=100", headers=seat.headers)
        if seat.may("audit.view", None):
            assert listed["items"] == everything["items"]
        else:
            assert {it["actor"] for it in listed["items"]} == {seat.name}
            assert len(listed["items"]) == by_actor[seat.name] == 1
        streamed = await _streamed(client, seat, "", listed["last_event_id"])
        assert sorted(streamed) == sorted(it["id"] for it in listed["items"]), seat
        for path in ("/log", "/log/stream"):
            query = f"{path}?who={ADMIN}"
            if not seat.may("audit.view", None):
                other = await client.call("GET", query, headers=seat.headers)
                assert (other.status, "audit.view" in other.json["detail"]) == (403, True)
        for name, place in ((EXPERIMENT, HOME), (THEIRS, ELSEWHERE)):
            query = f"?experiment={name}"
            found = await client.call("GET", f"/log{query}", headers=seat.headers)
            if seat.may("experiment.view", place):
                assert {it["id"] for it in found.json["items"]} == about[name], seat
                behind = found.json["last_event_id"]
                assert set(await _streamed(client, seat, query, behind)) == about[name]
                continue
            stream = await client.call("GET", f"/log/stream{query}", headers=seat.headers)
            assert (found.status, stream.status) == (404, 404), seat


async def test_everybody_signs_out(client: Client) -> None:
    """The token ends with which this is asked, and no other one."""

    async def sign_out(seat: Seat) -> None:
        spare = bearer(f"{seat.name}-0")
        out = await client.call("POST", "/auth/sign-out", headers=dict(spare))
        assert (out.status, out.json["token_id"]) == (200, f"{seat.name}-0")
        gone = await client.call(
            "GET", "/roles", headers=dict(spare)
        )  # it may be a new one: waits
        assert (gone.status, seat.name) == (401, seat.name)
        assert (await client.call("GET", "/roles", headers=seat.headers)).status == 200

    await asyncio.gather(*map(sign_out, SEATS))


OF_THEIR_OWN: Final = {"list_roles", "list_tokens", "change_experiments", "sign_out"} | {
    "list_acts",
    "stream_acts",
}
"""Operations that have a test of their own above."""


def test_each_operation_of_the_directory_is_in_a_table() -> None:
    """An operation on which the directory decides and that no table names is a mistake."""
    rows = {row.operation for rows in ROWS.values() for row in rows}
    served = {each.id: each.about for each in operations()}

    assert rows | set(LISTS) | OF_THEIR_OWN <= set(served)
    decided = {name for name, about in served.items() if about in {"directory", "signed-in"}}
    assert decided - rows - set(LISTS) - OF_THEIR_OWN == set()

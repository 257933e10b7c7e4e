"""A company as a directory sees it: people who ask for changes, allowed or not, by any token.

Ids are drawn from a few, so requests meet what others made, changed or removed. First some people
and workspaces are made; of what is asked later many a request is refused.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Final

from rung import rights
from rung.events import changes
from rung.events.changes import Change
from rung.events.directory import ADMIN, DEFAULT, ROOT, SYSTEM, ChangeRequested

_DAY_MS: Final = 24 * 3600 * 1000
_BEGIN_MS: Final = 1_767_225_600_000
_HASH: Final = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA"
_ISSUER: Final = "https://idp.example.org"
_NAMES: Final = ("Anna", "anna", "bob", "Bob", "x" * 101, "")


class Company:
    """Draws requests; the same ones of the same seed."""

    def __init__(self, seed: int, *, level: int = 1) -> None:
        """Take the seed, and the logic level of the installation."""
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._level = level
        self._count = 0
        self._now_ms = _BEGIN_MS
        self._first: Final[list[Change]] = [
            *(changes.CreateGroup(group_id=f"g{it}", name=f"group-{it}") for it in range(3)),
            *(
                changes.CreateWorkspace(
                    workspace_id=f"w{it}", name=f"team-{it}", owner_id=f"u{it}"
                )
                for it in range(3)
            ),
            *(changes.CreateUser(user_id=f"u{it}", name=f"user-{it}") for it in range(5)),
        ]
        self._draws: Final[tuple[Callable[[], Change], ...]] = (
            self._person,
            self._account,
            self._group,
            self._members,
            self._token,
            self._token,
            self._assignment,
            self._assignment,
            self._workspace,
            self._project,
            self._resource,
            self._model,
        )

    def next(self) -> ChangeRequested:
        """Return the next request."""
        self._count += 1
        self._now_ms += self._random.choice([1, 1_000, 60_000, _DAY_MS // 2])
        by = self._random.choice([ADMIN, ADMIN, ADMIN, ADMIN, SYSTEM, self._user(), self._user()])
        if self._first:
            return ChangeRequested(
                request_id=f"r{self._count}",
                by=ADMIN,
                at_ms=self._now_ms,
                change=self._first.pop(),
                level=self._level,
            )
        return ChangeRequested(
            request_id=f"r{self._count}",
            by=by,
            via=self._random.choice([ROOT, ROOT, ROOT, ROOT, self._id("t")]),
            on_behalf_of=self._user() if self._random.random() < 0.1 else None,
            at_ms=self._now_ms,
            change=self._random.choice(self._draws)(),
            expected=self._random.randint(1, 4) if self._random.random() < 0.1 else None,
            level=self._level,
        )

    def _one(self, found: Sequence[Change]) -> Change:
        return self._random.choice(found)

    def _id(self, kind: str, count: int = 4) -> str:
        return f"{kind}{self._random.randrange(count)}"

    def _user(self) -> str:
        return self._random.choice([ADMIN, *(f"u{number}" for number in range(5))])

    def _place(self) -> str | None:
        return self._random.choice([None, DEFAULT, "w0", "w1", "w2"])

    def _where(self) -> str:
        return self._place() or DEFAULT

    def _name(self) -> str:
        return self._random.choice([*_NAMES, *(f"name-{it}" for it in range(20))])

    def _maybe(self) -> bool:
        return self._random.random() < 0.5

    def _digest(self) -> str:
        return hashlib.sha256(str(self._random.randrange(12)).encode()).hexdigest()

    def _person(self) -> Change:
        return self._one(
            [
                changes.CreateUser(user_id=self._user(), name=self._name()),
                changes.CreateUser(user_id=self._user(), name=self._name()),
                changes.CreateUser(
                    user_id=self._user(),
                    name=self._name(),
                    kind="service",
                    workspace_id=self._place(),
                ),
                changes.ChangeUser(user_id=self._user(), name=self._name()),
            ]
        )

    def _account(self) -> Change:
        subject = self._id("s")
        return self._one(
            [
                changes.SetUserActive(user_id=self._user(), active=self._maybe()),
                changes.SetUserActive(user_id=self._user(), active=True),
                changes.RetireUser(user_id=self._user()),
                changes.SetPassword(
                    user_id=self._user(), password_hash=_HASH if self._maybe() else None
                ),
                changes.LinkIdentity(user_id=self._user(), issuer=_ISSUER, subject=subject),
                changes.UnlinkIdentity(user_id=self._user(), issuer=_ISSUER, subject=subject),
            ]
        )

    def _group(self) -> Change:
        return self._one(
            [
                changes.CreateGroup(group_id=self._id("g"), name=self._name()),
                changes.CreateGroup(group_id=self._id("g"), name=self._name(), issuer=_ISSUER),
                changes.ChangeGroup(group_id=self._id("g"), name=self._name()),
                changes.RemoveGroup(group_id=self._id("g")),
            ]
        )

    def _members(self) -> Change:
        return self._one(
            [
                changes.ChangeMembers(group_id=self._id("g"), add=[self._user(), self._user()]),
                changes.ChangeMembers(group_id=self._id("g"), remove=[self._user()]),
                changes.SyncMemberships(
                    user_id=self._user(),
                    issuer=_ISSUER,
                    groups=[f"g{number}" for number in range(4) if self._maybe()],
                ),
            ]
        )

    def _token(self) -> Change:
        scope = self._random.sample(sorted(rights.PERMISSIONS), self._random.randint(0, 20))
        return self._one(
            [
                changes.IssueToken(
                    token_id=self._id("t"),
                    user_id=self._user(),
                    digest=self._digest(),
                    kind=self._random.choice(["personal", "service", "session"]),
                    scope=scope if self._maybe() else None,
                    workspace_id=self._place() if self._maybe() else None,
                    expires_ms=self._now_ms + self._random.randint(-1, 9) * _DAY_MS,
                ),
                changes.IssueToken(
                    token_id=self._id("t"), user_id=self._user(), digest=self._digest()
                ),
                changes.RotateToken(token_id=self._id("t"), digest=self._digest()),
                changes.RevokeToken(token_id=self._id("t")),
                changes.RevokeTokens(user_id=self._user()),
                changes.NoteTokenUse(token_id=self._id("t")),
            ]
        )

    def _assignment(self) -> Change:
        if self._random.random() < 0.3:
            return changes.RemoveAssignment(
                assignment_id=self._random.choice([ADMIN, self._id("a", 6)])
            )
        user, group = self._user(), self._id("g")
        of_user = self._maybe()
        return changes.AssignRole(
            assignment_id=self._id("a", 6),
            role=self._random.choice([*rights.ROLES, "emperor"]),
            user_id=user if of_user else None,
            group_id=None if of_user else group,
            workspace_id=self._place(),
        )

    def _workspace(self) -> Change:
        return self._one(
            [
                changes.CreateWorkspace(
                    workspace_id=self._id("w", 3), name=self._name(), owner_id=self._user()
                ),
                changes.CreateWorkspace(workspace_id=self._id("w", 3), name=self._name()),
                changes.ChangeWorkspace(workspace_id=self._where(), name=self._name()),
                changes.ChangeWorkspace(workspace_id=self._where(), owner_id=self._user()),
                changes.ArchiveWorkspace(workspace_id=self._where(), archived=False),
                changes.ArchiveWorkspace(workspace_id=self._where(), archived=self._maybe()),
            ]
        )

    def _project(self) -> Change:
        project = self._random.choice([DEFAULT, self._id("p")])
        return self._one(
            [
                changes.CreateProject(
                    project_id=project, workspace_id=self._where(), name=self._name()
                ),
                changes.ChangeProject(project_id=project, name=self._name()),
                changes.ArchiveProject(project_id=project, archived=self._maybe()),
                changes.MoveProject(project_id=project, workspace_id=self._where()),
            ]
        )

    def _model(self) -> Change:
        model = self._id("m", 3)
        return self._one(
            [
                changes.CreateModel(
                    model_id=model,
                    workspace_id=self._where(),
                    name=self._name(),
                    labels=[self._id("l", 2)],
                    metadata={"classes": 10},
                ),
                changes.ChangeModel(model_id=model, name=self._name(), labels=["a", "a"]),
                changes.ChangeModel(model_id=model, name=self._name(), metadata={}),
                changes.ArchiveModel(model_id=model, archived=self._maybe()),
                changes.MoveModel(model_id=model, workspace_id=self._where()),
                changes.RemoveModel(model_id=model),
                changes.ChangeVersion(model_version_id="v1", notes="n"),
                changes.RemoveVersion(model_version_id="v1"),
            ]
        )

    def _resource(self) -> Change:
        name, where, found = self._name(), self._where(), self._id("x", 2)
        policy = changes.SetPolicy(policy_id=found, name=name, kind="defaults", document="a: 1")
        of_project = changes.SetPolicy(
            policy_id=found, name=name, kind="constraints", document="", project_id=self._id("p")
        )
        webhook = changes.SetWebhook(
            webhook_id=found,
            workspace_id=where,
            name=name,
            document="{}",
            secret_id=found if self._maybe() else None,
            project_id=self._id("p") if self._maybe() else None,
        )
        secret = changes.SetSecret(
            secret_id=found,
            workspace_id=where,
            name=name,
            digest=self._digest(),
            reference=f"secrets/{found}",
        )
        return self._one(
            [
                policy,
                of_project,
                webhook,
                secret,
                changes.SetTemplate(
                    template_id=found, workspace_id=where, name=name, document="a: 1"
                ),
                changes.SaveSearch(search_id=found, name=name, query="owner:me"),
                changes.SaveSearch(search_id=found, name=name, query="a", workspace_id=where),
                changes.RemovePolicy(policy_id=found),
                changes.RemoveTemplate(template_id=found),
                changes.RemoveWebhook(webhook_id=found),
                changes.RemoveSearch(search_id=found),
                changes.RemoveSecret(secret_id=found),
            ]
        )

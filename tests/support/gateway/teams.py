"""Users with roles in workspaces, and their tokens, for tests of rights."""

import functools
import itertools
from typing import Any, Final, Literal, NamedTuple

from rung.events import changes
from rung.gateway.directory.directory import Directory
from rung.gateway.identity.secret import digest_of, draw
from rung.rights import ROLES
from support.gateway.directory import fold_change

Side = Literal["inside", "outside", "cluster"]
"""Where a role is held: in the workspace of what is asked about, in another one, in all."""
HOME: Final = "default"
"""The workspace and project of what is asked about."""
ELSEWHERE: Final = "speech"
"""Another workspace, and its project."""
SIDES: Final[tuple[Side, ...]] = ("inside", "outside", "cluster")
NOBODY: Final = "nobody"
"""Who has no role anywhere."""
_PLACES: Final[dict[Side, str | None]] = {"inside": HOME, "outside": ELSEWHERE, "cluster": None}


@functools.cache
def _secret(_name: str) -> str:
    return draw()


class Member(NamedTuple):
    """A user with a token."""

    name: str
    role: str | None
    side: Side

    @property
    def token(self) -> str:
        """The secret of the user's token."""
        return _secret(self.name)

    @property
    def headers(self) -> dict[str, str]:
        """Of a request of this user."""
        return {"Authorization": f"Bearer {self.token}"}


def members() -> list[Member]:
    """Return a user of each role on each side where it may be held, and one without any."""
    found = [
        Member(f"{role.name}-{side}", role.name, side)
        for role in ROLES.values()
        for side in SIDES
        if ("cluster" if side == "cluster" else "workspace") in role.places
    ]
    return [*found, Member(NOBODY, None, "outside")]


def enter(directory: Directory, who: list[Member]) -> None:
    """Put the other workspace and these users, with their roles and tokens, into a directory."""
    change: Any
    fold_change(
        directory,
        changes.CreateWorkspace(workspace_id=ELSEWHERE, name=ELSEWHERE, owner_id="admin"),
        changes.CreateProject(project_id=ELSEWHERE, workspace_id=ELSEWHERE, name=ELSEWHERE),
    )
    ids = (f"a{number}" for number in itertools.count())
    for each in who:
        fold_change(
            directory,
            changes.CreateUser(user_id=each.name, name=each.name),
            changes.IssueToken(
                token_id=f"t-{each.name}",
                user_id=each.name,
                digest=digest_of(each.token),
            ),
        )
        if each.role is not None:
            change = changes.AssignRole(
                assignment_id=next(ids),
                role=each.role,
                user_id=each.name,
                workspace_id=_PLACES[each.side],
            )
            fold_change(directory, change)

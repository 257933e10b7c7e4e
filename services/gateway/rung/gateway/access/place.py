"""Places of experiments: workspaces and projects by name, as the principal of a request sees them.

On record are ids; people write names, which may change. What the principal does not see is no
place: messages and proposals are the same as without it.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from rung.events.experiment import DEFAULT
from rung.gateway.access.authorization import Access
from rung.gateway.directory.directory import All, Directory
from rung.gateway.directory.state import Project, Thing, Workspace, folded
from rung.gateway.projections.experiment import Experiment

T = TypeVar("T", bound=Thing)

CREATE: Final = "experiment.create"
UNCATEGORIZED: Final = "Uncategorized"
"""The workspace and project of files that name none, in files and on record."""
_SEE: Final = ("workspace.view", "experiment.view", CREATE)
"""Permissions with any of which a workspace is seen."""
_SHOWN: Final = 10
_LENGTH: Final = 100


class Place(NamedTuple):
    """Where an experiment is, by ids."""

    workspace_id: str
    project_id: str


class UnknownPlace(Exception):
    """A workspace or project that is not there, or takes nothing new.

    Attributes:
        field: `workspace` or `project`.
        value: as it was given.
    """

    def __init__(self, field: str, value: str, message: str) -> None:
        self.field = field
        self.value = value
        super().__init__(message)


def find_place(access: Access, workspace: str | None, project: str | None) -> Place:
    """Return a place for something new, by ids or names.

    Args:
        access: of the request.
        workspace: its name or id; `Uncategorized`, empty or None: the workspace `default`.
        project: its name or id; None, or what stands for none: the only project of the workspace,
            or the one called `default`.

    Raises:
        UnknownPlace: there is none for the principal, or it is archived.
        Problem: it sees the workspace and may submit nothing to it.
    """
    found = _workspace(access, workspace)
    if found.archived:
        raise UnknownPlace("workspace", found.name, f"workspace {found.name} is archived")
    access.check(CREATE, found.id, f"something new in workspace {found.name}")
    chosen = _project(access, found, project)
    if chosen.archived:
        message = f"project {chosen.name} of workspace {found.name} is archived"
        raise UnknownPlace("project", chosen.name, message)
    return Place(found.id, chosen.id)


def _workspace(access: Access, name: str | None) -> Workspace:
    seen = workspaces_seen(access)
    if name is None or name in {"", UNCATEGORIZED}:
        for each in seen:
            if each.id == DEFAULT:
                return each
        able = [each.name for each in seen if access.may(CREATE, each.id)]
        there = f"there is {_listed(able)}" if able else "you have none to submit to"
        raise UnknownPlace("workspace", "", f"is required, along with project; {there}")
    found = _named(seen, name)
    if found is None:
        raise UnknownPlace("workspace", name, _unknown("workspace", name, seen))
    return found


def _project(access: Access, workspace: Workspace, name: str | None) -> Project:
    projects = access.directory.state.projects.values()
    there = [each for each in projects if each.workspace_id == workspace.id]
    if name is None or name in {"", UNCATEGORIZED}:
        open_ = [each for each in there if not each.archived]
        usual = [each for each in open_ if each.id == DEFAULT or folded(each.name) == DEFAULT]
        if usual or len(open_) == 1:
            return (usual or open_)[0]
        if not open_:
            message = f"workspace {workspace.name} has no project; `rung project create` makes one"
            raise UnknownPlace("project", "", message)
        names = _listed([each.name for each in open_])
        raise UnknownPlace("project", "", f"is required; workspace {workspace.name} has {names}")
    found = _named(there, name)
    if found is None:
        raise UnknownPlace("project", name, _unknown("project", name, there))
    return found


def workspaces_seen(access: Access) -> list[Workspace]:
    """Return the workspaces that the principal sees, by name."""
    directory, principal = access.directory, access.principal
    sets = [directory.workspaces_with(principal, permission) for permission in _SEE]
    everything = directory.state.workspaces.values()
    if any(isinstance(each, All) for each in sets):
        found = list(everything)
    else:
        found = [each for each in everything if any(each.id in some for some in sets)]
    return sorted(found, key=lambda each: (folded(each.name), each.id))


def _named(things: Iterable[T], name: str) -> T | None:
    """Return the thing of an id or a name."""
    same = folded(name)
    by_name: T | None = None
    for each in things:
        if each.id == name:
            return each
        if folded(each.name) == same:
            by_name = each
    return by_name


def _unknown(what: str, name: str, there: Sequence[Thing]) -> str:
    names = [each.name for each in there]
    near = difflib.get_close_matches(name[:_LENGTH], names, 1)
    if near:
        return f"there is no {what} {name[:_LENGTH]!r}; did you mean {near[0]}?"
    return f"there is no {what} {name[:_LENGTH]!r}; there is {_listed(names) or 'none'}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


class Names:
    """Names of users, workspaces and projects, for answers and filters."""

    def __init__(self, access: Access) -> None:
        """Name what a principal sees."""
        self._access = access
        self._directory: Directory = access.directory

    def place_of(self, experiment: Experiment) -> Place:
        """Return where an experiment is now: its project may have moved."""
        project = self._directory.state.projects.get(experiment.project_id)
        home = experiment.workspace_id if project is None else project.workspace_id
        return Place(home, experiment.project_id)

    def workspace(self, workspace_id: str) -> str:
        """Return the name of a workspace; its id where the directory does not have it."""
        found = self._directory.state.workspaces.get(workspace_id)
        return workspace_id if found is None else found.name

    def project(self, project_id: str) -> str:
        """Return the name of a project; its id where the directory does not have it."""
        found = self._directory.state.projects.get(project_id)
        return project_id if found is None else found.name

    def user(self, user_id: str) -> str:
        """Return the name of a user; its id where the directory does not have it."""
        found = self._directory.state.users.get(user_id)
        return user_id if found is None else found.name

    def ids_of(self, field: str, value: str) -> list[str]:
        """Return the ids of the users or projects that a value of a filter's field names.

        Args:
            field: `owner`, `project`, or `workspace`: then of its projects.
            value: a name or an id, in which `*` stands for any text.
        """
        state = self._directory.state
        if field == "owner":
            return _matching(state.users.values(), value)
        spaces = {each.id: each for each in workspaces_seen(self._access)}
        projects = [each for each in state.projects.values() if each.workspace_id in spaces]
        if field == "project":
            return _matching(projects, value)
        chosen = set(_matching(spaces.values(), value))
        return [each.id for each in projects if each.workspace_id in chosen]


def _matching(things: Iterable[Thing], value: str) -> list[str]:
    pattern = re.compile(".*".join(map(re.escape, folded(value).split("*"))), re.DOTALL)
    return [each.id for each in things if each.id == value or pattern.fullmatch(folded(each.name))]

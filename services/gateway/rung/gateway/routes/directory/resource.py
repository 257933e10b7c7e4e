"""What the routes of the directory share: bodies, versions, references, visibility, pages."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from aiohttp import web
from msgspec import Struct

from rung.api import ProblemItem
from rung.events import changes
from rung.events.directory import ChangeRefused, DirectoryChanged
from rung.gateway.context import context_of, reply
from rung.gateway.directory.asking import principal_of
from rung.gateway.directory.state import Group, Project, State, Thing, User, Workspace
from rung.gateway.problem import Problem, not_found
from rung.gateway.requests.json_body import record_of
from rung.gateway.requests.query import PageQuery, page
from rung.gateway.requests.upload import read_body
from rung.gateway.requests.version import etag
from rung.gateway.route import Body
from rung.gateway.timestamp import timestamp

B = TypeVar("B", bound=Struct)
T = TypeVar("T", bound=Thing)

BYTES_MAX: Final = 500_000
READING: Final = (403, 404)
CREATING: Final = (403, 404, 409, 413, 422)
CHANGING: Final = (403, 404, 409, 412, 413, 422)


def body_of(record: type[Struct]) -> Body:
    """Return the description of a JSON body."""
    return Body("application/json", record=record)


async def wanted(request: web.Request, kind: type[B]) -> B:
    """Return the body of a request.

    Raises:
        Problem: it is no JSON, or a field is missing, unknown or of another type; it is named.
    """
    return record_of(await read_body(request, BYTES_MAX), kind)


def reply_thing(answer: Struct, version: int, *, status: int = 200) -> web.Response:
    """Return a thing with its version as the ETag."""
    return reply(answer, status=status, ETag=etag(version))


def state_of(request: web.Request) -> State:
    """Return the directory as this replica has folded it."""
    return context_of(request).directory.state


def may(request: web.Request, permission: str, workspace_id: str | None = None) -> bool:
    """Return whether who asks has a permission in a workspace, or in the cluster."""
    directory = context_of(request).directory
    return permission in directory.permissions(principal_of(request), workspace_id)


def find(  # noqa: PLR0913 - what it looks for, and where
    request: web.Request,
    table: Mapping[str, T],
    space: str,
    reference: str,
    word: str,
    *,
    visible: Callable[[T], bool],
    field: str | None = None,
) -> T:
    """Return a thing by its id or its name.

    Args:
        request: that names it.
        table: of all of its kind.
        space: in which its name is unique.
        reference: the id or the name.
        word: for the problem.
        visible: whether who asks may see it; what is not visible is not there.
        field: of the body that names it; None: the path does.

    Raises:
        Problem: there is none that who asks may see.
    """
    directory = context_of(request).directory
    found = table.get(reference) or table.get(directory.id_of(space, reference) or "")
    if found is not None and visible(found):
        return found
    path = f"{word.replace(' ', '-')}{'es' if word.endswith('ch') else 's'}"
    hint = f"`rung {word} list` and GET /api/v1/{path} list what there is"
    if field is None:
        raise not_found(word, reference, hint)
    message = f"there is no {word} {reference[:100]!r}; {hint}"
    raise Problem(
        422, "invalid", f"{field}: {message}", errors=[ProblemItem(path=field, message=message)]
    )


def find_user(request: web.Request, reference: str, field: str | None = None) -> User:
    """Return a user or a service account by id or name.

    Raises:
        Problem: there is none.
    """
    return find(
        request,
        state_of(request).users,
        User.TABLE,
        reference,
        "user",
        visible=lambda it: sees_user(request, it),
        field=field,
    )


def sees_user(request: web.Request, user: User) -> bool:
    """Return whether who asks may see a user, or a service account.

    An account of a workspace is there for whoever may see those of that workspace, and where it
    has a role for whoever may see who has which there.
    """
    if user.kind == "person":
        return may(request, "user.view")
    return (
        user.id == principal_of(request).user_id
        or may(request, "service.view", user.workspace_id)
        or any(
            it.user_id == user.id and may(request, "role.view", it.workspace_id)
            for it in state_of(request).assignments.values()
        )
    )


def find_group(request: web.Request, reference: str, field: str | None = None) -> Group:
    """Return a group by id or name.

    Raises:
        Problem: there is none.
    """
    return find(
        request,
        state_of(request).groups,
        Group.TABLE,
        reference,
        "group",
        visible=lambda _: may(request, "group.view"),
        field=field,
    )


def find_workspace(request: web.Request, reference: str, field: str | None = None) -> Workspace:
    """Return a workspace that who asks may see, by id or name.

    Raises:
        Problem: there is none.
    """
    return find(
        request,
        state_of(request).workspaces,
        Workspace.TABLE,
        reference,
        "workspace",
        visible=lambda it: may(request, "workspace.view", it.id),
        field=field,
    )


def find_project(request: web.Request, reference: str, field: str | None = None) -> Project:
    """Return a project that who asks may see: by id, or as WORKSPACE/PROJECT.

    Raises:
        Problem: there is none.
    """
    directory = context_of(request).directory
    workspace, slash, name = reference.partition("/")
    table, space = directory.state.projects, f"{Project.TABLE}/"
    if slash:
        known = workspace if workspace in directory.state.workspaces else None
        space += known or directory.id_of(Workspace.TABLE, workspace) or ""
        found = table.get(directory.id_of(space, name) or "")
        table = {} if found is None else {reference: found}
    return find(
        request,
        table,
        space,
        reference,
        "project",
        visible=lambda it: may(request, "project.view", it.workspace_id),
        field=field,
    )


def listed(
    things: Iterable[T], query: PageQuery, shown: Callable[[T], Any]
) -> tuple[list[Any], str | None]:
    """Return a page of things, by id, and the cursor of the next."""
    items, cursor = page(sorted(things, key=lambda it: it.id), query, lambda it: it.id)
    return [shown(it) for it in items], cursor


def time_of(ms: int) -> str | None:
    """Return a time as answers have it, None for what was always there."""
    return timestamp(ms) if ms else None


def recorded(thing: Thing) -> dict[str, Any]:
    """Return the fields that all answers have."""
    return {
        "id": thing.id,
        "name": thing.name,
        "version": thing.version,
        "created_at": time_of(thing.created_ms),
        "changed_at": time_of(thing.changed_ms),
    }


def removed_before(
    before: DirectoryChanged | ChangeRefused | None, kind: type[Struct]
) -> str | None:
    """Return the id of what this request has removed when it was sent before."""
    if isinstance(before, DirectoryChanged) and isinstance(before.change, kind):
        return changes.subject_of_change(before.change).rpartition("/")[2]
    return None

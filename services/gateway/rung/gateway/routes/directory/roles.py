"""Roles, and who has them: list, show, assign, take away."""

from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from rung import api, rights
from rung.events import changes
from rung.gateway.context import reply
from rung.gateway.directory.asking import Asking
from rung.gateway.directory.state import Assignment
from rung.gateway.requests.query import NoQuery, PageQuery, read_query
from rung.gateway.requests.version import version_of
from rung.gateway.route import Route
from rung.gateway.routes.directory.resource import (
    CHANGING,
    CREATING,
    READING,
    body_of,
    find,
    find_group,
    find_user,
    find_workspace,
    listed,
    may,
    state_of,
    time_of,
    wanted,
)


class AssignmentQuery(PageQuery, forbid_unknown_fields=True):
    """Which assignments."""

    role: Annotated[str | None, Meta(description="only of this role")] = None
    user: Annotated[str | None, Meta(description="only of the user of this id or name")] = None
    group: Annotated[str | None, Meta(description="only of the group of this id or name")] = None
    workspace: Annotated[
        str | None, Meta(description="only in the workspace of this id or name")
    ] = None


async def list_roles(request: web.Request) -> web.Response:
    """List the roles, and what each may."""
    read_query(request, NoQuery)
    items = [
        api.Role(
            name=it.name,
            description=it.text,
            places=list(it.places),
            permissions=sorted(it.permissions),
        )
        for it in rights.ROLES.values()
    ]
    return reply(api.RoleList(items=items))


async def list_assignments(request: web.Request) -> web.Response:
    """List who has which role, where one may see it, by id."""
    query = read_query(request, AssignmentQuery)
    user = None if query.user is None else find_user(request, query.user).id
    group = None if query.group is None else find_group(request, query.group).id
    place = None if query.workspace is None else find_workspace(request, query.workspace).id
    found = [
        it
        for it in state_of(request).assignments.values()
        if _is_visible(request, it)
        and query.role in {None, it.role}
        and user in {None, it.user_id}
        and group in {None, it.group_id}
        and place in {None, it.workspace_id}
    ]
    items, cursor = listed(found, query, lambda it: _shown(request, it))
    return reply(api.AssignmentList(items=items, next_cursor=cursor))


async def show_assignment(request: web.Request) -> web.Response:
    """Show who has a role by an assignment."""
    read_query(request, NoQuery)
    return reply(_shown(request, _of_path(request)))


async def assign_role(request: web.Request) -> web.Response:
    """Give a role to a user or a group."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.AssignmentWanted), Asking.of(request)
    place = body.workspace
    change = changes.AssignRole(
        assignment_id=asking.new_id(),
        role=body.role,
        user_id=None if body.user is None else find_user(request, body.user, "user").id,
        group_id=None if body.group is None else find_group(request, body.group, "group").id,
        workspace_id=None if place is None else find_workspace(request, place, "workspace").id,
    )
    await asking.make(change)
    found = state_of(request).assignments[change.assignment_id]
    return reply(_shown(request, found), status=201)


async def delete_assignment(request: web.Request) -> web.Response:
    """Take a role away."""
    read_query(request, NoQuery)
    asking, name = Asking.of(request), request.match_info["assignment"]
    if await asking.before() is None:
        name = _of_path(request).id
    change = changes.RemoveAssignment(assignment_id=name)
    await asking.make(change, expected=version_of(request))
    return reply(api.Removed(id=name))


def _is_visible(request: web.Request, it: Assignment) -> bool:
    return may(request, "role.view", it.workspace_id)


def _of_path(request: web.Request) -> Assignment:
    return find(
        request,
        state_of(request).assignments,
        Assignment.TABLE,
        request.match_info["assignment"],
        "assignment",
        visible=lambda it: _is_visible(request, it),
    )


def _shown(request: web.Request, it: Assignment) -> api.Assignment:
    state = state_of(request)
    user, group = state.users.get(it.user_id or ""), state.groups.get(it.group_id or "")
    workspace = state.workspaces.get(it.workspace_id or "")
    return api.Assignment(
        id=it.id,
        role=it.role,
        user_id=it.user_id,
        user=None if user is None else user.name,
        group_id=it.group_id,
        group=None if group is None else group.name,
        workspace_id=it.workspace_id,
        workspace=None if workspace is None else workspace.name,
        by=it.by,
        created_at=time_of(it.created_ms),
    )


ROUTES: Final = (
    Route("GET", "/roles", list_roles, "The roles, and what each may", api.RoleList),
    Route(
        "GET",
        "/assignments",
        list_assignments,
        "Who has which role, by id",
        api.AssignmentList,
        query=AssignmentQuery,
        problems=(404,),
    ),
    Route(
        "POST",
        "/assignments",
        assign_role,
        "Give a role to a user or a group",
        api.Assignment,
        status=201,
        body=body_of(api.AssignmentWanted),
        idempotent=True,
        problems=CREATING,
    ),
    Route(
        "GET",
        "/assignments/{assignment}",
        show_assignment,
        "Who has a role, and where",
        api.Assignment,
        problems=READING,
    ),
    Route(
        "POST",
        "/assignments/{assignment}/delete",
        delete_assignment,
        "Take a role away",
        api.Removed,
        idempotent=True,
        problems=CHANGING,
    ),
)

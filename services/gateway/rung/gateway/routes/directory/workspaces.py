"""Workspaces: list, show, create, change, archive, open again."""

from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from rung import api
from rung.api import ProblemItem
from rung.events import changes
from rung.gateway.context import check_caught_up, context_of, reply
from rung.gateway.directory.asking import Asking, principal_of
from rung.gateway.directory.state import Workspace
from rung.gateway.feasibility import unknown_pool
from rung.gateway.problem import Problem
from rung.gateway.requests.query import NoQuery, PageQuery, read_query
from rung.gateway.requests.version import version_of
from rung.gateway.route import Route
from rung.gateway.routes.directory.resource import (
    CHANGING,
    CREATING,
    READING,
    body_of,
    find_user,
    find_workspace,
    listed,
    may,
    recorded,
    reply_thing,
    state_of,
    wanted,
)
from rung.gateway.routes.directory.storage_area import check_storage


class PlaceQuery(PageQuery, forbid_unknown_fields=True):
    """Which workspaces or projects."""

    archived: Annotated[bool | None, Meta(description="only those that are, or are not")] = None


async def list_workspaces(request: web.Request) -> web.Response:
    """List the workspaces that one may see, by id."""
    query = read_query(request, PlaceQuery)
    found = [
        it
        for it in state_of(request).workspaces.values()
        if query.archived in {None, it.archived} and may(request, "workspace.view", it.id)
    ]
    items, cursor = listed(found, query, lambda it: _shown(request, it))
    return reply(api.WorkspaceList(items=items, next_cursor=cursor))


async def show_workspace(request: web.Request) -> web.Response:
    """Show a workspace."""
    read_query(request, NoQuery)
    return _reply(request, _of_path(request))


async def create_workspace(request: web.Request) -> web.Response:
    """Create a workspace."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.WorkspaceWanted), Asking.of(request)
    _check_pool(request, body.default_pool)
    if may(request, "workspace.create", None):
        await check_storage(context_of(request), body.storage)
    owner = None if body.owner is None else find_user(request, body.owner, "owner").id
    change = changes.CreateWorkspace(
        workspace_id=asking.new_id(),
        name=body.name,
        description=body.description,
        owner_id=owner,
        default_pool=body.default_pool,
        storage=body.storage,
    )
    await asking.make(change)
    return _reply(request, state_of(request).workspaces[change.workspace_id], status=201)


async def change_workspace(request: web.Request) -> web.Response:
    """Change a workspace."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.WorkspaceChange), Asking.of(request)
    workspace = _of_path(request)
    if body.default_pool != workspace.default_pool:
        _check_pool(request, body.default_pool)
    if body.storage != workspace.storage and may(request, "workspace.edit", workspace.id):
        await check_storage(context_of(request), body.storage or "")
    change = changes.ChangeWorkspace(
        workspace_id=workspace.id,
        name=body.name,
        description=body.description,
        owner_id=None if body.owner is None else find_user(request, body.owner, "owner").id,
        default_pool=body.default_pool,
        storage=body.storage,
    )
    await asking.make(change, expected=version_of(request))
    return _reply(request, state_of(request).workspaces[workspace.id])


async def archive_workspace(request: web.Request) -> web.Response:
    """Close a workspace to anything new."""
    return await _archive(request, archived=True)


async def unarchive_workspace(request: web.Request) -> web.Response:
    """Open an archived workspace again."""
    return await _archive(request, archived=False)


async def _archive(request: web.Request, *, archived: bool) -> web.Response:
    read_query(request, NoQuery)
    asking, workspace = Asking.of(request), _of_path(request)
    change = changes.ArchiveWorkspace(workspace_id=workspace.id, archived=archived)
    await asking.make(change, expected=version_of(request))
    return _reply(request, state_of(request).workspaces[workspace.id])


def _check_pool(request: web.Request, name: str | None) -> None:
    """Refuse a default pool that does not exist.

    Raises:
        Problem: it does not; or this server still catches up, and a pool may have come since.
    """
    if not name:
        return
    models = context_of(request).models
    check_caught_up(models)
    lack = unknown_pool(models, name)
    if lack is None:
        return
    message = f"{lack}; a pool exists once an agent has joined it, or `rung pool` configured it"
    item = ProblemItem(path="default_pool", message=message, value=name[:100])
    raise Problem(422, "invalid", f"default_pool: {message}", errors=[item])


def _of_path(request: web.Request) -> Workspace:
    return find_workspace(request, request.match_info["workspace"])


def _shown(request: web.Request, workspace: Workspace) -> api.Workspace:
    directory = context_of(request).directory
    owner = directory.state.users.get(workspace.owner_id)
    held = directory.permissions(principal_of(request), workspace.id)
    return api.Workspace(
        **recorded(workspace),
        description=workspace.description,
        owner_id=workspace.owner_id,
        owner=workspace.owner_id if owner is None else owner.name,
        default_pool=workspace.default_pool,
        storage=workspace.storage,
        archived=workspace.archived,
        permissions=sorted(held),
    )


def _reply(request: web.Request, workspace: Workspace, *, status: int = 200) -> web.Response:
    return reply_thing(_shown(request, workspace), workspace.version, status=status)


ROUTES: Final = (
    Route(
        "GET",
        "/workspaces",
        list_workspaces,
        "The workspaces that one may see, by id",
        api.WorkspaceList,
        query=PlaceQuery,
    ),
    Route(
        "POST",
        "/workspaces",
        create_workspace,
        "Create a workspace",
        api.Workspace,
        status=201,
        body=body_of(api.WorkspaceWanted),
        idempotent=True,
        problems=CREATING,
    ),
    Route(
        "GET",
        "/workspaces/{workspace}",
        show_workspace,
        "A workspace, and what one may there",
        api.Workspace,
        problems=READING,
    ),
    Route(
        "POST",
        "/workspaces/{workspace}",
        change_workspace,
        "Change a workspace's name, description, owner, default pool or storage",
        api.Workspace,
        body=body_of(api.WorkspaceChange),
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "POST",
        "/workspaces/{workspace}/archive",
        archive_workspace,
        "Close a workspace to anything new",
        api.Workspace,
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "POST",
        "/workspaces/{workspace}/unarchive",
        unarchive_workspace,
        "Open an archived workspace again",
        api.Workspace,
        idempotent=True,
        problems=CHANGING,
    ),
)

"""Projects of workspaces: list, show, create, change, archive, open again, move."""

from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from rung import api
from rung.events import changes
from rung.gateway.context import reply
from rung.gateway.directory.asking import Asking
from rung.gateway.directory.state import Project
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.requests.version import version_of
from rung.gateway.route import Route
from rung.gateway.routes.directory.resource import (
    CHANGING,
    CREATING,
    READING,
    body_of,
    find_project,
    find_workspace,
    listed,
    may,
    recorded,
    reply_thing,
    state_of,
    wanted,
)
from rung.gateway.routes.directory.workspaces import PlaceQuery


class ProjectQuery(PlaceQuery, forbid_unknown_fields=True):
    """Which projects."""

    workspace: Annotated[
        str | None, Meta(description="only those of the workspace of this id or name")
    ] = None


async def list_projects(request: web.Request) -> web.Response:
    """List the projects that one may see, by id."""
    query = read_query(request, ProjectQuery)
    only = None if query.workspace is None else find_workspace(request, query.workspace)
    found = [
        it
        for it in state_of(request).projects.values()
        if query.archived in {None, it.archived}
        and (only is None or it.workspace_id == only.id)
        and may(request, "project.view", it.workspace_id)
    ]
    items, cursor = listed(found, query, lambda it: _shown(request, it))
    return reply(api.ProjectList(items=items, next_cursor=cursor))


async def show_project(request: web.Request) -> web.Response:
    """Show a project."""
    read_query(request, NoQuery)
    return _reply(request, _of_path(request))


async def create_project(request: web.Request) -> web.Response:
    """Create a project."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.ProjectWanted), Asking.of(request)
    change = changes.CreateProject(
        project_id=asking.new_id(),
        workspace_id=find_workspace(request, body.workspace, "workspace").id,
        name=body.name,
        description=body.description,
    )
    await asking.make(change)
    return _reply(request, state_of(request).projects[change.project_id], status=201)


async def change_project(request: web.Request) -> web.Response:
    """Change a project's name or description."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.ProjectChange), Asking.of(request)
    project = _of_path(request)
    change = changes.ChangeProject(
        project_id=project.id, name=body.name, description=body.description
    )
    await asking.make(change, expected=version_of(request))
    return _reply(request, state_of(request).projects[project.id])


async def move_project(request: web.Request) -> web.Response:
    """Move a project to another workspace."""
    read_query(request, NoQuery)
    body, asking = await wanted(request, api.ProjectMove), Asking.of(request)
    project = _of_path(request)
    workspace = find_workspace(request, body.workspace, "workspace")
    change = changes.MoveProject(project_id=project.id, workspace_id=workspace.id)
    await asking.make(change, expected=version_of(request))
    return _reply(request, state_of(request).projects[project.id])


async def archive_project(request: web.Request) -> web.Response:
    """Close a project to anything new."""
    return await _archive(request, archived=True)


async def unarchive_project(request: web.Request) -> web.Response:
    """Open an archived project again."""
    return await _archive(request, archived=False)


async def _archive(request: web.Request, *, archived: bool) -> web.Response:
    read_query(request, NoQuery)
    asking, project = Asking.of(request), _of_path(request)
    change = changes.ArchiveProject(project_id=project.id, archived=archived)
    await asking.make(change, expected=version_of(request))
    return _reply(request, state_of(request).projects[project.id])


def _of_path(request: web.Request) -> Project:
    return find_project(request, request.match_info["project"])


def _shown(request: web.Request, project: Project) -> api.Project:
    return api.Project(
        **recorded(project),
        workspace_id=project.workspace_id,
        workspace=state_of(request).workspaces[project.workspace_id].name,
        description=project.description,
        archived=project.archived,
    )


def _reply(request: web.Request, project: Project, *, status: int = 200) -> web.Response:
    return reply_thing(_shown(request, project), project.version, status=status)


ROUTES: Final = (
    Route(
        "GET",
        "/projects",
        list_projects,
        "The projects that one may see, by id",
        api.ProjectList,
        query=ProjectQuery,
        problems=(404,),
    ),
    Route(
        "POST",
        "/projects",
        create_project,
        "Create a project",
        api.Project,
        status=201,
        body=body_of(api.ProjectWanted),
        idempotent=True,
        problems=CREATING,
    ),
    Route("GET", "/projects/{project}", show_project, "A project", api.Project, problems=READING),
    Route(
        "POST",
        "/projects/{project}",
        change_project,
        "Change a project's name or description",
        api.Project,
        body=body_of(api.ProjectChange),
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "POST",
        "/projects/{project}/move",
        move_project,
        "Move a project to another workspace",
        api.Project,
        body=body_of(api.ProjectMove),
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "POST",
        "/projects/{project}/archive",
        archive_project,
        "Close a project to anything new",
        api.Project,
        idempotent=True,
        problems=CHANGING,
    ),
    Route(
        "POST",
        "/projects/{project}/unarchive",
        unarchive_project,
        "Open an archived project again",
        api.Project,
        idempotent=True,
        problems=CHANGING,
    ),
)

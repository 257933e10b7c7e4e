"""Authorization: what a request may do, decided here alone.

Theory of operation. Each route names the permission that it needs and what that is about
(`Route`). `authorize` finds the route of a request and gives the request its `Access`: the rights
of its principal, as the directory has them at this moment. Permissions of the cluster are checked
there, before the handler. Those on an experiment are checked where a handler finds the experiment,
its trial or its checkpoint (`rung.gateway.context`); those in a workspace where it is resolved
(`rung.gateway.access.place`); and lists are given the projects that are seen. A project is in one
workspace and may move to another, so what is visible is asked by project.

What one may neither see nor do that very thing to is not there: it is searched for in the projects
of `Access.visible` alone, so that answers, hints and counts are the same as without it. What one
sees and may not do is refused with 403, which names the permission and the roles that have it.
"""

from collections.abc import Mapping
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rung.gateway.directory.directory import All, Directory
from rung.gateway.identity.principal import PRINCIPAL, Principal
from rung.gateway.problem import Problem
from rung.gateway.projections.experiments import Visible
from rung.gateway.route import Route
from rung.rights import roles_with

VIEW: Final = "experiment.view"
AUDIT: Final = "audit.view"


class Access:
    """What the principal of one request may do."""

    def __init__(self, directory: Directory, principal: Principal, route: Route) -> None:
        """Read the rights as they are now.

        Args:
            directory: that has them.
            principal: of the request.
            route: that it is for.
        """
        self.directory: Final = directory
        self.principal: Final = principal
        self.needs: Final = route.needs if route.about == "experiment" else VIEW
        """The permission on the experiment that the request is about."""

    def may(self, permission: str, workspace_id: str | None = None) -> bool:
        """Return whether the principal has a permission in a workspace, or in the cluster."""
        return permission in self.directory.permissions(self.principal, workspace_id)

    def may_in(self, permission: str, project_id: str) -> bool:
        """Return whether the principal has a permission in the workspace of a project."""
        return self.may(permission, self.workspace_of(project_id))

    def workspace_of(self, project_id: str) -> str | None:
        """Return the present workspace of a project; None: the directory has no such project."""
        project = self.directory.state.projects.get(project_id)
        return None if project is None else project.workspace_id

    def projects_with(self, permission: str) -> Visible:
        """Return the projects in whose workspaces the principal has a permission; None: all."""
        found = self.directory.workspaces_with(self.principal, permission)
        if isinstance(found, All):
            return None
        projects = self.directory.state.projects.values()
        return frozenset(it.id for it in projects if it.workspace_id in found)

    @property
    def seen(self) -> Visible:
        """The projects whose experiments are shown; None: all."""
        return self.projects_with(VIEW)

    def visible(self, permission: str) -> Visible:
        """Return the projects whose experiments are there for who needs a permission on them."""
        seen = self.seen
        if seen is None or permission == VIEW:
            return seen
        able = self.projects_with(permission)
        return None if able is None else frozenset(seen) | frozenset(able)

    def check(self, permission: str, workspace_id: str | None, what: str) -> None:
        """Refuse what the principal may not do.

        Args:
            permission: that is needed.
            workspace_id: where; None: in the cluster.
            what: the permission is for, as the object of a sentence.

        Raises:
            Problem: it lacks the permission.
        """
        if not self.may(permission, workspace_id):
            raise forbidden(permission, what, in_cluster=workspace_id is None)


ACCESS: Final = web.RequestKey("access", Access)


def access_of(request: web.Request) -> Access:
    """Return what the principal of a request may do."""
    return request[ACCESS]


def forbidden(permission: str, what: str, *, in_cluster: bool = False) -> Problem:
    """Return the problem of a permission that is lacking."""
    roles = roles_with(permission)
    names = " or ".join(filter(None, [", ".join(roles[:-1]), roles[-1]]))
    where = "in the cluster" if in_cluster else "in its workspace"
    detail = f"{what} needs the permission {permission}, which the role {names} has {where}"
    return Problem(403, "forbidden", detail)


def authorize(directory: Directory, routes: Mapping[tuple[str, str], Route]) -> Middleware:
    """Return the middleware that gives each request its access, and checks rights in the cluster.

    Args:
        directory: that has the rights.
        routes: method and path, as the router has it → route.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        route = routes.get((request.method, path))
        if route is None or route.about == "anybody":
            return await handler(request)
        access = request[ACCESS] = Access(directory, request[PRINCIPAL], route)
        if route.about == "cluster":
            access.check(route.needs, None, f"{request.method} {path}")
        return await handler(request)

    return check

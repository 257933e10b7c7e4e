"""The routes of users, groups, workspaces, projects, roles, models and the like."""

from typing import Final

from rung.gateway.route import Route
from rung.gateway.routes.directory import (
    config_inputs,
    groups,
    models,
    projects,
    roles,
    saved_searches,
    usage,
    users,
    webhooks,
    workspaces,
)

ROUTES: Final[tuple[Route, ...]] = (
    *(
        route._replace(about="directory")
        for route in (
            *users.ROUTES,
            *groups.ROUTES,
            *workspaces.ROUTES,
            *projects.ROUTES,
            *roles.ROUTES,
            *saved_searches.ROUTES,
        )
    ),
    *config_inputs.ROUTES,
    *models.ROUTES,
    *usage.ROUTES,
    *webhooks.ROUTES,
)

__all__ = ["ROUTES"]

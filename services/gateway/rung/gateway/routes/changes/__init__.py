"""The routes that change experiments and move their trials, one module per kind of change."""

from typing import Final

from rung.gateway.route import Route
from rung.gateway.routes.changes import (
    batch,
    control,
    deletion,
    description,
    extension,
    moves,
    relocation,
    resources,
)

ROUTES: Final[tuple[Route, ...]] = (
    *batch.ROUTES,
    *control.ROUTES,
    *extension.ROUTES,
    *resources.ROUTES,
    *moves.ROUTES,
    *deletion.ROUTES,
    *relocation.ROUTES,
    *description.ROUTES,
)

__all__ = ["ROUTES"]

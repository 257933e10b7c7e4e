"""The routes of the API, one module per resource."""

from typing import Final

from rung.gateway.route import Route
from rung.gateway.routes import (
    checkpoints,
    control,
    curves,
    deadletters,
    experiments,
    installation,
    logs,
    moves,
    pools,
    streams,
    submission,
)

API: Final = "/api/v1"

ROUTES: Final[tuple[Route, ...]] = (
    *submission.ROUTES,
    *experiments.ROUTES,
    *control.ROUTES,
    *moves.ROUTES,
    *checkpoints.ROUTES,
    *curves.ROUTES,
    *logs.ROUTES,
    *streams.ROUTES,
    *installation.ROUTES,
    *deadletters.ROUTES,
    *pools.ROUTES,
)
"""Every route below /api/v1."""

__all__ = ["API", "ROUTES"]

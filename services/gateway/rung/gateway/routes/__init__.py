"""The routes of the API, one module per resource."""

from typing import Final

from rung.gateway.route import Route
from rung.gateway.routes import (
    audit,
    checkpoints,
    control,
    curves,
    deadletters,
    documents,
    experiments,
    installation,
    logs,
    moves,
    pools,
    streams,
    submission,
    trials,
)

API: Final = "/api/v1"

ROUTES: Final[tuple[Route, ...]] = (
    *submission.ROUTES,
    *experiments.ROUTES,
    *control.ROUTES,
    *trials.ROUTES,
    *moves.ROUTES,
    *checkpoints.ROUTES,
    *curves.ROUTES,
    *logs.ROUTES,
    *streams.ROUTES,
    *audit.ROUTES,
    *installation.ROUTES,
    *deadletters.ROUTES,
    *pools.ROUTES,
    *documents.ROUTES,
)
"""Every route below /api/v1."""

__all__ = ["API", "ROUTES"]

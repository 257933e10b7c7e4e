"""The routes of the API, one module per resource."""

from typing import Final

from rung.gateway.identity import sign_in, tokens
from rung.gateway.route import Route
from rung.gateway.routes import (
    acts,
    changes,
    checkpoints,
    curves,
    deadletters,
    directory,
    experiments,
    installation,
    logs,
    pools,
    streams,
    submission,
)

API: Final = "/api/v1"

ROUTES: Final[tuple[Route, ...]] = (
    *submission.ROUTES,
    *experiments.ROUTES,
    *changes.ROUTES,
    *checkpoints.ROUTES,
    *curves.ROUTES,
    *logs.ROUTES,
    *streams.ROUTES,
    *installation.ROUTES,
    *deadletters.ROUTES,
    *pools.ROUTES,
    *acts.ROUTES,
    *sign_in.ROUTES,
    *(route._replace(about="directory") for route in tokens.ROUTES),
    *directory.ROUTES,
)
"""Every route below /api/v1."""

__all__ = ["API", "ROUTES"]

"""Documents about the API itself; they want no token."""

from typing import Any, Final

import msgspec
from aiohttp import web

from rung.config import json_schema
from rung.gateway.route import Route

OPENAPI: Final = web.AppKey("openapi", bytes)


async def show_openapi(request: web.Request) -> web.Response:
    """Show the OpenAPI document."""
    return _document(request.app[OPENAPI])


async def show_experiment_schema(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp's signature
    """Show the JSON Schema of the experiment file."""
    schema: dict[str, Any] = json_schema()
    return _document(msgspec.json.encode(schema))


def _document(body: bytes) -> web.Response:
    return web.Response(
        body=body,
        content_type="application/json",
        headers={"Cache-Control": "max-age=300"},
    )


ROUTES: Final = (
    Route("GET", "/openapi.json", show_openapi, "This document", open=True),
    Route(
        "GET",
        "/schema/experiment.json",
        show_experiment_schema,
        "JSON Schema of the experiment file",
        open=True,
    ),
)

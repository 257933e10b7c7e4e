"""The routes of SCIM, and the one kind of token that opens them.

They are no part of the OpenAPI document: SCIM describes itself, at /Schemas and /ResourceTypes.
What reads the protocol is imported at the first request, for most installations never have one.
"""

import asyncio
import importlib
from typing import Final

from aiohttp import web

from rung.gateway.directory.asking import principal_of
from rung.gateway.identity.principal import Principal
from rung.gateway.problem import Problem
from rung.gateway.route import Handler, Route
from rung.gateway.scim.errors import ROOT

PERMISSION: Final = "directory.provision"
_OPERATIONS: Final = (
    ("GET", "/ServiceProviderConfig", "show_config"),
    ("GET", "/ResourceTypes", "list_resource_types"),
    ("GET", "/ResourceTypes/{id}", "show_resource_type"),
    ("GET", "/Schemas", "list_schemas"),
    ("GET", "/Schemas/{id}", "show_schema"),
    ("POST", "/.search", "search"),
    ("POST", "/Users/.search", "search_users"),
    ("POST", "/Groups/.search", "search_groups"),
    ("GET", "/Users", "list_users"),
    ("POST", "/Users", "create_user"),
    ("GET", "/Users/{id}", "show_user"),
    ("PUT", "/Users/{id}", "replace_user"),
    ("PATCH", "/Users/{id}", "patch_user"),
    ("DELETE", "/Users/{id}", "delete_user"),
    ("GET", "/Groups", "list_groups"),
    ("POST", "/Groups", "create_group"),
    ("GET", "/Groups/{id}", "show_group"),
    ("PUT", "/Groups/{id}", "replace_group"),
    ("PATCH", "/Groups/{id}", "patch_group"),
    ("DELETE", "/Groups/{id}", "delete_group"),
)


def _handler(name: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        check_token(principal_of(request))
        found = await asyncio.to_thread(importlib.import_module, "rung.gateway.scim.endpoints")
        response: web.StreamResponse = await found.handled(getattr(found, name))(request)
        return response

    return handle


def check_token(principal: Principal) -> None:
    """Refuse every token but those for provisioning alone: not even an administrator's opens.

    Raises:
        Problem: it may do something else, or acts for somebody.
    """
    if principal.scope != frozenset({PERMISSION}) or principal.on_behalf_of is not None:
        raise Problem(
            403,
            "forbidden",
            "SCIM is opened by a token for provisioning alone: rung token create NAME --user"
            " SERVICE_ACCOUNT --scope provision",
        )


ROUTES: Final = tuple(
    Route(method, ROOT + path, _handler(name), name, needs=PERMISSION, about="cluster")
    for method, path, name in _OPERATIONS
)
"""With their whole paths."""

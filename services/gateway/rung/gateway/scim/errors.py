"""Errors as SCIM has them (RFC 7644, 3.12): what is below /scim is answered with no others."""

import json
from collections.abc import Mapping
from typing import Final

from aiohttp import web

ROOT: Final = "/scim/v2"
MEDIA_TYPE: Final = "application/scim+json"
_SCHEMA: Final = "urn:ietf:params:scim:api:messages:2.0:Error"
_TYPES: Final = {
    "taken": (409, "uniqueness"),
    "invalid": (400, "invalidValue"),
    "bad-parameter": (400, "invalidValue"),
    "malformed": (400, "invalidSyntax"),
    "last-administrator": (400, "mutability"),
}
"""Kind of a problem → status and scimType; others have their own status, and no type."""


def is_scim(path: str) -> bool:
    """Return whether a path is below /scim."""
    return path == "/scim" or path.startswith("/scim/")


def error_of(
    status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a problem as SCIM's error."""
    status, scim_type = _TYPES.get(kind, (status, ""))
    return error(status, scim_type, detail, headers)


def error(
    status: int, scim_type: str, detail: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return an error.

    Args:
        status: of HTTP.
        scim_type: of RFC 7644, table 9; empty: none fits.
        detail: what is wrong and what would be right, for a person.
        headers: to be sent along.
    """
    document = {"schemas": [_SCHEMA], "status": str(status), "detail": detail}
    if scim_type:
        document["scimType"] = scim_type
    return web.Response(
        status=status,
        body=json.dumps(document).encode(),
        headers={"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store", **(headers or {})},
    )

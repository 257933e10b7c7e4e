"""The principal of a request: the user that it is answered for, and how that is known."""

from typing import Final

from aiohttp import web
from msgspec import Struct

ROOT: Final = "root"
"""`Principal.via` of the token that the server was started with."""


class Principal(Struct, frozen=True, kw_only=True):
    """Who asks."""

    user_id: str
    name: str
    via: str
    """The id of the token or session that was sent, or `ROOT`."""
    scope: frozenset[str] | None = None
    """The permissions that the token is limited to; None: all that the user has."""
    workspace: str | None = None
    """The id of the one workspace that the token is limited to; None: all."""
    on_behalf_of: str | None = None
    """The id of the user that the principal acts for."""


ADMIN: Final = Principal(user_id="admin", name="admin", via=ROOT)
"""The holder of the token that the server was started with: the user `admin`."""

PRINCIPAL: Final = web.RequestKey("principal", Principal)
"""Set by authentication; absent where a route requires none."""

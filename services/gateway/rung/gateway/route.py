"""A route: its handler, and its description for the OpenAPI document."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import web
from msgspec import Struct

from rung.gateway.requests.query import NoQuery

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Body(Struct, frozen=True):
    """The body of a request."""

    media_type: str
    parts: dict[str, str] = {}
    """Of a multipart body: name → description."""
    required: tuple[str, ...] = ()
    record: type[Struct] | None = None
    """Of a JSON body."""


class Route(NamedTuple):
    """One operation of the API."""

    method: str
    path: str
    """Below /api/v1, with parameters in braces."""
    handler: Handler
    summary: str
    answer: type[Struct] | None = None
    """Of a JSON answer."""
    media_type: str = "application/json"
    status: int = 200
    also: dict[int, str] = {}  # noqa: RUF012 - a NamedTuple's default is never changed
    """Further statuses of success, with what they mean."""
    query: type[Struct] = NoQuery
    body: Body | None = None
    idempotent: bool = False
    """It takes an Idempotency-Key."""
    problems: tuple[int, ...] = ()
    """Besides those that any route answers."""
    open: bool = False
    """It requires no token."""

    @property
    def name(self) -> str:
        """The operation's id."""
        handler: str = getattr(self.handler, "__name__", "")
        return handler

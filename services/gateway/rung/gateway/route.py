"""A route: its handler, and its description for the OpenAPI document."""

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

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


About = Literal["anybody", "signed-in", "directory", "cluster", "workspace", "experiment"]
"""What a permission is about, and where it is checked.

anybody: it requires no token, and no permission. signed-in: no permission, for it shows what is
the asker's own, or checks each thing that it names. directory: the directory decides on a change
by the rights of the one who asks, and lists have what these show. cluster: checked before the
handler. workspace: checked where the handler resolves the workspace; a list has what its
workspaces have. experiment: checked where the experiment, trial or checkpoint of the path is
found.
"""


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
    needs: str = ""
    """The permission that it needs (`rung.rights`)."""
    about: About = "experiment"
    """What that permission is about."""
    complete: bool = False
    """The answer is about all there is: refused while projections may have only a part of it."""

    @property
    def open(self) -> bool:
        """Whether it requires no token."""
        return self.about == "anybody"

    @property
    def name(self) -> str:
        """The operation's id."""
        handler: str = getattr(self.handler, "__name__", "")
        return handler

"""Versions of what clients change: `ETag` in answers, `If-Match` in requests."""

from aiohttp import web
from aiohttp.hdrs import IF_MATCH, IF_NONE_MATCH

from rung.gateway.problem import Problem, bad_parameter


def etag(version: int) -> str:
    """Return the ETag of a version."""
    return f'"{version}"'


def version_of(request: web.Request, path: str = "") -> int | None:
    """Return the version that a request is about, None if it is about any.

    Args:
        request: with `If-Match`, or without.
        path: of the route that shows what is changed, for the message; empty: the request's own.

    Raises:
        Problem: it names none.
    """
    text = request.headers.get(IF_MATCH)
    if text is None or text.strip() == "*":
        return None
    version = text.strip().removeprefix('"').removesuffix('"')
    if not (version.isascii() and version.isdigit() and len(version) <= 9):
        source = f"GET {path}" if path else "an answer to a GET"
        raise bad_parameter(IF_MATCH, f'must be the ETag of {source}, such as "3"')
    return int(version)


def is_new(request: web.Request) -> bool:
    """Return whether a request may only make something, and change nothing that is there."""
    return (request.headers.get(IF_NONE_MATCH) or "").strip() == "*"


def changed(what: str, version: int) -> Problem:
    """Return the problem of a change of something that was changed meanwhile."""
    detail = (
        f"{what} changed meanwhile: the version is {version} now; read it again, and send its ETag"
    )
    return Problem(412, "changed", detail)

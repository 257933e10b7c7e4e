"""Bodies of requests as records."""

import re
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from rung.api import ProblemItem
from rung.events.errors import invalid_field
from rung.gateway.problem import Problem
from rung.gateway.requests.upload import read_body

R = TypeVar("R", bound=Struct)

BYTES_MAX: Final = 256 * 1024
_DEPTH_MAX: Final = 64
"""Maps and lists in each other. What is on record is read again on any stack, deep ones too."""
_NESTING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
"""A string, also one that is cut short, or a bracket."""


async def read_record(request: web.Request, kind: type[R]) -> R:
    """Return the body of a request, which is JSON.

    Only `application/json` is read: a form of another site cannot send that without asking first.

    Raises:
        Problem: it is of another type, malformed, or has a field that cannot be so, and is named.
    """
    if request.content_type != "application/json":
        raise Problem(
            415,
            "unsupported-media-type",
            f"the body is {request.content_type[:100]}; send application/json",
        )
    return record_of(await read_body(request, BYTES_MAX), kind)


def record_of(body: bytes, kind: type[R], problem: str = "invalid") -> R:
    """Return a body, which is JSON, as a record.

    Args:
        body: that was sent.
        kind: of the record.
        problem: kind of the problem of a field that cannot be so.

    Raises:
        Problem: it is malformed, or has a field that cannot be so, and is named.
    """
    check_nesting(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        path, text = invalid_field(error, kind)
        items = [ProblemItem(path=path or "body", message=text)]
        detail = f"{path}: {text}".removeprefix(": ")
        raise Problem(422, problem, detail, errors=items) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(400, "malformed", f"the body is no JSON: {error}") from None


def check_nesting(body: bytes) -> None:
    """Refuse JSON that is nested deeper than any body has to be.

    Raises:
        Problem: it is.
    """
    if body.count(b"{") + body.count(b"[") <= _DEPTH_MAX:
        return
    depth = 0
    for found in _NESTING.finditer(body):
        match found[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
        if depth > _DEPTH_MAX:
            raise Problem(
                400, "malformed", f"the body is nested more than {_DEPTH_MAX} levels deep"
            )

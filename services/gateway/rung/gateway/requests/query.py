"""Reads query parameters into records, and pages through lists.

A record per route says which parameters there are and within which limits; the OpenAPI document is
made from the same records.
"""

import base64
import binascii
import difflib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from rung.events.errors import invalid_field
from rung.gateway.problem import bad_parameter

Q = TypeVar("Q", bound=Struct)
T = TypeVar("T")

LIMIT_MAX: Final = 1_000
_INTEGER_MAX: Final = 2**63 - 1

_CURSOR: Final = "give the next_cursor of a page of this list, unchanged"

_Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="items on a page at most")]
_Cursor = Annotated[
    str,
    Meta(
        max_length=2_000,
        description="`next_cursor` of the page before, unchanged",
        extra_json_schema={"pattern": "^[A-Za-z0-9_-]+$"},
    ),
]


class NoQuery(Struct, forbid_unknown_fields=True):
    """A route without parameters."""


class PageQuery(Struct, forbid_unknown_fields=True):
    """Which page of a list."""

    cursor: _Cursor | None = None
    limit: _Limit = 100


def read_query(request: web.Request, kind: type[Q]) -> Q:
    """Return the query's parameters.

    Raises:
        Problem: one is unknown, given twice, or out of its limits; it is named.
    """
    values: dict[str, str] = {}
    for name, value in request.query.items():
        if name in values:
            raise bad_parameter(name[:60], "is given twice; give it once")
        if name not in kind.__struct_encode_fields__:
            raise bad_parameter(name[:60], _unknown(name, kind.__struct_encode_fields__))
        values[name] = value
    try:
        query = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        path, text = invalid_field(error, kind)
        raise bad_parameter(path or "query", text) from None
    for name, field in zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True):
        if name in values and getattr(query, field) is None:  # msgspec reads `null` as None
            raise bad_parameter(name, "must not be null; leave it out instead")
    return query


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name[:100], known, 1)
    if near:
        return f"is no parameter here; did you mean {near[0]}?"
    return f"is no parameter here; there are {', '.join(known) or 'none'}"


def page(
    items: Sequence[T], query: PageQuery, key: Callable[[T], Any]
) -> tuple[list[T], str | None]:
    """Return one page of a list that is sorted by a key, and the cursor of the next.

    A cursor names the last item shown, so what is inserted elsewhere moves nothing.
    """
    start = 0
    if query.cursor is not None:
        after = _read_cursor(query.cursor, _shape(key(items[0])) if items else None)
        start = sum(1 for item in items if key(item) <= after)
    shown = list(items[start : start + query.limit])
    more = start + query.limit < len(items)
    return shown, write_cursor(key(shown[-1])) if more and shown else None


def write_cursor(key: Any) -> str:
    """Return an opaque text that stands for an item's key."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def read_cursor(text: str | None, shape: tuple[type, ...]) -> Any:
    """Return the key that a cursor stands for, None where there is none.

    Raises:
        Problem: it is no cursor of a list whose keys have these types.
    """
    return None if text is None else _read_cursor(text, shape)


def _read_cursor(text: str, shape: tuple[type, ...] | None) -> Any:
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        value = msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True))
        key = tuple(value) if isinstance(value, list) else value
        if shape is not None and (_shape(key) != shape or not _fits(key)):
            raise bad_parameter("cursor", _CURSOR)
    except (UnicodeError, binascii.Error, msgspec.DecodeError, RecursionError) as error:
        raise bad_parameter("cursor", _CURSOR) from error
    return key


def _shape(key: Any) -> tuple[type, ...] | None:
    """Return the types of a key, None of what no list has: a list of one."""
    if not isinstance(key, tuple):
        return (type(key),)
    return tuple(map(type, key)) if len(key) > 1 else None


def _fits(key: Any) -> bool:
    """Return whether the numbers of a key are such as a list is sorted by."""
    numbers = (it for it in (key if isinstance(key, tuple) else (key,)) if isinstance(it, int))
    return all(abs(number) <= _INTEGER_MAX for number in numbers)


def time_ms_of(name: str, value: str | None) -> int | None:
    """Return a time given as RFC 3339 or as Unix time in milliseconds, in milliseconds.

    Raises:
        Problem: it is neither.
    """
    if value is None:
        return None
    digits = value.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 16:
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
        return int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    except (TypeError, ValueError, OverflowError):  # TypeError: without a time zone
        raise bad_parameter(
            name,
            "must be a time such as 2026-01-31T12:00:00Z, or Unix time in milliseconds; mind that "
            "`+` is written %2B in a query",
        ) from None

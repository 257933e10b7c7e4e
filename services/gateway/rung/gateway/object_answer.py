"""An object as an answer: by an URL of the object store where there is one, else sent from here.

A redirection spares the gateway the bytes; who cannot reach the store asks for `redirect=false`.
What is sent from here may be asked for in a range, so that a cut transfer goes on where it was.
"""

import asyncio
import re
from typing import Final, NamedTuple

import structlog
from aiohttp import web

from rung.gateway.problem import Problem
from rung.objects import ObjectError, ObjectStore

URL_EXPIRES_S: Final = 900.0
"""A transfer that has begun may take longer; each request for a further range gets a new URL."""
_CHUNK: Final = 4 * 1024 * 1024
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")

_log = structlog.get_logger()


class Object(NamedTuple):
    """What is asked for."""

    name: str
    """In the store."""
    file_name: str
    size_bytes: int
    digest: str


async def redirect_to(store: ObjectStore, found: Object) -> web.Response | None:
    """Return a redirection to the object; None where the store has no URLs for others."""
    url = await asyncio.to_thread(store.presign, found.name, URL_EXPIRES_S)
    if url is None:
        return None
    return web.Response(
        status=307,
        headers={
            "Location": url,
            "Content-Type": "application/octet-stream",
            "Cache-Control": "no-store",
        },
    )


async def send(request: web.Request, store: ObjectStore, found: Object) -> web.StreamResponse:
    """Answer with the object's bytes, or those of the range that is asked for.

    Raises:
        Problem: the range lies outside of the object (416).
    """
    wanted = _range_of(request, found)
    begin, end = wanted or (0, found.size_bytes)
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Length": str(end - begin),
        "Accept-Ranges": "bytes",
        "ETag": f'"{found.digest}"',
        "Cache-Control": "no-store",
    }
    if wanted:
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{found.size_bytes}"
    response = web.StreamResponse(status=206 if wanted else 200, headers=headers)
    await response.prepare(request)
    try:
        while begin < end:
            size = min(_CHUNK, end - begin)
            data = await asyncio.to_thread(store.read, found.name, begin, size)
            if len(data) != size:
                raise ObjectError(f"{found.name} is shorter than its manifest says")  # noqa: TRY301 - the answer has begun
            await response.write(data)
            begin += size
        await response.write_eof()
    except ObjectError as error:
        _log.error("transfer cut", object=found.name, reason=str(error))
        if request.transport is not None:
            request.transport.abort()
    return response


def _range_of(request: web.Request, found: Object) -> tuple[int, int] | None:
    """Return the first byte wanted and the one behind the last; None for all of them."""
    asked = _RANGE.fullmatch(request.headers.get("Range", ""))
    condition = request.headers.get("If-Range", f'"{found.digest}"')
    if asked is None or not any(asked.groups()) or condition != f'"{found.digest}"':
        return None
    first, last = asked.groups()
    if first:
        begin = int(first)
        end = min(int(last) + 1, found.size_bytes) if last else found.size_bytes
    else:
        begin, end = max(0, found.size_bytes - int(last)), found.size_bytes
    if begin >= end:
        detail = f"{found.file_name} has {found.size_bytes} bytes; ask for a range within them"
        raise Problem(416, "bad-range", detail)
    return begin, end

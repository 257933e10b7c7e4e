"""An object as an answer: by an URL of the object store where there is one, else sent from here.

A redirection spares the gateway the bytes; a client that cannot reach the store sends
`redirect=false`. Content sent from here is checked against its manifest, and ranges are supported,
so that a cut transfer can be resumed. Content of the store is checked by the client.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

import structlog
from aiohttp import web

from rung.gateway.downloads.integrity import CheckedFile, Integrity
from rung.gateway.problem import Problem
from rung.storage import ObjectError, ObjectStore

URL_EXPIRES_S: Final = 900.0
"""A transfer that has begun may take longer; each request for a further range gets a new URL."""
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")

_log = structlog.get_logger()


async def redirect_to(store: ObjectStore, found: CheckedFile) -> web.Response | None:
    """Return a redirection to the object; None where the store has no URLs for others."""
    area = store.area(found.area)
    url = await asyncio.to_thread(area.presign, found.object_name, URL_EXPIRES_S)
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


async def send(
    request: web.Request, integrity: Integrity, found: CheckedFile
) -> web.StreamResponse:
    """Answer with the object's bytes, or those of the range that is asked for.

    Raises:
        Problem: the range lies outside of the object (416).
        ObjectDamaged: it is not what its manifest says; nothing was sent.
    """
    wanted = _range_of(request, found)
    await integrity.check(found, whole=wanted is None)
    size = found.entry.size_bytes
    begin, end = wanted or (0, size)
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Length": str(end - begin),
        "Accept-Ranges": "bytes",
        "ETag": f'"{found.entry.digest}"',
        "Cache-Control": "no-store",
    }
    if wanted:
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
    response = web.StreamResponse(status=206 if wanted else 200, headers=headers)
    return await transfer(request, response, integrity.read(found, begin, end))


async def transfer(
    request: web.Request, response: web.StreamResponse, content: AsyncIterator[bytes]
) -> web.StreamResponse:
    """Send an answer of known length; where its content fails, the connection is cut."""
    await response.prepare(request)
    try:
        async for data in content:
            await response.write(data)
        await response.write_eof()
    except ObjectError as error:
        _log.error("transfer cut", path=request.rel_url.raw_path, reason=str(error))
        if request.transport is not None:
            request.transport.abort()
    return response


def _range_of(request: web.Request, found: CheckedFile) -> tuple[int, int] | None:
    """Return the first byte wanted and the one behind the last; None for all of them."""
    asked = _RANGE.fullmatch(request.headers.get("Range", ""))
    condition = request.headers.get("If-Range", f'"{found.entry.digest}"')
    if asked is None or not any(asked.groups()) or condition != f'"{found.entry.digest}"':
        return None
    first, last = asked.groups()
    if first:
        begin = int(first)
        end = min(int(last) + 1, found.entry.size_bytes) if last else found.entry.size_bytes
    else:
        begin, end = max(0, found.entry.size_bytes - int(last)), found.entry.size_bytes
    if begin >= end:
        detail = f"{found.name} has {found.entry.size_bytes} bytes; ask for a range within them"
        raise Problem(416, "bad-range", detail)
    return begin, end

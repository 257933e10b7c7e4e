"""The page: files of the folder `page/`, which hold no secrets and require no token.

They are read at the start and kept in memory, so that requests without a token open no files,
whose number is limited; a file that has changed since is read again.
"""

import functools
import hashlib
import mimetypes
from pathlib import Path
from typing import Final

from aiohttp import web

from rung.gateway.problem import not_found

FOLDER: Final = Path(__file__).parent / "page"

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Kept, but asked for again each time: an upgrade shows at once, and costs a 304 otherwise.
    "Cache-Control": "no-cache",
}


def read_page() -> None:
    """Read all files of the page into memory."""
    for path in FOLDER.rglob("*"):
        if path.is_file():
            _content(path, path.stat().st_mtime_ns)


async def serve_page(request: web.Request) -> web.StreamResponse:
    """Answer with a file of the page, or 304 if the client has it."""
    path = _find(request.match_info.get("path") or "index.html")
    if path is None:
        raise not_found("page", request.path, "the page is at /, the API at /api/v1")
    content, tag = _content(path, path.stat().st_mtime_ns)
    if any(it.value == tag for it in request.if_none_match or ()):
        response = web.Response(status=304, headers=HEADERS)
    else:
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        charset = "utf-8" if kind.startswith("text/") else None
        response = web.Response(body=content, headers=HEADERS, content_type=kind, charset=charset)
    response.etag = tag
    return response


@functools.lru_cache(maxsize=256)
def _content(path: Path, changed_ns: int) -> tuple[bytes, str]:  # noqa: ARG001 - part of the key
    """Return a file's bytes and their tag."""
    content = path.read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:32]


def _find(name: str) -> Path | None:
    if name.startswith("api/") or any(part in {"", ".", ".."} for part in name.split("/")):
        return None
    if "\0" in name or "\\" in name or len(name) > 500:
        return None
    path = FOLDER / name
    try:
        inside = path.resolve().is_relative_to(FOLDER.resolve())
        return path if inside and path.is_file() and path.suffix not in {".py", ".md"} else None
    except OSError:
        return None

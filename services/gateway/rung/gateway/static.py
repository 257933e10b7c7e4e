"""Serves the page: files of the folder `page/`, which hold no secrets and want no token."""

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


async def serve_page(request: web.Request) -> web.StreamResponse:
    """Answer with a file of the page; aiohttp adds its ETag and answers 304."""
    path = _find(request.match_info.get("path") or "index.html")
    if path is None:
        raise not_found("page", request.path, "the page is at /, the API at /api/v1")
    return web.FileResponse(path, headers=HEADERS)


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

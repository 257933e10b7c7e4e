"""Bodies of requests, read within limits, large parts to disk."""

import asyncio
import hashlib
from pathlib import Path
from typing import IO, Final, NamedTuple

from aiohttp import BodyPartReader, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from rung.api import ProblemItem
from rung.gateway.problem import Problem

_CHUNK: Final = 1024 * 1024
_LEAVE_OUT: Final = (
    "; leave data, checkpoints and virtual environments out of the code folder by naming them in"
    " .rungignore"
)
_MALFORMED: Final = (
    ValueError,
    LookupError,
    HttpProcessingError,
    AssertionError,
    EOFError,
    RuntimeWarning,  # aiohttp warns of odd headers, and Python may be told to raise warnings
)


class Upload(NamedTuple):
    """The parts of a submission."""

    config: bytes
    code: Path | None
    code_sha256: str | None
    """Of the archive as it was sent."""


async def read_body(request: web.Request, most: int) -> bytes:
    """Return a request's body.

    Raises:
        Problem: it is larger than `most` bytes.
    """
    return await _bytes_of(request.content, "the body", most)


async def read_parts(request: web.Request, folder: Path, *, config: int, code: int) -> Upload:
    """Return a submission's parts, the code in a file below `folder`.

    Raises:
        Problem: it is malformed, has a part that nobody knows, or one that is too large.
    """
    if request.content_type != "multipart/form-data":
        raise Problem(
            415,
            "unsupported-media-type",
            f"the body is {request.content_type}; send multipart/form-data with the parts "
            "`config` (the experiment file) and, if there is code, `code` (a tar.gz)",
        )
    if (request.content_length or 0) > config + code + _CHUNK:
        raise _too_large("the body", config + code, _LEAVE_OUT)
    try:
        return await _read_parts(request, folder, config, code)
    except _MALFORMED as error:
        raise Problem(400, "malformed", f"the body is no multipart form: {error}") from error


async def _read_parts(request: web.Request, folder: Path, config: int, code: int) -> Upload:
    text: bytes | None = None
    path: Path | None = None
    digest: str | None = None
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader):
            raise _bad_part("a part", "is a multipart of its own; send plain parts")
        if part.name == "config" and text is None:
            text = await _bytes_of(part, "config", config)
        elif part.name == "code" and path is None:
            path = folder / "code.tar.gz"
            digest = await _save(part, path, code)
        elif part.name in {"config", "code"}:
            raise _bad_part(part.name, "is given twice; give it once")
        else:
            raise _bad_part(
                str(part.name)[:60], "is no part of a submission; send config and code"
            )
    if text is None:
        raise _bad_part("config", "is missing; send the experiment file as this part")
    return Upload(text, path, digest)


async def _bytes_of(source: BodyPartReader | StreamReader, name: str, most: int) -> bytes:
    found = bytearray()
    while chunk := await _chunk_of(source):
        found += chunk
        if len(found) > most:
            raise _too_large(name, most)
    return bytes(found)


async def _save(part: BodyPartReader, path: Path, most: int) -> str:
    """Write a part to a file and return its SHA-256."""
    digest = hashlib.sha256()
    size = 0
    with path.open("xb") as target:
        while chunk := await _chunk_of(part):
            size += len(chunk)
            if size > most:
                raise _too_large("code", most, _LEAVE_OUT)
            await asyncio.to_thread(_take, target, digest, chunk)
    return digest.hexdigest()


def _take(target: IO[bytes], digest: "hashlib._Hash", chunk: bytes) -> None:
    target.write(chunk)
    digest.update(chunk)


async def _chunk_of(source: BodyPartReader | StreamReader) -> bytes:
    if isinstance(source, BodyPartReader):
        return await source.read_chunk(_CHUNK)
    return await source.read(_CHUNK)


def _bad_part(name: str, message: str) -> Problem:
    item = ProblemItem(path=name, message=message)
    return Problem(400, "bad-part", f"{name}: {message}", errors=[item])


def _too_large(name: str, most: int, hint: str = "") -> Problem:
    return Problem(413, "too-large", f"{name} is larger than {most:,} bytes{hint}")

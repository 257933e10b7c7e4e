"""A checkpoint as a tar, made while it is sent.

One file at a time is copied out of the object store to a temporary file and compared with the
manifest before a byte of it is sent; a difference cuts the connection, and the announced length
tells the client that the rest is missing.
"""

import asyncio
import tarfile
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from aiohttp import web

from rung.objects import (
    FileEntry,
    ObjectDamaged,
    ObjectError,
    ObjectStore,
    StoredCheckpoint,
    locate,
)
from rung.objects.digest import digest_file

_CHUNK: Final = 1024 * 1024
_BLOCK: Final = 512
_END: Final = bytes(2 * _BLOCK)
_MANIFEST: Final = "manifest.json"

_log = structlog.get_logger()


class Member(NamedTuple):
    """One file of the tar."""

    header: bytes
    object_name: str
    entry: FileEntry


class Archive(NamedTuple):
    """What will be sent."""

    name: str
    members: list[Member]

    @property
    def size_bytes(self) -> int:
        """The length of the whole tar."""
        sizes = (len(it.header) + _padded(it.entry.size_bytes) for it in self.members)
        return sum(sizes) + len(_END)


def open_archive(store: ObjectStore, stored: StoredCheckpoint) -> Archive:
    """Return what a checkpoint's tar will be; blocks while the store is asked.

    Raises:
        ObjectDamaged: a file is missing or has another size than the manifest says.
    """
    manifest = stored.manifest
    places = locate(store, stored)
    files = dict(manifest.files)
    for name, entry in files.items():
        found = places[name].size_bytes if name in places else None
        if found != entry.size_bytes:
            what = "is missing" if found is None else f"has {found} bytes, not {entry.size_bytes}"
            raise ObjectDamaged(f"checkpoint {manifest.checkpoint_id}: {name} {what}")
    if _MANIFEST not in places:
        raise ObjectDamaged(f"checkpoint {manifest.checkpoint_id}: it was deleted meanwhile")
    size = places[_MANIFEST].size_bytes
    files[_MANIFEST] = FileEntry(size_bytes=size, sha256=stored.digest)
    members = [
        Member(_header(manifest.checkpoint_id, name, entry), places[name].name, entry)
        for name, entry in files.items()
    ]
    return Archive(manifest.checkpoint_id, members)


async def send_archive(
    request: web.Request, store: ObjectStore, archive: Archive
) -> web.StreamResponse:
    """Answer with the tar."""
    response = web.StreamResponse(
        headers={
            "Content-Type": "application/x-tar",
            "Content-Length": str(archive.size_bytes),
            "Content-Disposition": f'attachment; filename="{_file_name(archive.name)}.tar"',
            "Cache-Control": "no-store",
        }
    )
    await response.prepare(request)
    try:
        with tempfile.TemporaryDirectory(prefix="rung-archive-") as folder:
            for number, member in enumerate(archive.members):
                await _send(response, store, member, Path(folder) / str(number))
        await response.write(_END)
        await response.write_eof()
    except ObjectError as error:
        _log.error("archive cut", checkpoint=archive.name, reason=str(error))
        if request.transport is not None:
            request.transport.abort()
    return response


async def _send(
    response: web.StreamResponse, store: ObjectStore, member: Member, path: Path
) -> None:
    await asyncio.to_thread(_fetch, store, member, path)
    await response.write(member.header)
    with path.open("rb") as source:
        while chunk := await asyncio.to_thread(source.read, _CHUNK):
            await response.write(chunk)
    size = member.entry.size_bytes
    if size % _BLOCK:
        await response.write(bytes(_padded(size) - size))
    await asyncio.to_thread(path.unlink)


def _fetch(store: ObjectStore, member: Member, path: Path) -> None:
    """Copy an object to a file.

    Raises:
        ObjectDamaged: it is not what the manifest says.
    """
    store.get(member.object_name, path)
    _, digest = digest_file(path, member.entry.algorithm)
    if digest != member.entry.digest:
        raise ObjectDamaged(f"{member.object_name}: digest {digest[:12]}… differs")


def _header(checkpoint_id: str, name: str, entry: FileEntry) -> bytes:
    info = tarfile.TarInfo(f"{checkpoint_id}/{name}")
    info.size = entry.size_bytes
    info.mode = 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)

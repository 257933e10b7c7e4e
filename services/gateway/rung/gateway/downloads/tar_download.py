"""A checkpoint as a tar, made while it is sent.

Its files are compared with the manifest first; those that are compared while they are sent (see
`integrity`) cut the connection where they differ, and the announced length tells the client that
the rest is missing.
"""

import tarfile
from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple

from aiohttp import web

from rung.gateway.downloads.integrity import CheckedFile, Integrity
from rung.gateway.downloads.object_answer import transfer
from rung.storage import (
    FileEntry,
    Manifest,
    ObjectDamaged,
    ObjectInfo,
    ObjectStore,
    StoredCheckpoint,
    locate,
)

_BLOCK: Final = 512
_END: Final = bytes(2 * _BLOCK)
_MANIFEST: Final = "manifest.json"


class Member(NamedTuple):
    """One file of the tar."""

    header: bytes
    file: CheckedFile


class Archive(NamedTuple):
    """A tar that will be sent."""

    name: str
    members: list[Member]

    @property
    def size_bytes(self) -> int:
        """The length of the whole tar."""
        sizes = (len(it.header) + _padded(it.file.entry.size_bytes) for it in self.members)
        return sum(sizes) + len(_END)


def open_archive(store: ObjectStore, area: str, stored: StoredCheckpoint) -> Archive:
    """Return the tar of a checkpoint in a storage area; blocks while the store is asked.

    Raises:
        ObjectDamaged: a file is missing or has another size than the manifest says.
    """
    manifest = stored.manifest
    places = locate(store.area(area), stored)
    files = [found_file(manifest, name, area, places) for name in manifest.files]
    if _MANIFEST not in places:
        raise ObjectDamaged(f"checkpoint {manifest.checkpoint_id}: it was deleted meanwhile")
    entry = FileEntry(size_bytes=places[_MANIFEST].size_bytes, sha256=stored.digest)
    place = places[_MANIFEST].name
    files.append(CheckedFile(manifest.checkpoint_id, _MANIFEST, area, place, entry))
    return Archive(manifest.checkpoint_id, [Member(_header(file), file) for file in files])


def found_file(
    manifest: Manifest, name: str, area: str, places: Mapping[str, ObjectInfo]
) -> CheckedFile:
    """Return a file of a checkpoint where it was found in a storage area.

    Raises:
        ObjectDamaged: it is missing or has another size than the manifest says.
    """
    entry = manifest.files[name]
    found = places[name].size_bytes if name in places else None
    if found != entry.size_bytes:
        what = "is missing" if found is None else f"has {found} bytes, not {entry.size_bytes}"
        raise ObjectDamaged(f"checkpoint {manifest.checkpoint_id}: {name} {what}")
    return CheckedFile(manifest.checkpoint_id, name, area, places[name].name, entry)


async def send_archive(
    request: web.Request, integrity: Integrity, archive: Archive
) -> web.StreamResponse:
    """Answer with the tar.

    Raises:
        ObjectDamaged: a file is not what the manifest says; nothing was sent.
    """
    for member in archive.members:
        await integrity.check(member.file, whole=True)
    response = web.StreamResponse(
        headers={
            "Content-Type": "application/x-tar",
            "Content-Length": str(archive.size_bytes),
            "Content-Disposition": f'attachment; filename="{_file_name(archive.name)}.tar"',
            "Cache-Control": "no-store",
        }
    )
    return await transfer(request, response, _content(integrity, archive))


async def _content(integrity: Integrity, archive: Archive) -> AsyncIterator[bytes]:
    for member in archive.members:
        yield member.header
        size = member.file.entry.size_bytes
        async for data in integrity.read(member.file, 0, size):
            yield data
        if size % _BLOCK:
            yield bytes(_padded(size) - size)
    yield _END


def _header(file: CheckedFile) -> bytes:
    info = tarfile.TarInfo(f"{file.checkpoint_id}/{file.name}")
    info.size = file.entry.size_bytes
    info.mode = file.entry.mode
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)

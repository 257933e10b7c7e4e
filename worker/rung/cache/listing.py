"""The files of a source at one moment: names, sizes, and what tells their versions apart."""

import hashlib
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final, NamedTuple

import msgspec

from rung.cache.errors import DataError

_NAME_BYTES_MAX: Final = 255


class Entry(NamedTuple):
    """One file."""

    name: str
    """Relative to the source, with slashes."""
    size: int
    version: str
    """An ETag, or the time of the last change: another one means another content."""
    md5: str = ""
    """Of its content, where the origin tells it."""


class Listing(msgspec.Struct, frozen=True, dict=True):
    """All files of a source, sorted by name."""

    place: str
    """Where they come from, such that two places never share it."""
    single: bool
    """Whether the source is that one file, not a folder."""
    entries: list[Entry]

    @cached_property
    def key(self) -> str:
        """What tells this listing from every other one."""
        digest = hashlib.sha256(f"{self.place}\0{self.single}".encode())
        for name, size, version, _ in self.entries:
            digest.update(f"\0{name}\0{size}\0{version}".encode())
        return digest.hexdigest()[:40]

    @cached_property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    def file_key(self, entry: Entry) -> str:
        """Return what tells this version of a file from every other file and version."""
        place = self.place if self.single else f"{self.place.rstrip('/')}/{entry.name}"
        text = f"{place}\0{entry.size}\0{entry.version}"
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def check(self, what: str) -> "Listing":
        """Return it if its names can be files below one folder.

        Raises:
            DataError: they cannot; the message names one.
        """
        if not self.entries:
            raise DataError(f"{what}: there is nothing")
        names = {entry.name for entry in self.entries}
        folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
        for name in sorted(names):
            parts = name.split("/")
            if any(part in {"", ".", ".."} or "\0" in part for part in parts):
                raise DataError(f"{what}: {name!r} is no path of a file; rename the object")
            if max(len(part.encode()) for part in parts) > _NAME_BYTES_MAX:
                raise DataError(
                    f"{what}: {name[:60]!r}… is too long for a file; rename the object"
                )
            if name in folders:
                raise DataError(f"{what}: {name!r} is a file and a folder; rename one of them")
        return self


def encode(listing: Listing) -> bytes:
    """Return a listing as it is kept in the cache."""
    return msgspec.json.encode(listing)


def decode(data: bytes) -> Listing:
    """Return the listing that `encode` wrote."""
    return msgspec.json.decode(data, type=Listing)

"""Origins: where the files of a source are downloaded from."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from rung.cache.errors import DataChanged, DataError, DataUnavailable
from rung.cache.listing import Entry, Listing
from rung.cache.partial_download import PartialDownload
from rung.cache.source import Source

_CHUNK: Final = 4 << 20


class Origin(Protocol):
    """Lists the files of a source, and brings them; used by many threads."""

    def list(self) -> Listing:
        """Return what there is now.

        Raises:
            DataUnavailable: it may answer in a moment.
            DataError: there is nothing, or it must not be read.
        """
        ...

    def bring(self, listing: Listing, entry: Entry, partial: PartialDownload) -> None:
        """Bring what a partial file still lacks of an entry.

        Raises:
            DataChanged: the file is another by now, or gone.
            DataUnavailable: it may answer in a moment.
            DataError: it must not be read, or the disk refused.
        """
        ...

    def close(self) -> None:
        """Let go of it; what is under way in other threads ends soon, with an error."""
        ...


class FolderOrigin:
    """A folder, or a file, that this machine sees.

    Links are followed, but not into the platform's own folders: who may write in a folder with
    data, such as a trial, could otherwise have them read by links.
    """

    def __init__(self, source: Source, hidden: Sequence[Path] = ()) -> None:
        """Name a place.

        Args:
            source: that it is the place of.
            hidden: folders of which no file is listed or brought.
        """
        self._source = source
        self._path = source.path
        self._hidden = [os.path.realpath(folder) for folder in hidden]
        self._closed = False

    def list(self) -> Listing:
        """Return what there is now; links are followed, what is no plain file is left out."""
        what = f"data source {self._source.name}: {self._path}"
        place = self._path.as_uri()
        if self._hides(os.path.realpath(self._path)):
            raise DataError(f"{what} lies in a folder of Rung's own; put data elsewhere")
        try:
            if self._path.is_file():
                entries = [_entry(self._path.name, self._path)]
                return Listing(place, single=True, entries=entries).check(what)
            if not self._path.is_dir():
                raise DataError(f"{what} is not on this machine")
            files = self._files()
            entries = [_entry(name, path) for name, path in sorted(files.items())]
        except OSError as error:
            raise DataError(f"{what} cannot be read: {error.strerror}") from error
        return Listing(place, single=False, entries=entries).check(what)

    def bring(self, listing: Listing, entry: Entry, partial: PartialDownload) -> None:
        """Copy a file, from where an earlier copy broke off."""
        path = self._path if listing.single else self._path / entry.name
        try:
            with path.open("rb", buffering=0) as file:
                if self._hides(os.readlink(f"/proc/self/fd/{file.fileno()}")):  # noqa: PTH115 - text
                    raise DataError(f"{path} leads into a folder of Rung's own")
                for offset in partial.missing():
                    end = min(offset + partial.part_bytes, entry.size)
                    while offset < end:
                        if self._closed:
                            raise DataUnavailable(f"{path}: the cache is closed")
                        data = os.pread(file.fileno(), min(_CHUNK, end - offset), offset)
                        if not data:
                            raise DataChanged(f"{path} is shorter than it was")
                        partial.write(offset, data)
                        offset += len(data)  # noqa: PLW2901 - within the part
                    partial.done(end - 1)
            if _entry(entry.name, path).version != entry.version:
                raise DataChanged(f"{path} was changed while it was copied")
        except FileNotFoundError as error:
            raise DataChanged(f"{path} is gone") from error
        except OSError as error:
            raise DataError(f"{path} cannot be copied: {error.strerror}") from error

    def close(self) -> None:
        """End what is under way."""
        self._closed = True

    def _files(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        seen: set[tuple[int, int]] = set()
        for folder, folders, files in os.walk(self._path, followlinks=True):
            status = os.stat(folder)  # noqa: PTH116 - what os.walk gives
            if (status.st_dev, status.st_ino) in seen or self._hides(os.path.realpath(folder)):
                folders.clear()  # links in a circle, or into what is not shown
                continue
            seen.add((status.st_dev, status.st_ino))
            for name in files:
                path = Path(folder) / name
                linked = path.is_symlink()
                if path.is_file() and not (linked and self._hides(os.path.realpath(path))):
                    found[path.relative_to(self._path).as_posix()] = path
        return found

    def _hides(self, real: str) -> bool:
        """Return whether a path without links lies in one of the folders that are not shown."""
        return any(real == folder or real.startswith(f"{folder}/") for folder in self._hidden)


def origin_of(
    source: Source,
    environment: Mapping[str, str] | None = None,
    *,
    hidden: Sequence[Path] = (),
) -> Origin:
    """Return where a source comes from.

    Args:
        source: one that is kept in the cache.
        environment: the variables that say how S3 is reached.
        hidden: folders of which no file is listed or brought.

    Raises:
        DataError: S3 cannot be reached this way; the message says what is missing.
    """
    if not source.in_s3:
        return FolderOrigin(source, hidden)
    try:
        from rung.cache.s3_origin import S3Origin  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise DataError(
            f"data source {source.name}: {error.name} is missing; pip install 'rung[s3]' brings it"
        ) from error
    return S3Origin(source, os.environ if environment is None else environment)


def _entry(name: str, path: Path) -> Entry:
    status = path.stat()
    return Entry(name, status.st_size, f"{status.st_mtime_ns}-{status.st_ino}")


def digests_of(path: Path, *, md5: bool) -> tuple[str, str]:
    """Return a file's SHA-256 and, where it is wanted, its MD5; else an empty string."""
    strong = hashlib.sha256()
    weak = hashlib.md5(usedforsecurity=False)
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(view):
            strong.update(view[:size])
            if md5:
                weak.update(view[:size])
    return strong.hexdigest(), weak.hexdigest() if md5 else ""

"""Blob store: the files of the cache, by the digest of their content.

    blobs/<ab>/<digest>     files, verified, under the SHA-256 of their content
    suspects/<ab>/<digest>  files from before the machine started again: verified when wanted
    known/<ab>/<file key>   a link that says which content a version of a file has
    filling/<file key>      files on their way
    linking/…               links on their way
    contents                locked by the one that adds or deletes a content

Nothing is flushed to disk before it counts: within one life of the machine what was written is
there, and after its next start everything is read and verified once more before it is used.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from rung.cache.origin import digests_of
from rung.cache.partial_download import PartialDownload
from rung.cache.tree import MODE, STAMP_S, intact

_DRAFT_S: Final = 3600.0
"""No link takes that long to make."""
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class BlobStore:
    """Files by content, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blobs = folder / "blobs"
        self._suspects = folder / "suspects"
        self._known = folder / "known"
        self._filling = folder / "filling"
        self._linking = folder / "linking"

    def open(self) -> bool:
        """Make the folders; return whether the machine was started again since the last time."""
        for folder in (
            self._blobs,
            self._suspects,
            self._known,
            self._filling,
            self._linking,
        ):
            folder.mkdir(parents=True, exist_ok=True)
        for draft in self._linking.iterdir():  # of processes that were killed
            with contextlib.suppress(FileNotFoundError):
                if time.time() - draft.lstat().st_ctime > _DRAFT_S:
                    draft.unlink()
        now, noted = _boot(), self._folder / "boot"
        if noted.exists() and noted.read_text(encoding="ascii") == now:
            return False
        for blob in _files(self._blobs):
            self._move(blob, self._suspects)
        noted.write_text(now, encoding="ascii")
        return True

    def find(self, file_key: str, size: int) -> Path | None:
        """Return the verified content of a version of a file, if it is here."""
        known = self._known / file_key[:2] / file_key
        try:
            digest = known.readlink().name
        except OSError:
            return None
        blob = self._blobs / digest[:2] / digest
        if intact(blob, size):
            return blob
        suspect = self._suspects / digest[:2] / digest
        good = suspect.exists() and digests_of(suspect, md5=False)[0] == digest
        with self._changing():
            if intact(blob, size):  # another filler brought it meanwhile
                return blob
            with contextlib.suppress(FileNotFoundError):
                if good:
                    return self._move(suspect, self._blobs)
            blob.unlink(missing_ok=True)
            suspect.unlink(missing_ok=True)
        return None

    def has(self, file_key: str, size: int) -> bool:
        """Whether a version of a file will probably be found."""
        try:
            digest = (self._known / file_key[:2] / file_key).readlink().name
        except OSError:
            return False
        return any(
            intact(place / digest[:2] / digest, size) for place in (self._blobs, self._suspects)
        )

    def partial(self, file_key: str, size: int) -> PartialDownload:
        """Return a file on its way here."""
        return PartialDownload(self._filling / file_key, size)

    def keep(self, partial: PartialDownload, file_key: str, digest: str, target: Path) -> None:
        """Take in a whole file, and link it to where a tree wants it."""
        partial.stamp(MODE, STAMP_S)
        blob = self._blobs / digest[:2] / digest
        blob.parent.mkdir(parents=True, exist_ok=True)
        with self._changing():
            if intact(blob, partial.size) and self._linked(blob, target):
                partial.path.unlink(missing_ok=True)
            else:
                self._linked(partial.path, target)  # first: it is never there without a user
                partial.path.rename(blob)
        self._remember(file_key, digest)
        partial.forget()

    def link(self, blob: Path, target: Path) -> bool:
        """Let a path be the file of a blob; return whether that was there and takes one more link.

        A file system allows a file so many links, ext4 65,000: the next of so many equal files is
        brought once more, and takes the blob's place for those behind it.

        The link is made elsewhere and moved, so that no listing of the target's folder shows
        more than whole files under their names.
        """
        with self._changing():
            return self._linked(blob, target)

    def _linked(self, blob: Path, target: Path) -> bool:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = self._linking / secrets.token_hex(16)
        try:
            draft.hardlink_to(blob)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.EMLINK}:
                raise
            return False
        draft.rename(target)
        draft.unlink(missing_ok=True)  # renaming onto another link of the same file does nothing
        return True

    def size(self) -> int:
        """Return the bytes of everything here."""
        return self.count()[0]

    def count(self, *coming: Mapping[str, int]) -> list[int]:
        """Return the bytes of everything here, and by how many each of some groups will grow it.

        A file that comes in meanwhile is counted, once: files move from `filling` to `blobs`, so
        they are looked for in this order. What of it counts as arrived is looked up but once.

        Args:
            coming: versions of files that are not here yet, with their sizes.
        """
        files: dict[int, int] = {}
        arrived: dict[str, int] = {}
        for path, status in _files_below(self._filling):
            files[status.st_ino] = arrived[path.name] = status.st_size
        for place in (self._suspects, self._blobs):
            files.update((status.st_ino, status.st_size) for _, status in _files_below(place))
        return [
            sum(files.values()),
            *(
                sum(max(0, size - arrived.get(key, 0)) for key, size in group.items())
                for group in coming
            ),
        ]

    def sweep(self, keys: Collection[str]) -> int:
        """Delete what no tree has, except what these versions of files need; return the bytes."""
        kept = set()
        for key in keys:
            with contextlib.suppress(OSError):
                kept.add((self._known / key[:2] / key).readlink().name)
        freed = 0
        for place in (self._blobs, self._suspects):
            for path, status in _files_below(place):
                if status.st_nlink == 1 and path.name not in kept:
                    freed += self._delete_unlinked(path)
        for path, status in _files_below(self._filling):
            if path.suffix or path.name in keys or not _deleted_unless_busy(path):
                continue
            freed += status.st_size if status.st_nlink == 1 else 0
        return freed

    def _delete_unlinked(self, path: Path) -> int:
        """Delete a content unless a tree was given it meanwhile; return the bytes."""
        with self._changing(), contextlib.suppress(FileNotFoundError):
            status = path.stat()
            if status.st_nlink == 1:
                path.unlink()
                return status.st_size
        return 0

    def forget_lost(self) -> None:
        """Delete what is known about contents that are gone."""
        for known in _files(self._known):
            with contextlib.suppress(OSError):
                digest = known.readlink().name
                places = (self._blobs, self._suspects)
                if not any((place / digest[:2] / digest).exists() for place in places):
                    known.unlink()

    def _remember(self, file_key: str, digest: str) -> None:
        known = self._known / file_key[:2] / file_key
        known.parent.mkdir(parents=True, exist_ok=True)
        draft = self._linking / secrets.token_hex(16)  # where `forget_lost` does not look
        draft.symlink_to(f"../../blobs/{digest[:2]}/{digest}")
        draft.rename(known)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Be the only one who adds or deletes contents, or looks whether one may be deleted."""
        lock = os.open(self._folder / "contents", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _move(self, path: Path, place: Path) -> Path:
        target = place / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        return path.rename(target)


def _deleted_unless_busy(path: Path) -> bool:
    """Delete what is left of a file on its way, while no process can resume it."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        path.with_suffix(".parts").unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _files(place: Path) -> Iterator[Path]:
    for folder in list(place.iterdir()):
        if folder.is_dir():
            yield from list(folder.iterdir())


def _files_below(place: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files below a place."""
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(Path(entry.path))
                continue
            with contextlib.suppress(FileNotFoundError):
                yield Path(entry.path), entry.stat(follow_symlinks=False)


def _boot() -> str:
    try:
        return _BOOT.read_text(encoding="ascii")
    except OSError:
        return ""

"""Object store in a folder: each object is complete or absent, also after a power cut.

An object is written to a file under `.incoming/`, synced, renamed, and the folder synced; so a
reader never sees half of one. Files that a killed writer left in `.incoming/` are deleted when the
store is opened a day later. A process that can only write in one folder of the store, which may be
a mount of its own, has an `.incoming/` there. Neither is listed.

Symbolic links are followed to the root and in the first two parts of a name, where an operator may
have put another disk. Below those, where a run can write in the folder of its experiment's
checkpoints, no link is followed and only regular files are read: a link could lead to files that
the run may not read, and a pipe never ends. In a `foreign` folder no link is followed below the
root.

Objects with the same bytes may be one file with several names (`link`): the file system keeps the
bytes until the last name is deleted.

Not handled: two writers of one name; the last one wins.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Final

from rung.events.errors import ObjectDamaged, ObjectError, ObjectMissing
from rung.storage.area import area_prefix
from rung.storage.durable_file import DurableFile, durable_file
from rung.storage.key import INCOMING, check_name, check_prefix
from rung.storage.no_follow import new_file, open_folder, sync_folder
from rung.storage.port import ObjectInfo

_STALE_S: Final = 24 * 3600
_INCOMING_DEPTHS: Final = (0, 2)
"""How deep `.incoming/` may lie: at the root, or in the folder of an experiment's checkpoints."""
_FOLLOWED: Final = 2
"""Parts of a name in which links are followed."""
_NOT_LISTED: Final = (FileNotFoundError, NotADirectoryError, PermissionError)
"""Errors of a folder that is deleted, a link, or not readable (`lost+found`)."""
_ATTEMPTS: Final = 5
"""How often a write creates its folder while a deletion removes empty folders."""


class FolderStore:
    """An object store in one folder of a local or shared file system."""

    def __init__(
        self, root: Path, within: str = "", *, foreign: bool = False, read_only: bool = False
    ) -> None:
        """Open a store.

        Args:
            root: the folder of all objects.
            within: the prefix of all objects that this process will write, without a slash.
            foreign: whether others may write everywhere in it; it is then only read.
            read_only: whether it is only read.
        """
        self._root = root.absolute()
        self._within = within
        self._followed = 0 if foreign else _FOLLOWED
        self._incoming = self._root / within / INCOMING
        self._areas: dict[str, FolderStore] = {}
        self._read_only = foreign or read_only
        if self._read_only:
            return
        with self._explained("open", str(self._root)):
            self._incoming.mkdir(parents=True, exist_ok=True)
            self._sweep()

    @property
    def root(self) -> Path:
        """The folder that holds the objects."""
        return self._root

    @property
    def url(self) -> str:
        """The URL `file:///…`."""
        return self._root.as_uri()

    @property
    def parallel(self) -> int:
        """One: a disk gains nothing by more."""
        return 1

    def area(self, name: str) -> "FolderStore":
        """Return the store of a storage area; itself for an empty name."""
        if not name:
            return self
        if name not in self._areas:
            prefix = area_prefix(name)
            inside = self._within.startswith(prefix)
            self._areas[name] = FolderStore(
                self._root / prefix,
                self._within.removeprefix(prefix) if inside else "",
                read_only=self._read_only or bool(self._within and not inside),
            )
        return self._areas[name]

    def put(self, name: str, source: Path) -> None:
        """Store a file's bytes under the name, durably and all or nothing."""
        with self.create(name) as target:
            target.copy(source)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes under the name, durably and all or nothing."""
        with self.create(name) as target:
            target.write(data)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[DurableFile]:
        """Yield a file to write an object to, which is stored durably unless the block raises."""
        path = self._path(name)
        draft = self._draft()
        with self._explained("write", name):
            try:
                with durable_file(draft) as target:
                    yield target
                self._place(draft, path)
            finally:
                draft.unlink(missing_ok=True)

    def link(self, name: str, existing: str) -> bool:
        """Give the bytes of an object a second name; return whether that was possible."""
        path, source, draft = self._path(name), self._path(existing), self._draft()
        with self._explained("write", name):
            try:
                with self._in_folder(source.parent) as folder:
                    os.link(source.name, draft, src_dir_fd=folder, follow_symlinks=False)
            except OSError:  # it was deleted, or the file system has no links
                return False
            try:
                self._place(draft, path)
            finally:
                draft.unlink(missing_ok=True)
        return True

    def get(self, name: str, target: Path) -> None:
        """Write the object's bytes to a file; its folder is made where it is missing."""
        with self._explained("read", name), self._opened(name) as opened:
            target.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(new_file(target), "wb") as copy:
                shutil.copyfileobj(opened, copy, 1 << 20)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return the object's bytes, or some of them; fewer where it ends."""
        with self._explained("read", name), self._opened(name) as opened:
            opened.seek(offset)
            return opened.read(-1 if size is None else size)

    def version(self, name: str) -> str:
        """Return the file's inode, size and times."""
        with self._explained("read", name), self._opened(name) as opened:
            found = os.fstat(opened.fileno())
        file = f"{found.st_dev}-{found.st_ino}-{found.st_size}"
        return f"{file}-{found.st_mtime_ns}-{found.st_ctime_ns}"

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return the objects whose name begins with the prefix, sorted by name."""
        check_prefix(prefix)
        with self._explained("list", prefix):
            return sorted(self._walk(prefix))

    def delete(self, prefix: str) -> int:
        """Delete every object whose name begins with the prefix; return how many there were."""
        if not prefix:
            raise ObjectError("an empty prefix would delete every object; name a prefix")
        found = self.list(prefix)
        with self._explained("delete", prefix):
            for info in found:
                path = self._root / info.name
                with (
                    contextlib.suppress(FileNotFoundError),
                    self._in_folder(path.parent) as folder,
                ):
                    os.unlink(path.name, dir_fd=folder)
            self._drop_empty({(self._root / info.name).parent for info in found})
        return len(found)

    def presign(self, name: str, expires_s: float) -> None:  # noqa: ARG002 - the port's
        """Return None: a file has no URL for others."""
        check_name(name)

    def close(self) -> None:
        """Nothing is held open."""

    def _path(self, name: str) -> Path:
        return self._root / check_name(name)

    def _draft(self) -> Path:
        return self._incoming / secrets.token_hex(16)

    def _place(self, draft: Path, path: Path) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._in_folder(path.parent, make=True) as folder:
                    os.replace(draft, path.name, dst_dir_fd=folder)
                    sync_folder(folder)
            except FileNotFoundError:
                if attempt == _ATTEMPTS:
                    raise
                continue
            break

    def _in_folder(self, path: Path, *, make: bool = False) -> AbstractContextManager[int]:
        """Return a context with a descriptor of a folder, without following links of runs.

        Raises:
            OSError: there is no such folder, or a link on the path to it.
        """
        parts = path.relative_to(self._root).parts
        root = self._root.joinpath(*parts[: self._followed])
        return open_folder(root, parts[self._followed :], make=make)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Yield an object's file for reading.

        Raises:
            ObjectMissing: there is no such object.
            ObjectDamaged: it is not a regular file.
            ObjectError: it cannot be read.
        """
        with contextlib.ExitStack() as stack:
            with self._explained("read", name):
                opened = stack.enter_context(self._opened(name))
            yield opened

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        """Yield an object's file for reading.

        Raises:
            ObjectDamaged: it is not a regular file.
            OSError: there is none, or it cannot be read.
        """
        path = self._path(name)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would block
        if name.count("/") >= self._followed:
            flags |= os.O_NOFOLLOW
        try:
            with self._in_folder(path.parent) as folder:
                file = os.open(path.name, flags, dir_fd=folder)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}:
                raise ObjectDamaged(f"{name}: is no file of its own in {self.url}") from error
            raise
        with os.fdopen(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise ObjectDamaged(f"{name}: is no file of its own in {self.url}")
            yield opened

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects with a prefix."""
        parent, _, _ = prefix.rpartition("/")
        with contextlib.suppress(*_NOT_LISTED), self._in_folder(self._root / parent) as folder:
            yield from self._below(folder, f"{parent}/" if parent else "", prefix)

    def _below(self, above: int, lead: str, prefix: str, entry: str = ".") -> Iterator[ObjectInfo]:
        """Yield the objects with a prefix in the folder named `lead`, with a slash at its end."""
        follow = lead.count("/") < self._followed
        no_follow = 0 if lead.count("/") <= self._followed else os.O_NOFOLLOW
        try:
            folder = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | no_follow, dir_fd=above)
        except _NOT_LISTED:
            return
        try:
            with os.scandir(folder) as entries:
                for found in entries:
                    name = lead + found.name
                    if found.is_dir(follow_symlinks=follow):
                        if _may_match(f"{name}/", prefix):
                            yield from self._below(folder, f"{name}/", prefix, found.name)
                    elif name.startswith(prefix):
                        with contextlib.suppress(FileNotFoundError):
                            yield ObjectInfo(name, found.stat(follow_symlinks=False).st_size)
        finally:
            os.close(folder)

    def _drop_empty(self, folders: set[Path]) -> None:
        for folder in sorted(folders, reverse=True):
            current = folder
            while current != self._root:
                try:
                    with self._in_folder(current.parent) as above:
                        os.rmdir(current.name, dir_fd=above)
                except OSError:
                    break
                current = current.parent

    def _sweep(self) -> None:
        """Delete incomplete files not modified for a day, except those of runs (with a dot)."""
        horizon = time.time() - _STALE_S
        for draft in self._incoming.iterdir():
            with contextlib.suppress(FileNotFoundError, PermissionError):
                if "." not in draft.name and draft.stat().st_mtime < horizon:
                    draft.unlink()

    @contextlib.contextmanager
    def _explained(self, verb: str, name: str) -> Iterator[None]:
        """Turn errors of the operating system into `ObjectError`."""
        try:
            yield
        except FileNotFoundError as error:
            if verb == "read" and not (self._root / name).exists():
                raise ObjectMissing(f"no object {name!r} in {self.url}") from error
            raise ObjectError(f"cannot {verb} {name!r} in {self.url}: {error}") from error
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, str(error))
            raise ObjectError(f"cannot {verb} {name!r} in {self.url}: {reason}") from error


_REASONS: Final[dict[int, str]] = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied; the folder must be writable by the user who runs Rung",
    errno.EPERM: "permission denied; the folder must be writable by the user who runs Rung",
}


def _may_match(folder: str, prefix: str) -> bool:
    """Return whether a folder (with a slash at its end) may hold names with the prefix."""
    *above, last, _ = folder.split("/")
    if last == INCOMING and len(above) in _INCOMING_DEPTHS:
        return False
    return folder.startswith(prefix) or prefix.startswith(folder)

"""Writer of a checkpoint: files go straight into the store, digested on the way.

The checkpoint exists once its manifest is written, which is last.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from rung.events.errors import ObjectError
from rung.storage.checkpoint.digest import hasher
from rung.storage.checkpoint.manifest import (
    MANIFEST,
    MODE_MAX,
    FileEntry,
    Manifest,
    Provenance,
    StoredCheckpoint,
    check_file,
    checkpoint_prefix,
    digest_of,
    encode_manifest,
    in_parallel,
    measure,
)
from rung.storage.durable_file import DurableFile
from rung.storage.folder import FolderStore
from rung.storage.port import ObjectStore


class Sink(Protocol):
    """A binary file to write to; enough for `torch.save`, `pickle.dump` and their like."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take bytes, which may be changed once this returns; return how many."""
        ...

    def flush(self) -> None:
        """Do nothing."""
        ...


@runtime_checkable
class Folder(Protocol):
    """A store whose objects are files of this machine."""

    def create(self, name: str) -> AbstractContextManager[DurableFile]:
        """Return a context in which an object is written."""
        ...

    def link(self, name: str, existing: str) -> bool:
        """Give the bytes of an object a second name; return whether that was possible."""
        ...


class CheckpointWriter:
    """Writes a checkpoint, which exists once `finish` returns."""

    def __init__(
        self,
        store: ObjectStore,
        experiment_id: str,
        checkpoint_id: str,
        previous: StoredCheckpoint | None = None,
    ) -> None:
        """Begin a checkpoint; `previous` is one of the same experiment to share files with."""
        self._store = store
        self._folder: Folder | None = store if isinstance(store, Folder) else None
        self._experiment_id = experiment_id
        self._checkpoint_id: Final = checkpoint_id
        self._prefix = checkpoint_prefix(experiment_id, checkpoint_id)
        self._previous = previous
        self._files: dict[str, FileEntry] = {}
        self._names: set[str] = set()
        self._folders: set[str] = set()
        self._lasting: set[str] = set()

    @property
    def checkpoint_id(self) -> str:
        """The id of the checkpoint."""
        return self._checkpoint_id

    @property
    def files(self) -> dict[str, FileEntry]:
        """The files written so far, by name."""
        return dict(self._files)

    @property
    def names(self) -> list[str]:
        """The names of all files whose writing began, sorted."""
        return sorted(self._names)

    @property
    def lasting(self) -> list[str]:
        """The objects that the next checkpoint is likely to share."""
        return [self._prefix + name for name in sorted(self._lasting)]

    def write(
        self, name: str, save: Callable[[Sink], object], *, may_be_unchanged: bool = False
    ) -> None:
        """Write a file.

        Args:
            name: of the file, relative to the checkpoint's folder.
            save: writes to the file that it is given; it is called twice if `may_be_unchanged`.
            may_be_unchanged: compare it with the previous checkpoint first, and share it if equal.

        Raises:
            ObjectError: the store refused.
        """
        check_file(name)
        self._names.add(name)
        if may_be_unchanged:
            self._lasting.add(name)
        if may_be_unchanged and self._before(name) is not None:
            dry = _DryRun()
            save(dry)
            if self._share(name, dry.entry()):
                return
        if self._folder is None:
            with tempfile.TemporaryDirectory(prefix="rung-draft-") as folder:
                path = Path(folder) / "file"
                with path.open("wb") as opened:
                    save(opened)
                self._files[name] = self._put(name, path)
            return
        with self._folder.create(self._prefix + name) as target:
            save(target)
        self._files[name] = _entry_of(target)

    def add(self, folder: Path) -> None:
        """Copy all files below a folder, and note their permissions and empty folders.

        Raises:
            ObjectError: something in the folder is not a file, or the store refused.
        """
        found = files_of(folder)
        self._folders |= _empty_folders_of(folder)
        self._names.update(name for name, _ in found)
        entries = in_parallel(self._store.parallel, lambda it: self._put(*it), found)
        self._files |= {name: entry for (name, _), entry in zip(found, entries, strict=True)}

    def include(self, files: Mapping[str, FileEntry]) -> None:
        """Add files, by name, that another process wrote."""
        self._files |= files

    def finish(
        self, *, steps_completed: int, metadata: dict[str, Any], provenance: Provenance
    ) -> StoredCheckpoint:
        """Write the manifest; the checkpoint is complete when this returns.

        Raises:
            ObjectError: the store refused.
        """
        assert provenance.experiment_id == self._experiment_id, provenance
        previous = self._previous.manifest.checkpoint_id if self._previous else None
        manifest = Manifest(
            checkpoint_id=self._checkpoint_id,
            steps_completed=steps_completed,
            metadata=metadata,
            files=dict(sorted(self._files.items())),
            folders=sorted(self._folders),
            provenance=provenance,
            environment=digest_of(provenance.environment),
            previous=previous,
        )
        stored, encoded = encode_manifest(manifest)
        self._store.put_bytes(self._prefix + MANIFEST, encoded)
        return stored

    def discard(self) -> None:
        """Delete the files written so far."""
        self._store.delete(self._prefix)

    def _before(self, name: str) -> FileEntry | None:
        return self._previous.manifest.files.get(name) if self._previous else None

    def _share(self, name: str, entry: FileEntry) -> bool:
        """Share a file with the previous checkpoint; return whether that was possible."""
        if self._previous is None or self._folder is None or self._before(name) != entry:
            return False
        manifest = self._previous.manifest
        place = checkpoint_prefix(manifest.provenance.experiment_id, manifest.checkpoint_id)
        if not self._folder.link(self._prefix + name, place + name):
            return False
        self._files[name] = entry
        self._lasting.add(name)
        return True

    def _put(self, name: str, path: Path) -> FileEntry:
        before = self._before(name)
        if before is not None and self._folder is not None and _size_of(path) == before.size_bytes:
            entry = _with_mode(measure(path), path)
            if self._share(name, entry):
                return entry
        if isinstance(self._store, FolderStore):
            with self._store.create(self._prefix + name) as target:
                target.copy(path)
            return _with_mode(_entry_of(target), path)
        entry = _with_mode(measure(path), path)
        self._store.put(self._prefix + name, path)
        return entry


def store_checkpoint(  # noqa: PLR0913 - the parts of a checkpoint
    store: ObjectStore,
    folder: Path,
    *,
    checkpoint_id: str,
    steps_completed: int,
    metadata: dict[str, Any],
    provenance: Provenance,
    previous: StoredCheckpoint | None = None,
) -> StoredCheckpoint:
    """Store a folder's files as a checkpoint.

    Raises:
        ObjectError: something in the folder is not a file, or the store refused.
    """
    writer = CheckpointWriter(store, provenance.experiment_id, checkpoint_id, previous)
    writer.add(folder)
    return writer.finish(steps_completed=steps_completed, metadata=metadata, provenance=provenance)


class _DryRun:
    """Digests what is written to it, and keeps nothing."""

    def __init__(self) -> None:
        self._hasher = hasher()
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        view = memoryview(data).cast("B")
        self._hasher.update(view)
        self._size += len(view)
        return len(view)

    def flush(self) -> None:
        """Keep nothing."""

    def entry(self) -> FileEntry:
        """Return the entry of what was written."""
        return FileEntry(size_bytes=self._size, blake3=self._hasher.hexdigest())


def _entry_of(written: DurableFile) -> FileEntry:
    return FileEntry(size_bytes=written.size_bytes, blake3=written.digest)


def _with_mode(entry: FileEntry, path: Path) -> FileEntry:
    return msgspec.structs.replace(entry, mode=stat.S_IMODE(path.stat().st_mode) & MODE_MAX)


def _size_of(path: Path) -> int:
    return path.stat().st_size


def _empty_folders_of(folder: Path) -> set[str]:
    found = {
        Path(parent).relative_to(folder).as_posix()
        for parent, folders, files in os.walk(folder)
        if not (folders or files)
    }
    return {check_file(name) for name in found - {"."}}


def files_of(folder: Path) -> list[tuple[str, Path]]:
    """Return the files below a folder that a checkpoint is to hold, by relative name, sorted.

    A link to a file counts as that file; a link to a folder is refused, as its files would be
    missing.

    Raises:
        ObjectError: a checkpoint cannot hold a file, because of its name or of what it is.
    """
    found = []
    for parent, folders, files in os.walk(folder):
        for entry in (*folders, *files):
            path = Path(parent) / entry
            name = path.relative_to(folder).as_posix()
            if entry in folders and path.is_symlink():
                raise ObjectError(f"checkpoint file {name}: links to folders are not stored")
            if entry in folders:
                continue
            if not stat.S_ISREG(path.stat().st_mode):
                raise ObjectError(f"checkpoint file {name}: only files and folders are stored")
            found.append((check_file(name), path))
    return sorted(found)

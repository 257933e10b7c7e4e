"""A checkpoint while it is being written.

Files may be written straight into the store, past any folder of the script's, with their digests
made on the way. It exists once its manifest, which is written last, is there.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from rung.events.errors import ObjectError
from rung.storage.checkpoint.digest import hasher
from rung.storage.checkpoint.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    Provenance,
    StoredCheckpoint,
    check_file,
    checkpoint_prefix,
    digest_of,
    measure,
    seal,
    side_by_side,
)
from rung.storage.durable_file import DurableFile
from rung.storage.folder import FolderStore
from rung.storage.port import ObjectStore


class Sink(Protocol):
    """Where the bytes of a file go; enough for `torch.save`, `pickle.dump` and their like."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take bytes, which may be changed once this returns; return how many."""
        ...

    def flush(self) -> None:
        """Do nothing, or what comes near it."""
        ...


@runtime_checkable
class Folder(Protocol):
    """What a store can do whose objects are files of this machine."""

    def create(self, name: str) -> AbstractContextManager[DurableFile]:
        """Return a context in which an object is written."""
        ...

    def link(self, name: str, existing: str) -> bool:
        """Give the bytes of an object a second name; return whether that was possible."""
        ...


class Draft:
    """A checkpoint that does not exist before it is sealed."""

    def __init__(
        self,
        store: ObjectStore,
        experiment_id: str,
        checkpoint_id: str,
        previous: StoredCheckpoint | None = None,
    ) -> None:
        """Begin it.

        Args:
            store: where it goes.
            experiment_id: whose it is.
            checkpoint_id: its name.
            previous: a checkpoint of the same experiment whose unchanged files it may share.
        """
        self._store = store
        self._folder: Folder | None = store if isinstance(store, Folder) else None
        self._experiment_id = experiment_id
        self._checkpoint_id: Final = checkpoint_id
        self._prefix = checkpoint_prefix(experiment_id, checkpoint_id)
        self._previous = previous
        self._files: dict[str, FileEntry] = {}
        self._lasting: set[str] = set()

    @property
    def checkpoint_id(self) -> str:
        """Its name."""
        return self._checkpoint_id

    @property
    def files(self) -> dict[str, FileEntry]:
        """What was written of it so far, by name."""
        return dict(self._files)

    @property
    def lasting(self) -> list[str]:
        """The objects of it that the next checkpoint may well have, too."""
        return [self._prefix + name for name in sorted(self._lasting)]

    def write(
        self, name: str, save: Callable[[Sink], object], *, may_be_unchanged: bool = False
    ) -> None:
        """Write a file.

        Args:
            name: of the file, relative to the checkpoint's folder.
            save: writes to what it is given; twice, if it may be unchanged.
            may_be_unchanged: look first whether it is what it was in the previous checkpoint,
                and write nothing then.

        Raises:
            ObjectError: the store refused.
        """
        check_file(name)
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
        """Copy all files below a folder.

        Raises:
            ObjectError: the folder holds what is no file, or the store refused.
        """
        found = _files_of(folder)
        entries = side_by_side(self._store.parallel, lambda it: self._put(*it), found)
        self._files |= {name: entry for (name, _), entry in zip(found, entries, strict=True)}

    def include(self, files: Mapping[str, FileEntry], whose: str) -> None:
        """Count files as its own that others have put beside these.

        Args:
            files: by name.
            whose: who put them there, in words.

        Raises:
            ObjectError: a file of that name is among these already.
        """
        twice = sorted(files.keys() & self._files.keys())
        if twice:
            raise ObjectError(
                f"checkpoint {self._checkpoint_id}: {whose} wrote {twice[0]}, which another rank "
                "wrote, too; give each rank's files names of their own"
            )
        self._files |= files

    def seal(
        self, *, steps_completed: int, metadata: dict[str, Any], provenance: Provenance
    ) -> StoredCheckpoint:
        """Write the manifest; the checkpoint exists when this returns, whole.

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
            provenance=provenance,
            environment=digest_of(provenance.environment),
            previous=previous,
        )
        stored, sealed = seal(manifest)
        self._store.put_bytes(self._prefix + MANIFEST, sealed)
        return stored

    def discard(self) -> None:
        """Delete what was written of it."""
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
            entry = measure(path)
            if self._share(name, entry):
                return entry
        if isinstance(self._store, FolderStore):
            with self._store.create(self._prefix + name) as target:
                target.copy(path)
            return _entry_of(target)
        entry = measure(path)
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
    """Store a folder's files as a checkpoint; it exists when this returns, whole.

    Raises:
        ObjectError: the folder holds what is no file, or the store refused.
    """
    draft = Draft(store, provenance.experiment_id, checkpoint_id, previous)
    draft.add(folder)
    return draft.seal(steps_completed=steps_completed, metadata=metadata, provenance=provenance)


class _DryRun:
    """Digests what it is given, and keeps nothing."""

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
        """Return what it was given."""
        return FileEntry(size_bytes=self._size, blake3=self._hasher.hexdigest())


def _entry_of(written: DurableFile) -> FileEntry:
    return FileEntry(size_bytes=written.size_bytes, blake3=written.digest)


def _size_of(path: Path) -> int:
    return path.stat().st_size


def _files_of(folder: Path) -> list[tuple[str, Path]]:
    """Return the files below a folder by relative name, sorted.

    A link to a file counts as that file; a link to a folder is refused, for what it holds would
    silently be missing.
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

"""Transfer of checkpoints: out of a store, or from a folder to another store.

Each file is compared with the manifest.
"""

import hashlib
from pathlib import Path
from typing import Final, NamedTuple

from rung.events.errors import ObjectDamaged, ObjectError, ObjectMissing, ObjectUnavailable
from rung.storage.checkpoint.deduplication import join, locate, place_of
from rung.storage.checkpoint.manifest import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    FileEntry,
    Manifest,
    StoredCheckpoint,
    checkpoint_prefix,
    compare,
    in_parallel,
    measure,
    read_manifest,
)
from rung.storage.folder import FolderStore
from rung.storage.key import check_name
from rung.storage.no_follow import path_of
from rung.storage.port import ObjectStore

SHARED_BYTES_MIN: Final = 64 << 10
"""Smaller files are stored again where sharing costs requests."""


class OpenCheckpoint(NamedTuple):
    """A checkpoint whose files lie on this machine and were compared."""

    stored: StoredCheckpoint
    paths: dict[str, Path]
    """The paths of its files; they may be the store's own, so they are read only."""


def load_checkpoint(
    store: ObjectStore, experiment_id: str, checkpoint_id: str, folder: Path
) -> StoredCheckpoint:
    """Fetch a checkpoint's files into a folder.

    Raises:
        ObjectMissing: the checkpoint does not exist.
        ObjectDamaged: a file is missing or differs; the message names it and the difference.
    """
    stored = read_manifest(store, experiment_id, checkpoint_id)

    def get(file: tuple[str, FileEntry]) -> None:
        name, expected = file
        target = folder / check_name(name)
        _get(store, stored, name, target)
        found = measure(target, mapped=True)
        compare(checkpoint_id, name, expected, found)

    in_parallel(store.parallel, get, list(stored.manifest.files.items()))
    lay_out(stored.manifest, folder)
    return stored


def lay_out(manifest: Manifest, folder: Path) -> None:
    """Give a folder with copies of a checkpoint's files its permissions and empty folders."""
    for name, entry in manifest.files.items():
        path = folder / check_name(name)
        if path.is_file():
            path.chmod(entry.mode)
    for name in manifest.folders:
        (folder / check_name(name)).mkdir(parents=True, exist_ok=True)


def open_checkpoint(
    store: ObjectStore, experiment_id: str, checkpoint_id: str, folder: Path
) -> OpenCheckpoint:
    """Check a checkpoint's files where they lie; from a remote store, fetch them into `folder`.

    Raises:
        ObjectMissing: the checkpoint does not exist.
        ObjectDamaged: a file is missing or differs; the message names it and the difference.
    """
    if not isinstance(store, FolderStore):
        stored = load_checkpoint(store, experiment_id, checkpoint_id, folder)
        return OpenCheckpoint(stored, {name: folder / name for name in stored.manifest.files})
    stored = read_manifest(store, experiment_id, checkpoint_id)
    prefix = checkpoint_prefix(experiment_id, checkpoint_id)
    paths = {}
    for name, expected in stored.manifest.files.items():
        path = store.root / (prefix + check_name(name))
        _check(checkpoint_id, name, expected, path, mapped=True)
        paths[name] = path
    return OpenCheckpoint(stored, paths)


def copy_checkpoint(
    source: FolderStore, target: ObjectStore, experiment_id: str, checkpoint_id: str
) -> StoredCheckpoint:
    """Copy a checkpoint from a folder to another store, its manifest last.

    After a failure it may be called again; large files resume.

    Raises:
        ObjectMissing: the source has no such checkpoint.
        ObjectDamaged: a file is missing or differs; the message names it and the difference.
        ObjectUnavailable: the target did not answer.
    """
    stored = read_manifest(source, experiment_id, checkpoint_id)
    copy_files(source, target, stored)
    prefix = checkpoint_prefix(experiment_id, checkpoint_id)
    manifest = source.read(prefix + MANIFEST, 0, MANIFEST_BYTES_MAX + 1)
    if hashlib.sha256(manifest).hexdigest() != stored.digest:
        raise ObjectDamaged(f"checkpoint {checkpoint_id}: its manifest changed meanwhile")
    target.put_bytes(prefix + MANIFEST, manifest)
    return stored


def copy_files(source: FolderStore, target: ObjectStore, stored: StoredCheckpoint) -> None:
    """Copy the files of a checkpoint, or of a part of one, without the manifest.

    Files that the target has in the previous checkpoint are shared. One that is not in the source
    must be in the target already: other machines upload theirs themselves.

    Raises:
        ObjectDamaged: a file is missing or differs; the message names it and the difference.
        ObjectUnavailable: the target did not answer.
    """
    files, checkpoint_id = stored.manifest.files, stored.manifest.checkpoint_id
    prefix = checkpoint_prefix(stored.manifest.provenance.experiment_id, checkpoint_id)
    shared = _share(target, stored)
    elsewhere = [name for name in files if not _holds(source, prefix + check_name(name))]
    there = locate(target, stored) if elsewhere else {}

    def put(file: tuple[str, FileEntry]) -> None:
        name, expected = file
        if name in shared:  # the target has these bytes, whatever became of the source's
            return
        if name in elsewhere and name in there and there[name].size_bytes == expected.size_bytes:
            return
        try:
            with source.opened(prefix + name) as opened:
                path = path_of(opened.fileno())
                compare(checkpoint_id, name, expected, measure(path))
                target.put(prefix + name, path)
        except ObjectMissing as error:
            raise ObjectDamaged(f"checkpoint {checkpoint_id}: {name} is missing") from error

    in_parallel(target.parallel, put, list(files.items()))
    there = locate(target, stored)
    for name, expected in files.items():
        if name not in there or there[name].size_bytes != expected.size_bytes:
            raise ObjectUnavailable(f"checkpoint {checkpoint_id}: {name} was deleted meanwhile")


def _holds(source: FolderStore, name: str) -> bool:
    """Return whether a folder has an object.

    Raises:
        ObjectDamaged: it is not a regular file.
    """
    try:
        source.version(name)
    except ObjectMissing:
        return False
    return True


def _share(target: ObjectStore, stored: StoredCheckpoint) -> frozenset[str]:
    """Share files with the previous checkpoint in the target; return their names."""
    manifest = stored.manifest
    if manifest.previous is None:
        return frozenset()
    experiment_id = manifest.provenance.experiment_id
    try:
        previous = read_manifest(target, experiment_id, manifest.previous)
    except ObjectUnavailable:
        raise
    except ObjectError:  # it is missing or damaged
        return frozenset()
    before = previous.manifest.files
    same = [name for name, entry in manifest.files.items() if before.get(name) == entry]
    if isinstance(target, FolderStore):
        own = checkpoint_prefix(experiment_id, manifest.checkpoint_id)
        theirs = checkpoint_prefix(experiment_id, manifest.previous)
        return frozenset(name for name in same if target.link(own + name, theirs + name))
    worth = [name for name in same if manifest.files[name].size_bytes >= SHARED_BYTES_MIN]
    if not worth:
        return frozenset()
    return frozenset(join(target, experiment_id, manifest.checkpoint_id, previous, worth))


def _get(store: ObjectStore, stored: StoredCheckpoint, name: str, target: Path) -> None:
    """Fetch a file of a checkpoint, its own or a shared one.

    Raises:
        ObjectDamaged: it is missing.
    """
    manifest = stored.manifest
    experiment_id, checkpoint_id = manifest.provenance.experiment_id, manifest.checkpoint_id
    try:
        try:
            store.get(checkpoint_prefix(experiment_id, checkpoint_id) + name, target)
        except ObjectMissing:
            store.get(place_of(store, experiment_id, checkpoint_id, name), target)
    except ObjectMissing as error:
        raise ObjectDamaged(f"checkpoint {checkpoint_id}: {name} is missing") from error


def _check(
    checkpoint_id: str, name: str, expected: FileEntry, path: Path, *, mapped: bool = False
) -> None:
    if not path.is_file():
        raise ObjectDamaged(f"checkpoint {checkpoint_id}: {name} is missing")
    compare(checkpoint_id, name, expected, measure(path, mapped=mapped))

"""Whole checkpoints on their way: out of a store, or from a folder to another store.

Every file is compared with the manifest before anybody builds on it.
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
    StoredCheckpoint,
    checkpoint_prefix,
    compare,
    measure,
    read_manifest,
    side_by_side,
)
from rung.storage.folder import FolderStore
from rung.storage.key import check_name
from rung.storage.no_follow import path_of
from rung.storage.port import ObjectStore

SHARED_BYTES_MIN: Final = 64 << 10
"""Smaller files are stored again where sharing costs requests."""


class OpenCheckpoint(NamedTuple):
    """A checkpoint whose files were compared and lie on this machine."""

    stored: StoredCheckpoint
    paths: dict[str, Path]
    """Where its files are; they may be the store's own and are only to be read."""


def load_checkpoint(
    store: ObjectStore, experiment_id: str, checkpoint_id: str, folder: Path
) -> StoredCheckpoint:
    """Bring a checkpoint's files into a folder, each checked against the manifest.

    Raises:
        ObjectMissing: the checkpoint does not exist.
        ObjectDamaged: a file is missing or differs; the message names it and the difference.
    """
    stored = read_manifest(store, experiment_id, checkpoint_id)

    def get(file: tuple[str, FileEntry]) -> None:
        name, expected = file
        target = folder / check_name(name)
        _get(store, stored, name, target)
        found = measure(target, expected.algorithm, mapped=True)
        compare(checkpoint_id, name, expected, found)

    side_by_side(store.parallel, get, list(stored.manifest.files.items()))
    return stored


def open_checkpoint(
    store: ObjectStore, experiment_id: str, checkpoint_id: str, folder: Path
) -> OpenCheckpoint:
    """Check a checkpoint's files, in their place where they are files of this machine.

    Args:
        store: where it is.
        experiment_id: whose it is.
        checkpoint_id: its name.
        folder: where files go that have to be brought from elsewhere.

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
    """Copy a whole checkpoint from a folder to another store, its manifest last.

    Cut in the middle, it may be called again; large files go on where they were.

    Raises:
        ObjectMissing: the source has no such checkpoint.
        ObjectDamaged: it is not whole there; the message names the file and the difference.
        ObjectUnavailable: the target did not answer; it may later.
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
    """Copy the files of a checkpoint, or of a part of one, but no manifest.

    Files that the target has of the previous checkpoint are shared with that. One that is not in
    the source must be in the target already: other machines bring theirs themselves.

    Raises:
        ObjectDamaged: it is not whole there; the message names the file and the difference.
        ObjectUnavailable: the target did not answer; it may later.
    """
    files, checkpoint_id = stored.manifest.files, stored.manifest.checkpoint_id
    prefix = checkpoint_prefix(stored.manifest.provenance.experiment_id, checkpoint_id)
    shared = _share(target, stored)
    brought = [name for name in files if not _holds(source, prefix + check_name(name))]
    there = locate(target, stored) if brought else {}

    def put(file: tuple[str, FileEntry]) -> None:
        name, expected = file
        if name in shared:  # the target has these bytes, whatever became of the source's
            return
        if name in brought and name in there and there[name].size_bytes == expected.size_bytes:
            return
        try:
            with source.opened(prefix + name) as opened:
                path = path_of(opened.fileno())
                compare(checkpoint_id, name, expected, measure(path, expected.algorithm))
                target.put(prefix + name, path)
        except ObjectMissing as error:
            raise ObjectDamaged(f"checkpoint {checkpoint_id}: {name} is missing") from error

    side_by_side(target.parallel, put, list(files.items()))
    there = locate(target, stored)
    for name, expected in files.items():
        if name not in there or there[name].size_bytes != expected.size_bytes:
            raise ObjectUnavailable(f"checkpoint {checkpoint_id}: {name} was deleted meanwhile")


def _holds(source: FolderStore, name: str) -> bool:
    """Whether a folder has an object.

    Raises:
        ObjectDamaged: there is something else in its place.
    """
    try:
        source.version(name)
    except ObjectMissing:
        return False
    return True


def _share(target: ObjectStore, stored: StoredCheckpoint) -> frozenset[str]:
    """Share with the previous checkpoint what is in the target; return the names of the files."""
    manifest = stored.manifest
    if manifest.previous is None:
        return frozenset()
    experiment_id = manifest.provenance.experiment_id
    try:
        previous = read_manifest(target, experiment_id, manifest.previous)
    except ObjectUnavailable:
        raise
    except ObjectError:  # it is not there, or nothing to build on
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
    """Bring a file of a checkpoint from wherever it lies.

    Raises:
        ObjectDamaged: it is nowhere.
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
    compare(checkpoint_id, name, expected, measure(path, expected.algorithm, mapped=mapped))

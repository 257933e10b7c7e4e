"""Checkpoints as objects: a folder of files and a manifest, written last.

`checkpoints/<experiment_id>/<checkpoint_id>/` holds the files and `manifest.json`. A checkpoint
without its manifest does not exist: whoever wrote it was killed before it was whole. The manifest
holds every file's size and digest, and its own digest, so that a single flipped bit anywhere is
noticed and named.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from rung.events.errors import ObjectDamaged, ObjectError, ObjectMissing, ObjectUnavailable
from rung.objects.folder import FolderStore
from rung.objects.name import check_name
from rung.objects.port import ObjectStore

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1

T = TypeVar("T")
R = TypeVar("R")


class FileEntry(Struct, frozen=True, kw_only=True):
    """What one file of a checkpoint must be."""

    size_bytes: int
    sha256: str


class Provenance(Struct, frozen=True, kw_only=True):
    """Where a checkpoint comes from.

    Attributes:
        code, config, data: SHA-256 digests of the code archive, of the complete configuration
            (hyperparameters and seed included), and of its `data` section.
        environment: what it was trained with: Python, platform, packages with their versions.
    """

    experiment_id: str
    trial_id: str
    run: int
    code: str | None = None
    config: str | None = None
    data: str | None = None
    environment: dict[str, Any] = {}


class Manifest(Struct, frozen=True, kw_only=True):
    """All that is to know about a checkpoint without reading its files."""

    checkpoint_id: str
    steps_completed: int
    metadata: dict[str, Any]
    files: dict[str, FileEntry]
    """By name, relative to the checkpoint's folder, sorted."""
    provenance: Provenance
    environment: str
    """SHA-256 of `provenance.environment`."""
    format: int = FORMAT

    @property
    def size_bytes(self) -> int:
        """How much its files hold, the manifest not counted."""
        return sum(entry.size_bytes for entry in self.files.values())


class StoredCheckpoint(NamedTuple):
    """A checkpoint that is complete in the store."""

    manifest: Manifest
    digest: str
    """SHA-256 of `manifest.json`."""


class _Sealed(Struct, frozen=True):
    """`manifest.json`: the manifest and the digest of its bytes."""

    sha256: str
    manifest: msgspec.Raw


def checkpoint_prefix(experiment_id: str, checkpoint_id: str) -> str:
    """Return the prefix of a checkpoint's objects, with the slash at its end."""
    name = check_name(f"checkpoints/{experiment_id}/{checkpoint_id}")
    if name.count("/") != 2:
        raise ObjectError(f"checkpoint {checkpoint_id!r} of {experiment_id!r}: ids hold no `/`")
    return name + "/"


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, the same whatever the order of its keys."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def store_checkpoint(  # noqa: PLR0913 - the parts of a checkpoint
    store: ObjectStore,
    folder: Path,
    *,
    checkpoint_id: str,
    steps_completed: int,
    metadata: dict[str, Any],
    provenance: Provenance,
) -> StoredCheckpoint:
    """Store a folder's files as a checkpoint; it exists when this returns, whole.

    Raises:
        ObjectError: the folder holds what is no file, or the store refused.
    """
    prefix = checkpoint_prefix(provenance.experiment_id, checkpoint_id)

    def put(file: tuple[str, Path]) -> tuple[str, FileEntry]:
        name, path = file
        entry = _measure(path)
        store.put(prefix + name, path)
        return name, entry

    files = dict(side_by_side(store.parallel, put, _files_of(folder)))
    manifest = Manifest(
        checkpoint_id=checkpoint_id,
        steps_completed=steps_completed,
        metadata=metadata,
        files=files,
        provenance=provenance,
        environment=digest_of(provenance.environment),
    )
    body = msgspec.json.encode(manifest)
    sealed = msgspec.json.encode(_Sealed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body)))
    store.put_bytes(prefix + MANIFEST, sealed)
    return StoredCheckpoint(manifest, hashlib.sha256(sealed).hexdigest())


def read_manifest(store: ObjectStore, experiment_id: str, checkpoint_id: str) -> StoredCheckpoint:
    """Return a checkpoint's manifest.

    Raises:
        ObjectMissing: there is none, so the checkpoint was never completed, or is deleted.
        ObjectDamaged: its bytes are not what was written.
    """
    name = checkpoint_prefix(experiment_id, checkpoint_id) + MANIFEST
    data = store.read(name)
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        body = bytes(sealed.manifest)
        if hashlib.sha256(body).hexdigest() != sealed.sha256:
            raise ObjectDamaged(f"{name}: its bytes are not those that were written (digest)")
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise ObjectDamaged(f"{name}: is no manifest: {error}") from error
    if manifest.format > FORMAT:
        raise ObjectError(f"{name}: format {manifest.format} was written by a newer Rung")
    return StoredCheckpoint(manifest, hashlib.sha256(data).hexdigest())


def load_checkpoint(
    store: ObjectStore, experiment_id: str, checkpoint_id: str, folder: Path
) -> StoredCheckpoint:
    """Bring a checkpoint's files into a folder, each checked against the manifest.

    Raises:
        ObjectMissing: the checkpoint does not exist.
        ObjectDamaged: a file is missing or differs; the message names it and the difference.
    """
    stored = read_manifest(store, experiment_id, checkpoint_id)
    prefix = checkpoint_prefix(experiment_id, checkpoint_id)

    def get(file: tuple[str, FileEntry]) -> None:
        name, expected = file
        target = folder / check_name(name)
        try:
            store.get(prefix + name, target)
        except ObjectMissing as error:
            raise ObjectDamaged(f"checkpoint {checkpoint_id}: {name} is missing") from error
        _compare(checkpoint_id, name, expected, _measure(target))

    side_by_side(store.parallel, get, list(stored.manifest.files.items()))
    return stored


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
    prefix = checkpoint_prefix(experiment_id, checkpoint_id)

    def put(file: tuple[str, FileEntry]) -> None:
        name, expected = file
        path = source.root / prefix / check_name(name)
        if not path.is_file():
            raise ObjectDamaged(f"checkpoint {checkpoint_id}: {name} is missing")
        _compare(checkpoint_id, name, expected, _measure(path))
        target.put(prefix + name, path)

    side_by_side(target.parallel, put, list(stored.manifest.files.items()))
    there = {info.name: info.size_bytes for info in target.list(prefix)}
    for name, expected in stored.manifest.files.items():
        if there.get(prefix + name) != expected.size_bytes:
            raise ObjectUnavailable(f"checkpoint {checkpoint_id}: {name} was deleted meanwhile")
    target.put_bytes(prefix + MANIFEST, source.read(prefix + MANIFEST))
    return stored


def delete_checkpoint(store: ObjectStore, experiment_id: str, checkpoint_id: str) -> int:
    """Delete a checkpoint, its manifest first, so that half of one is never taken for one.

    Returns how many objects there were; it is safe to repeat.
    """
    prefix = checkpoint_prefix(experiment_id, checkpoint_id)
    return store.delete(prefix + MANIFEST) + store.delete(prefix)


def side_by_side(width: int, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return what the work makes of each item, in order; so many at once, the first error ends."""
    if width == 1 or len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(width, len(items)), "objects") as threads:
        futures = [threads.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()


def _compare(checkpoint_id: str, name: str, expected: FileEntry, found: FileEntry) -> None:
    if found.size_bytes != expected.size_bytes:
        raise ObjectDamaged(
            f"checkpoint {checkpoint_id}: {name} has {found.size_bytes} bytes instead of "
            f"{expected.size_bytes}"
        )
    if found.sha256 != expected.sha256:
        raise ObjectDamaged(
            f"checkpoint {checkpoint_id}: {name} has the digest {found.sha256[:12]}… instead of "
            f"{expected.sha256[:12]}…"
        )


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
            if name == MANIFEST:
                raise ObjectError(f"checkpoint file {name}: the name is taken by Rung; rename it")
            found.append((check_name(name), path))
    return sorted(found)


def _measure(path: Path) -> FileEntry:
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return FileEntry(size_bytes=opened.tell(), sha256=digest)

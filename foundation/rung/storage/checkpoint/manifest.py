"""Checkpoints as objects: a folder of files and a manifest, written last.

`checkpoints/<experiment_id>/<checkpoint_id>/` holds the files and `manifest.json`. A checkpoint
without its manifest does not exist: whoever wrote it was killed before it was whole. The manifest
holds every file's size and digest, and its own digest, so that a single flipped bit anywhere is
noticed and named. A file that is as it was in the checkpoint before is stored once; see
`rung.storage.checkpoint.deduplication`.

Manifests have a format: 1 digested files by SHA-256, 2 does by BLAKE3. Both are read. The manifest
itself, which is small, is digested by SHA-256 in both.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from rung.events.errors import ObjectDamaged, ObjectError
from rung.storage.checkpoint.digest import digest_file
from rung.storage.key import check_name
from rung.storage.port import ObjectStore

MANIFEST: Final = "manifest.json"
FORMAT: Final = 2
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Some 300,000 files."""
SIZE_BYTES_MAX: Final = 2**48
"""Of one file: more than any store takes."""
RESERVED: Final = (".held", ".uses")
"""Folders of a checkpoint in which Rung notes what is shared; no file of its own may lie there."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")
R = TypeVar("R")


class FileEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one file of a checkpoint must be: its size and one digest."""

    size_bytes: int
    blake3: str = ""
    sha256: str = ""

    @property
    def algorithm(self) -> str:
        """What the digest is made by."""
        return "sha256" if self.sha256 else "blake3"

    @property
    def digest(self) -> str:
        """The digest, in hexadecimal digits."""
        return self.sha256 or self.blake3


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
    previous: str | None = None
    """The checkpoint whose unchanged files this one may share."""
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


class _Format(Struct, frozen=True):
    """What every version of a manifest says."""

    format: int = 1


def checkpoint_prefix(experiment_id: str, checkpoint_id: str) -> str:
    """Return the prefix of a checkpoint's objects, with the slash at its end."""
    name = check_name(f"checkpoints/{experiment_id}/{checkpoint_id}")
    if name.count("/") != 2:
        raise ObjectError(f"checkpoint {checkpoint_id!r} of {experiment_id!r}: ids hold no `/`")
    return name + "/"


def check_file(name: str) -> str:
    """Return the name if a file of a checkpoint may have it.

    Raises:
        ObjectError: it is one of Rung's own, or none at all.
    """
    if name == MANIFEST or name.partition("/")[0] in RESERVED:
        raise ObjectError(f"checkpoint file {name}: the name is taken by Rung; rename it")
    return check_name(name)


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, the same whatever the order of its keys."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def seal(manifest: Manifest) -> tuple[StoredCheckpoint, bytes]:
    """Return a manifest with its digest, and `manifest.json`."""
    body = msgspec.json.encode(manifest)
    sealed = msgspec.json.encode(_Sealed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body)))
    return StoredCheckpoint(manifest, hashlib.sha256(sealed).hexdigest()), sealed


def read_manifest(store: ObjectStore, experiment_id: str, checkpoint_id: str) -> StoredCheckpoint:
    """Return a checkpoint's manifest.

    Raises:
        ObjectMissing: there is none, so the checkpoint was never completed, or is deleted.
        ObjectDamaged: its bytes are not what was written, or it says what no manifest can.
        ObjectError: a newer Rung wrote it, or the store refused.
    """
    name = checkpoint_prefix(experiment_id, checkpoint_id) + MANIFEST
    data = store.read(name, 0, MANIFEST_BYTES_MAX + 1)
    if len(data) > MANIFEST_BYTES_MAX:
        raise ObjectDamaged(f"{name}: is no manifest: more than {MANIFEST_BYTES_MAX:,} bytes")
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        body = bytes(sealed.manifest)
        if hashlib.sha256(body).hexdigest() != sealed.sha256:
            raise ObjectDamaged(f"{name}: its bytes are not those that were written (digest)")
        written = msgspec.json.decode(body, type=_Format).format
        if written > FORMAT:
            raise ObjectError(f"{name}: format {written} was written by a newer Rung")
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ObjectDamaged(f"{name}: is no manifest: {error}") from error
    try:
        _check(manifest, experiment_id, checkpoint_id)
    except ObjectError as error:
        raise ObjectDamaged(f"{name}: is no manifest: {error}") from error
    return StoredCheckpoint(manifest, hashlib.sha256(data).hexdigest())


def _check(manifest: Manifest, experiment_id: str, checkpoint_id: str) -> None:
    """Check that a checkpoint can be as a manifest says; its digest proves nothing of that.

    Readers make paths, headers and lengths of what it says, so nothing else may be in it.

    Raises:
        ObjectError: none can be so.
    """
    whose = manifest.provenance.experiment_id
    if (whose, manifest.checkpoint_id) != (experiment_id, checkpoint_id):
        raise ObjectError(f"it is that of {manifest.checkpoint_id!r} of {whose!r}")
    for name, entry in manifest.files.items():
        check_file(name)
        if not _DIGEST.fullmatch(entry.digest):
            raise ObjectError(f"{name!r} has no digest of 64 hexadecimal digits")
        if not 0 <= entry.size_bytes <= SIZE_BYTES_MAX:
            raise ObjectError(f"{name!r} cannot have {entry.size_bytes} bytes")
        parts = name.split("/")
        if any("/".join(parts[:end]) in manifest.files for end in range(1, len(parts))):
            raise ObjectError(f"{name!r} lies in a file")
    if manifest.previous is not None:
        checkpoint_prefix(experiment_id, manifest.previous)


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


def compare(checkpoint_id: str, name: str, expected: FileEntry, found: FileEntry) -> None:
    """Check what was found of a file against what it must be.

    Raises:
        ObjectDamaged: it differs; the message tells by what.
    """
    if found.size_bytes != expected.size_bytes:
        raise ObjectDamaged(
            f"checkpoint {checkpoint_id}: {name} has {found.size_bytes} bytes instead of "
            f"{expected.size_bytes}"
        )
    if found.digest != expected.digest:
        raise ObjectDamaged(
            f"checkpoint {checkpoint_id}: {name} has the digest {found.digest[:12]}… instead of "
            f"{expected.digest[:12]}…"
        )


def measure(path: Path, algorithm: str = "blake3", *, mapped: bool = False) -> FileEntry:
    """Return what a file is; `mapped` as for `digest_file`."""
    size, digest = digest_file(path, algorithm, mapped=mapped)
    return FileEntry(size_bytes=size, **{algorithm: digest})

"""Manifest of a checkpoint: the size and digest of each file, written after all of them.

`checkpoints/<experiment_id>/<checkpoint_id>/` holds the files and `manifest.json`. Without a
manifest the checkpoint does not exist: its writer was killed. The manifest also holds its own
digest, so that a single flipped bit anywhere is found. A file that did not change since the
checkpoint before is stored once, see `rung.storage.checkpoint.deduplication`.

Files are digested by BLAKE3, the manifest itself by SHA-256. It has the number of its format; one
of another format is refused.
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
MODE: Final = 0o644
"""The permissions of a file of which nothing else is recorded."""
MODE_MAX: Final = 0o777
"""Permissions of owner, group and others; no bits that change the user of a program."""
SIZE_BYTES_MAX: Final = 2**48
"""Of one file: more than any store takes."""
RESERVED: Final = (".held", ".uses")
"""Folders of a checkpoint for the marks of deduplication; no file of its own may lie there."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")
R = TypeVar("R")


class FileEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Size and digest of one file of a checkpoint."""

    size_bytes: int
    blake3: str = ""
    sha256: str = ""
    """Of the manifest itself, which has no BLAKE3 digest."""
    mode: int = MODE
    """Its permissions, as of `os.chmod`; those of copies are set to it."""

    @property
    def digest(self) -> str:
        """The digest, in hexadecimal digits."""
        return self.sha256 or self.blake3


class Provenance(Struct, frozen=True, kw_only=True):
    """Provenance of a checkpoint.

    Attributes:
        code, config, data: SHA-256 digests of the code archive, of the complete configuration
            (hyperparameters and seed included), and of its `data` section.
        environment: Python, platform, and packages with their versions.
    """

    experiment_id: str
    trial_id: str
    run: int
    code: str | None = None
    config: str | None = None
    data: str | None = None
    environment: dict[str, Any] = {}


class Manifest(Struct, frozen=True, kw_only=True):
    """Manifest of a checkpoint."""

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
    folders: list[str] = []
    """Its empty folders, sorted."""
    format: int = FORMAT

    @property
    def size_bytes(self) -> int:
        """The size of its files, without the manifest."""
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
    """The field that manifests of all formats have."""

    format: int


def checkpoint_prefix(experiment_id: str, checkpoint_id: str) -> str:
    """Return the prefix of a checkpoint's objects, with the slash at its end."""
    name = check_name(f"checkpoints/{experiment_id}/{checkpoint_id}")
    if name.count("/") != 2:
        raise ObjectError(f"checkpoint {checkpoint_id!r} of {experiment_id!r}: ids hold no `/`")
    return name + "/"


def check_file(name: str) -> str:
    """Return the name if a file of a checkpoint may have it.

    Raises:
        ObjectError: it is reserved, or not valid.
    """
    if name == MANIFEST or name.partition("/")[0] in RESERVED:
        raise ObjectError(f"checkpoint file {name}: the name is taken by Rung; rename it")
    return check_name(name)


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, the same whatever the order of its keys."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def encode_manifest(manifest: Manifest) -> tuple[StoredCheckpoint, bytes]:
    """Return a manifest with its digest, and `manifest.json`."""
    body = msgspec.json.encode(manifest)
    sealed = msgspec.json.encode(_Sealed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body)))
    return StoredCheckpoint(manifest, hashlib.sha256(sealed).hexdigest()), sealed


def read_manifest(store: ObjectStore, experiment_id: str, checkpoint_id: str) -> StoredCheckpoint:
    """Return a checkpoint's manifest.

    Raises:
        ObjectMissing: there is none; the checkpoint was never completed, or is deleted.
        ObjectDamaged: its bytes are not those that were written, or a value is impossible.
        ObjectError: a Rung of another format wrote it, or the store refused.
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
        if written != FORMAT:
            text = f"format {written} was written by another Rung; this one reads format {FORMAT}"
            raise ObjectError(f"{name}: {text}")
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ObjectDamaged(f"{name}: is no manifest: {error}") from error
    try:
        _check(manifest, experiment_id, checkpoint_id)
    except ObjectError as error:
        raise ObjectDamaged(f"{name}: is no manifest: {error}") from error
    return StoredCheckpoint(manifest, hashlib.sha256(data).hexdigest())


def _check(manifest: Manifest, experiment_id: str, checkpoint_id: str) -> None:
    """Check the values of a manifest, which become paths, headers and lengths.

    Raises:
        ObjectError: a value is impossible.
    """
    whose = manifest.provenance.experiment_id
    if (whose, manifest.checkpoint_id) != (experiment_id, checkpoint_id):
        raise ObjectError(f"it is that of {manifest.checkpoint_id!r} of {whose!r}")
    for name, entry in manifest.files.items():
        check_file(name)
        if entry.sha256 or not _DIGEST.fullmatch(entry.blake3):
            raise ObjectError(f"{name!r} has no BLAKE3 digest of 64 hexadecimal digits")
        if not 0 <= entry.size_bytes <= SIZE_BYTES_MAX:
            raise ObjectError(f"{name!r} cannot have {entry.size_bytes} bytes")
        parts = name.split("/")
        if any("/".join(parts[:end]) in manifest.files for end in range(1, len(parts))):
            raise ObjectError(f"{name!r} lies in a file")
        if not 0 <= entry.mode <= MODE_MAX:
            raise ObjectError(f"{name!r} cannot have the permissions {entry.mode:o}")
    for name in manifest.folders:
        check_file(name)
        parts = name.split("/")
        if any("/".join(parts[:end]) in manifest.files for end in range(1, len(parts) + 1)):
            raise ObjectError(f"the folder {name!r} is, or lies in, a file")
    if manifest.previous is not None:
        checkpoint_prefix(experiment_id, manifest.previous)


def in_parallel(width: int, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results for all items, `width` of them at a time; the first error ends it."""
    if width == 1 or len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(width, len(items)), "objects") as threads:
        return list(threads.map(work, items))


def compare(checkpoint_id: str, name: str, expected: FileEntry, found: FileEntry) -> None:
    """Compare a file with its entry.

    Raises:
        ObjectDamaged: it differs; the message says how.
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


def measure(path: Path, *, mapped: bool = False) -> FileEntry:
    """Return the entry of a file; `mapped` as for `digest_file`."""
    size, digest = digest_file(path, mapped=mapped)
    return FileEntry(size_bytes=size, blake3=digest)

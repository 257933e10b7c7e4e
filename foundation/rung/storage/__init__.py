"""Object stores: for checkpoints, code archives and all else that is too large for the ledger."""

from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

from rung.events.errors import ObjectDamaged, ObjectError, ObjectMissing, ObjectUnavailable
from rung.storage.area import areas_of, is_area, split_area
from rung.storage.checkpoint.deduplication import (
    delete_checkpoint,
    delete_checkpoints,
    locate,
    sweep_unfinished,
)
from rung.storage.checkpoint.manifest import (
    FileEntry,
    Manifest,
    Provenance,
    StoredCheckpoint,
    check_file,
    checkpoint_prefix,
    read_manifest,
)
from rung.storage.checkpoint.transfer import (
    copy_checkpoint,
    copy_files,
    load_checkpoint,
    open_checkpoint,
)
from rung.storage.checkpoint.writer import CheckpointWriter, store_checkpoint
from rung.storage.folder import FolderStore
from rung.storage.port import ObjectInfo, ObjectStore

if TYPE_CHECKING:
    from rung.storage.s3.store import S3Store

__all__ = [
    "CheckpointWriter",
    "FileEntry",
    "FolderStore",
    "Manifest",
    "ObjectDamaged",
    "ObjectError",
    "ObjectInfo",
    "ObjectMissing",
    "ObjectStore",
    "ObjectUnavailable",
    "Provenance",
    "StoredCheckpoint",
    "areas_of",
    "check_file",
    "checkpoint_prefix",
    "copy_checkpoint",
    "copy_files",
    "delete_checkpoint",
    "delete_checkpoints",
    "inspect",
    "is_area",
    "load_checkpoint",
    "locate",
    "open_checkpoint",
    "open_store",
    "prepare",
    "read_manifest",
    "split_area",
    "store_checkpoint",
    "sweep_unfinished",
]


def open_store(url: str, *, within: str = "") -> ObjectStore:
    """Open the object store at an URL: `file:///srv/rung/objects`, or `s3://bucket/prefix`.

    The settings of S3 are in the environment, see `rung.storage.s3.settings`. Nothing is requested
    from a server yet.

    Args:
        url: of the store.
        within: of a folder, the prefix of all objects that this process will write.

    Raises:
        ObjectError: the URL is of no known kind, or the store cannot be opened.
    """
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return _open_s3(url)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or not parts.path:
        raise ObjectError(
            f"object store {url!r}: known are URLs such as file:///srv/rung/objects and"
            " s3://bucket/prefix"
        )
    return FolderStore(Path(unquote(parts.path)), within)


def prepare(store: ObjectStore) -> list[str]:
    """Make a store ready for use: the bucket and its lifecycle; a folder needs nothing.

    Returns one line for each change; it may be repeated.

    Raises:
        ObjectError: it cannot be used; the message says what to do.
    """
    if (bucket := _bucket_of(store)) is None:
        return []
    from rung.storage.s3.provisioning import prepare_bucket  # noqa: PLC0415 - an extra

    return prepare_bucket(bucket)


def inspect(store: ObjectStore) -> list[str]:
    """Return what differs from how `prepare` leaves a store, one line each.

    Raises:
        ObjectError: it cannot be used; the message says what to do.
    """
    if (bucket := _bucket_of(store)) is None:
        return []
    from rung.storage.s3.provisioning import inspect_bucket  # noqa: PLC0415 - an extra

    return inspect_bucket(bucket)


def _bucket_of(store: ObjectStore) -> "S3Store | None":
    return cast("S3Store", store) if store.url.startswith("s3:") else None


def _open_s3(url: str) -> ObjectStore:
    try:
        from rung.storage.s3.store import S3Store  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ObjectError(
            f"object store {url!r}: {error.name} is missing; pip install 'rung[s3]' brings it"
        ) from error
    return S3Store(url)

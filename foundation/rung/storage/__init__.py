"""Objects: checkpoints, code archives and whatever else is too large for the ledger."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from rung.events.errors import ObjectDamaged, ObjectError, ObjectMissing, ObjectUnavailable
from rung.storage.checkpoint.deduplication import delete_checkpoint, locate
from rung.storage.checkpoint.manifest import (
    FileEntry,
    Manifest,
    Provenance,
    StoredCheckpoint,
    check_file,
    checkpoint_prefix,
    read_manifest,
)
from rung.storage.checkpoint.orphans import sweep_unfinished
from rung.storage.checkpoint.transfer import (
    copy_checkpoint,
    copy_files,
    load_checkpoint,
    open_checkpoint,
)
from rung.storage.checkpoint.writer import Draft, store_checkpoint
from rung.storage.folder import FolderStore
from rung.storage.port import ObjectInfo, ObjectStore
from rung.storage.provisioning import inspect, prepare

__all__ = [
    "Draft",
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
    "check_file",
    "checkpoint_prefix",
    "copy_checkpoint",
    "copy_files",
    "delete_checkpoint",
    "inspect",
    "load_checkpoint",
    "locate",
    "open_checkpoint",
    "open_store",
    "prepare",
    "read_manifest",
    "store_checkpoint",
    "sweep_unfinished",
]


def open_store(url: str, *, within: str = "") -> ObjectStore:
    """Open the object store at an URL: `file:///srv/rung/objects`, or `s3://bucket/prefix`.

    Endpoint, credentials and all else about S3 are in the environment; see
    `rung.storage.s3.settings`. No server is asked for anything yet.

    Args:
        url: of the store.
        within: of a folder, the prefix of all that this process will write; empty: any.

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


def _open_s3(url: str) -> ObjectStore:
    try:
        from rung.storage.s3.store import S3Store  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ObjectError(
            f"object store {url!r}: {error.name} is missing; pip install 'rung[s3]' brings it"
        ) from error
    return S3Store(url)

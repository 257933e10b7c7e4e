"""Objects: checkpoints, code archives and whatever else is too large for the ledger."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from rung.events.errors import ObjectDamaged, ObjectError, ObjectMissing
from rung.objects.folder import FolderStore
from rung.objects.manifest import (
    FileEntry,
    Manifest,
    Provenance,
    StoredCheckpoint,
    checkpoint_prefix,
    delete_checkpoint,
    load_checkpoint,
    read_manifest,
    store_checkpoint,
)
from rung.objects.port import ObjectInfo, ObjectStore

__all__ = [
    "FileEntry",
    "FolderStore",
    "Manifest",
    "ObjectDamaged",
    "ObjectError",
    "ObjectInfo",
    "ObjectMissing",
    "ObjectStore",
    "Provenance",
    "StoredCheckpoint",
    "checkpoint_prefix",
    "delete_checkpoint",
    "load_checkpoint",
    "open_store",
    "read_manifest",
    "store_checkpoint",
]


def open_store(url: str) -> ObjectStore:
    """Open the object store at an URL such as `file:///srv/rung/objects`.

    Raises:
        ObjectError: the URL is of no known kind, or the store cannot be opened.
    """
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or not parts.path:
        raise ObjectError(f"object store {url!r}: known are URLs such as file:///srv/rung/objects")
    return FolderStore(Path(unquote(parts.path)))

"""The interface of object stores."""

from pathlib import Path
from typing import NamedTuple, Protocol


class ObjectInfo(NamedTuple):
    """One stored object."""

    name: str
    size_bytes: int


class ObjectStore(Protocol):
    """Objects by name: relative, `/`-separated, never leaving the store's root.

    Methods block; call them from a thread where an event loop runs.
    """

    @property
    def url(self) -> str:
        """The URL, for `rung.storage.open_store`: `file:///…`, `s3://…`."""
        ...

    @property
    def parallel(self) -> int:
        """How many objects to put or get at a time, from threads."""
        ...

    def area(self, name: str) -> "ObjectStore":
        """Return the store of the checkpoints of a storage area; itself for an empty name.

        It is closed with this one.

        Raises:
            ObjectError: no area can have this name, or it cannot be opened.
        """
        ...

    def put(self, name: str, source: Path) -> None:
        """Store a file's bytes under the name, durably and all or nothing."""
        ...

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes under the name, durably and all or nothing."""
        ...

    def get(self, name: str, target: Path) -> None:
        """Write the object's bytes to a file; its folder is created if needed.

        Raises:
            ObjectMissing: there is no such object.
        """
        ...

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return the object's bytes, or some of them; fewer where it ends.

        Raises:
            ObjectMissing: there is no such object.
        """
        ...

    def version(self, name: str) -> str:
        """Return a value that changes with the object's bytes, such as an ETag.

        Raises:
            ObjectMissing: there is no such object.
        """
        ...

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return the objects whose name begins with the prefix, sorted by name."""
        ...

    def delete(self, prefix: str) -> int:
        """Delete every object whose name begins with the prefix; return how many there were."""
        ...

    def presign(self, name: str, expires_s: float) -> str | None:
        """Return an URL by which the object can be read for a while; None if there is none."""
        ...

    def close(self) -> None:
        """Close it; calls in other threads end soon, with an error."""
        ...

"""What every object store can do."""

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
        """Where it is, in a form that `rung.storage.open_store` takes: `file:///…`, `s3://…`."""
        ...

    @property
    def parallel(self) -> int:
        """How many objects it is good to put or get at once, from threads."""
        ...

    def put(self, name: str, source: Path) -> None:
        """Store a file's bytes under the name, durably and all or nothing."""
        ...

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes under the name, durably and all or nothing."""
        ...

    def get(self, name: str, target: Path) -> None:
        """Write the object's bytes to a file; its folder is made where it is missing.

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
        """Return what changes whenever the object's bytes do, such as an ETag.

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
        """Return an URL under which anybody may read the object for a while; None if none can."""
        ...

    def close(self) -> None:
        """Let go of it; what waits for it in other threads ends soon, with an error."""
        ...

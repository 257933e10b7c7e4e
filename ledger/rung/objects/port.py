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
        """Where it is, in a form that `rung.objects.open_store` takes: `file:///…`."""
        ...

    def put(self, name: str, source: Path) -> None:
        """Store a file's bytes under the name, durably and all or nothing."""
        ...

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes under the name, durably and all or nothing."""
        ...

    def get(self, name: str, target: Path) -> None:
        """Write the object's bytes to a file.

        Raises:
            ObjectMissing: there is no such object.
        """
        ...

    def read(self, name: str) -> bytes:
        """Return the object's bytes.

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

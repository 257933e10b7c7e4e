"""An object store in memory."""

from bisect import bisect_left, insort
from pathlib import Path
from typing import Final

from rung.events.errors import ObjectMissing
from rung.storage import ObjectInfo


class MemoryStore:
    """Objects in memory; implements `rung.storage.ObjectStore`."""

    url: Final = "memory:"
    parallel: Final = 1

    def __init__(self) -> None:
        self._names: list[str] = []
        self._objects: dict[str, bytes] = {}
        self._areas: dict[str, MemoryStore] = {}

    def area(self, name: str) -> "MemoryStore":
        """Return the store of a storage area; itself for an empty name."""
        return self._areas.setdefault(name, MemoryStore()) if name else self

    def put(self, name: str, source: Path) -> None:
        """Store a file's bytes under the name."""
        self.put_bytes(name, source.read_bytes())

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes under the name."""
        if name not in self._objects:
            insort(self._names, name)
        self._objects[name] = data

    def get(self, name: str, target: Path) -> None:
        """Write the object's bytes to a file."""
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self.read(name))

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return the object's bytes, or some of them."""
        if name not in self._objects:
            raise ObjectMissing(f"there is no object {name}")
        return self._objects[name][offset : None if size is None else offset + size]

    def version(self, name: str) -> str:
        """Return what changes whenever the object's bytes do."""
        return str(hash(self.read(name)))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return the objects whose name begins with the prefix, sorted by name."""
        found = []
        for name in self._names[bisect_left(self._names, prefix) :]:
            if not name.startswith(prefix):
                break
            found.append(ObjectInfo(name, len(self._objects[name])))
        return found

    def delete(self, prefix: str) -> int:
        """Delete every object whose name begins with the prefix; return how many there were."""
        found = self.list(prefix)
        for each in found:
            del self._names[bisect_left(self._names, each.name)]
            del self._objects[each.name]
        return len(found)

    def presign(self, name: str, expires_s: float) -> str | None:  # noqa: ARG002 - nobody can
        """Return that no URL leads to an object."""
        return None

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""

"""An object store around another one that measures the duration of its operations."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rung.runtime.metrics import catalog
from rung.storage import ObjectInfo, ObjectStore


class ObservedStore:
    """Implements `rung.storage.port.ObjectStore` by another store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        """Where it is."""
        return self._store.url

    @property
    def parallel(self) -> int:
        """How many objects it is good to put or get at once."""
        return self._store.parallel

    def area(self, name: str) -> ObjectStore:
        """Return the store of a storage area; itself for an empty name."""
        return ObservedStore(self._store.area(name)) if name else self

    def put(self, name: str, source: Path) -> None:
        """Store a file's bytes under the name."""
        with _timed("put"):
            self._store.put(name, source)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes under the name."""
        with _timed("put"):
            self._store.put_bytes(name, data)

    def get(self, name: str, target: Path) -> None:
        """Write the object's bytes to a file."""
        with _timed("get"):
            self._store.get(name, target)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return the object's bytes, or some of them."""
        with _timed("read"):
            return self._store.read(name, offset, size)

    def version(self, name: str) -> str:
        """Return what changes whenever the object's bytes do."""
        with _timed("version"):
            return self._store.version(name)

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return the objects whose name begins with the prefix."""
        with _timed("list"):
            return self._store.list(prefix)

    def delete(self, prefix: str) -> int:
        """Delete every object whose name begins with the prefix."""
        with _timed("delete"):
            return self._store.delete(prefix)

    def presign(self, name: str, expires_s: float) -> str | None:
        """Return an URL under which anybody may read the object for a while."""
        return self._store.presign(name, expires_s)

    def close(self) -> None:
        """Let go of it."""
        self._store.close()


@contextmanager
def _timed(operation: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:  # what failed took its time, too
        catalog.OBJECTS_SECONDS.labels(operation).observe(time.perf_counter() - started)

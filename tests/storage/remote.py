"""A store whose objects are no files of this machine, that can be cut and interleaved anywhere."""

from collections.abc import Callable
from pathlib import Path

from rung.storage import FolderStore, ObjectInfo, ObjectStore, ObjectUnavailable


class Cut(ObjectUnavailable):
    """The process is killed here."""


class RemoteStore:
    """Another store with nothing but the port's methods; before each operation it calls a hook.

    Attributes:
        before: is called with the number of the operation, from 1.
        count: of the operations so far.
    """

    def __init__(self, folder: Path) -> None:
        self._store = FolderStore(folder)
        self.before: Callable[[int], None] = lambda _number: None
        self.count = 0

    @property
    def url(self) -> str:
        """Where it would be."""
        return "s3://remote"

    @property
    def parallel(self) -> int:
        """How many objects it is good to put or get at once."""
        return 1

    def area(self, name: str) -> ObjectStore:
        """Return the store of a storage area, without hooks."""
        return self._store.area(name) if name else self

    def put(self, name: str, source: Path) -> None:
        """Store a file's bytes under the name."""
        self._step()
        self._store.put(name, source)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes under the name."""
        self._step()
        self._store.put_bytes(name, data)

    def get(self, name: str, target: Path) -> None:
        """Write the object's bytes to a file."""
        self._step()
        self._store.get(name, target)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return the object's bytes, or some of them."""
        self._step()
        return self._store.read(name, offset, size)

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return the objects whose name begins with the prefix."""
        self._step()
        return self._store.list(prefix)

    def delete(self, prefix: str) -> int:
        """Delete every object whose name begins with the prefix; others may act in between."""
        self._step()
        found = self._store.list(prefix)
        self._step()
        for info in found:
            (self._store.root / info.name).unlink(missing_ok=True)
        return len(found)

    def version(self, name: str) -> str:
        """Return what changes whenever the object's bytes do."""
        self._step()
        return self._store.version(name)

    def presign(self, name: str, expires_s: float) -> None:
        """Nobody else can read it."""

    def close(self) -> None:
        """Nothing is held open."""

    def calm(self) -> int:
        """Have nothing happen any more; return how many operations there were since `when`."""
        self.before = lambda _number: None
        return self.count

    def when(self, number: int, act: Callable[[], object]) -> None:
        """Have something happen before the operation of that number, counted from now."""
        self.count = 0

        def before(current: int) -> None:
            if current == number:
                self.before = lambda _number: None
                act()

        self.before = before

    def _step(self) -> None:
        self.count += 1
        self.before(self.count)

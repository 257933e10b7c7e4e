"""Stores on which something happens to those who write."""

from pathlib import Path

from rung.storage import FolderStore, ObjectInfo


class Killed(BaseException):
    """The writer's process ended."""


class Mortal(FolderStore):
    """A store during whose use the process is killed, before or after something was stored."""

    def __init__(self, root: Path, puts: int, *, after: bool) -> None:
        super().__init__(root)
        self._puts = puts
        self._after = after

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes, or be killed."""
        self._puts -= 1
        if self._puts == 0 and not self._after:
            raise Killed
        super().put_bytes(name, data)
        if self._puts == 0:
            raise Killed


class Stale(FolderStore):
    """A store that shows one writer nothing of what was stored since it began to look."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._known = super().list("")

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return what was there when it was opened."""
        return [info for info in self._known if info.name.startswith(prefix)]

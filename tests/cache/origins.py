"""Folders to cache, and an origin that a test holds back."""

import threading
from collections.abc import Callable
from pathlib import Path

from rung.cache import Entry, FolderOrigin, Listing, Source
from rung.cache.partial_download import PartialDownload


def written(folder: Path, **files: str) -> FolderOrigin:
    """Write files (`a__b` is `a/b`) and return the origin of their folder."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return FolderOrigin(Source("train", str(folder)))


class GatedOrigin:
    """Brings a file when the test opens the gate; counts what it brought."""

    def __init__(self, origin: FolderOrigin, *, held_back: Callable[[str], bool]) -> None:
        self._origin = origin
        self._held_back = held_back
        self.gate = threading.Event()
        self.reached = threading.Event()
        self.brought: list[str] = []

    def list(self) -> Listing:
        """Return what the folder holds."""
        return self._origin.list()

    def bring(self, listing: Listing, entry: Entry, partial: PartialDownload) -> None:
        """Wait for the gate, then bring it."""
        if self._held_back(entry.name):
            self.reached.set()
            assert self.gate.wait(30)
        self.brought.append(entry.name)
        self._origin.bring(listing, entry, partial)

    def close(self) -> None:
        """Nothing is held."""


class CountingOrigin(GatedOrigin):
    """Holds nothing back."""

    def __init__(self, origin: FolderOrigin) -> None:
        super().__init__(origin, held_back=lambda _: False)

"""The cache's folder: who uses what, and what is evicted.

A user reserves all that it wants at once, or nothing: two users that each hold what the other
waits for cannot be. Room is made before anything is brought: the trees that were used least
recently go, never one that is used. A tree that is not filled yet counts as full.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rung.cache.blob_store import BlobStore
from rung.cache.errors import DataError, NoRoom
from rung.cache.fill import Fill
from rung.cache.listing import Listing
from rung.cache.log import log
from rung.cache.origin import Origin
from rung.cache.tree import Tree

_GIB: Final = 1024**3


class Held:
    """A reservation; nothing of it is evicted until it is closed."""

    def __init__(self, listings: Sequence[Listing], trees: list[Tree]) -> None:
        self.listings = list(listings)
        self.trees = trees
        self._locks = [tree.use() for tree in trees]

    @property
    def roots(self) -> list[Path]:
        """Where the files of each listing are, or will be."""
        pairs = zip(self.trees, self.listings, strict=True)
        return [tree.root(listing) for tree, listing in pairs]

    def close(self) -> None:
        """Use it no longer."""
        locks, self._locks = self._locks, []
        for lock in locks:
            os.utime(lock)
            os.close(lock)


class Cache:
    """A cache in a folder, perhaps shared with other processes of this machine."""

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        """Know it; `open` makes it.

        Args:
            folder: where it is; on a disk of this machine.
            limit_bytes: how much it may hold; None: half of what it has and what is free.
        """
        self.folder = folder
        self._limit = limit_bytes
        self._trees = folder / "trees"
        self._blob_store = BlobStore(folder)
        self._opened = False

    @property
    def limit_bytes(self) -> int:
        """How many bytes it may hold."""
        if self._limit is None:
            self._limit = (self._blob_store.size() + shutil.disk_usage(self.folder).free) // 2
        return self._limit

    def open(self) -> None:
        """Make the folder; the first call of a process clears up after those that died.

        Raises:
            DataError: the folder cannot be used.
        """
        if self._opened:
            return
        try:
            self._trees.mkdir(parents=True, exist_ok=True)
            with self._alone():
                shutil.rmtree(self.folder / "doomed", ignore_errors=True)
                if self._blob_store.open():
                    for tree in self._all():
                        tree.doubt()
                self._blob_store.forget_lost()
        except OSError as error:
            raise DataError(
                f"the data cache {self.folder} cannot be used: {error.strerror}"
            ) from error
        self._opened = True

    def reserve(self, listings: Sequence[Listing]) -> Held:
        """Return a claim on the files of some listings, whether they are here yet or not.

        Raises:
            NoRoom: live users hold so much that these would not fit.
            DataError: they would never fit.
        """
        self.open()
        trees = [Tree(self._trees / listing.key) for listing in listings]
        with self._alone():
            for tree, listing in zip(trees, listings, strict=True):
                if tree.complete and not all(map(tree.holds, listing.entries)):
                    log().warning(
                        "files in the data cache were changed; downloading them again",
                        tree=str(tree.folder),
                    )
                    tree.doubt()
            wanted = {
                listing.file_key(entry): entry.size
                for tree, listing in zip(trees, listings, strict=True)
                if not tree.complete
                for entry in listing.entries
            }
            if not all(self._blob_store.has(key, size) for key, size in wanted.items()):
                self._make_room(wanted, listings)
            for tree, listing in zip(trees, listings, strict=True):
                tree.prepare(listing)
            return Held(listings, trees)

    def fill(self, held: Held, number: int, origin: Origin) -> Fill:
        """Return what brings the files of one of the reserved listings."""
        return Fill(self._blob_store, held.trees[number], held.listings[number], origin)

    def size(self) -> int:
        """Return how many bytes it holds."""
        return self._blob_store.size()

    def _make_room(self, wanted: Mapping[str, int], listings: Sequence[Listing]) -> None:
        # A script that brings no data need not import what the loops of services need.
        from rung.runtime.health.disk import reserve_of  # noqa: PLC0415

        disk = shutil.disk_usage(self.folder)
        reserve = reserve_of(disk.total)  # with less free than that, its agents are suspended
        limit = min(self.limit_bytes, disk.total - reserve)
        total = sum({listing.key: listing.size for listing in listings}.values())
        if total > limit:
            raise DataError(
                f"the data are {_gib(total)}, and the cache may hold {_gib(limit)}; raise"
                " --cache-bytes of the agent, or name fewer data"
            )
        own = {listing.key for listing in listings}
        others = [tree for tree in self._all() if tree.folder.name not in own]
        promised = {key: size for tree in others for key, size in self._promised(tree)}
        keys = wanted.keys() | promised.keys()
        held, missing, coming = self._blob_store.count(
            self._lacking(wanted),
            self._lacking({key: size for key, size in promised.items() if key not in wanted}),
        )
        if not missing:
            return
        allowed, spare = limit - held, shutil.disk_usage(self.folder).free - reserve
        room = min(allowed, spare) - coming
        if room < missing:
            room += self._blob_store.sweep(keys)
        for tree in sorted(others, key=lambda tree: (tree.used_ns, tree.folder.name)):
            if room >= missing:
                return
            if not tree.used():
                self._evict(tree)
                room += self._blob_store.sweep(keys)
        if room < missing:
            text = f"the data cache has no room for {_gib(missing)}: "
            left = _gib(max(0, room))
            raise NoRoom(
                f"{text}its disk has {left} left; it waits until a live trial ends (or free space"
                f" on the disk of {self.folder})"
                if spare < allowed
                else f"{text}of {_gib(limit)}, live trials use all but {left}; it waits until one"
                " ends (or raise --cache-bytes)"
            )

    def _promised(self, tree: Tree) -> Iterator[tuple[str, int]]:
        """Yield the versions of files that still come into a tree that is used."""
        listing = None if tree.complete or not tree.used() else tree.listing()
        if listing is None:
            return
        for entry in listing.entries:
            if not tree.holds(entry):
                yield listing.file_key(entry), entry.size

    def _lacking(self, files: Mapping[str, int]) -> dict[str, int]:
        """Return those versions of files that have to be brought."""
        return {key: size for key, size in files.items() if not self._blob_store.has(key, size)}

    def _evict(self, tree: Tree) -> None:
        log().info("evicting data", tree=tree.folder.name)
        doomed = self.folder / "doomed"
        doomed.mkdir(exist_ok=True)
        moved = tree.folder.rename(doomed / tree.folder.name)
        shutil.rmtree(moved, ignore_errors=True)

    def _all(self) -> list[Tree]:
        return [Tree(folder) for folder in sorted(self._trees.iterdir())]

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only one who reserves or evicts; that is never for long."""
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB" if size >= _GIB // 100 else f"{size:,} bytes"

"""Integrity check of a checkpoint's files before, or while, they are sent.

A file is compared with the digest of its manifest before its first byte is sent, so that damage is
answered with a problem that names it. What was checked is remembered by the version of the object,
which changes with its bytes, and is not digested again; clients that ask meanwhile wait for one
check. A large file in a remote store would be fetched twice: it is digested while it is sent, and
its last bytes are held back until the digest is right, so that the announced length is never
reached by a damaged one.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from functools import partial
from typing import Final, NamedTuple

from rung.storage import FileEntry, ObjectDamaged, ObjectStore
from rung.storage.checkpoint.digest import Hasher, hasher

CHUNK: Final = 4 * 1024 * 1024
FETCHED_FIRST: Final = 16 * 1024 * 1024
"""Largest file of a remote store that is checked before its first byte is sent, in bytes."""
_KNOWN_MAX: Final = 100_000
_AT_ONCE: Final = 2
"""Files that are checked at the same time: it takes a core each."""


class CheckedFile(NamedTuple):
    """A file of a checkpoint, and where it lies."""

    checkpoint_id: str
    name: str
    area: str
    """The storage area that the object lies in; empty: none."""
    object_name: str
    entry: FileEntry

    def damaged(self, how: str) -> ObjectDamaged:
        """Return the error of this file."""
        return ObjectDamaged(f"checkpoint {self.checkpoint_id}: {self.name} {how}")


class Integrity:
    """Checks the files of one object store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._local = store.url.startswith("file:")
        self._known: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        """Object, version, and the digest that it was found to have."""
        self._checks: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def check(self, file: CheckedFile, *, whole: bool) -> None:
        """Compare a file with its manifest, unless that can be done while it is sent.

        Args:
            file: of a checkpoint.
            whole: whether all of it is to be sent.

        Raises:
            ObjectDamaged: it differs, or is missing.
            ObjectUnavailable: the store does not answer now.
        """
        later = whole and not self._local and file.entry.size_bytes > FETCHED_FIRST
        if not later:
            await self._check(file)

    async def read(self, file: CheckedFile, begin: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes of a file; the last ones only if none were damaged or replaced.

        Args:
            file: checked by `check`.
            begin: position of the first byte.
            end: position behind the last one.

        Raises:
            ObjectDamaged: it is not what the manifest says.
            ObjectError: it cannot be read.
        """
        key = await self._key(file)
        digest = None if key in self._known else _hasher_of(file.entry)
        whole = (begin, end) == (0, file.entry.size_bytes)
        if digest is not None and not whole:  # replaced since it was checked
            raise file.damaged("was replaced while it was sent")
        held = b""
        while begin < end:
            size = min(CHUNK, end - begin)
            store = self._store.area(file.area)
            data = await asyncio.to_thread(store.read, file.object_name, begin, size)
            if len(data) != size:
                raise file.damaged(f"has {begin + len(data)} bytes, not {file.entry.size_bytes}")
            if digest is not None:
                await asyncio.to_thread(digest.update, memoryview(data))
            if held:
                yield held
            held = data
            begin += size
        if digest is not None:
            self._compare(file, digest.hexdigest())
        if await self._key(file) != key:
            raise file.damaged("was replaced while it was sent")
        self._remember(key)
        if held:
            yield held

    async def _check(self, file: CheckedFile) -> None:
        key = await self._key(file)
        if key in self._known:
            self._known.move_to_end(key)
            return
        check = self._checks.get(key)
        if check is None:
            check = self._checks[key] = asyncio.create_task(self._digest(file, key))
            check.add_done_callback(partial(self._ended, key))
        await asyncio.shield(check)  # a client that leaves does not end it for others

    def _ended(self, key: tuple[str, str, str], check: asyncio.Task[None]) -> None:
        del self._checks[key]
        if not check.cancelled():
            check.exception()  # raised by those that wait for it, if any does

    async def _digest(self, file: CheckedFile, key: tuple[str, str, str]) -> None:
        digest = _hasher_of(file.entry)
        size = 0
        store = self._store.area(file.area)
        async with self._room:
            while data := await asyncio.to_thread(store.read, file.object_name, size, CHUNK):
                size += len(data)
                await asyncio.to_thread(digest.update, memoryview(data))
                if size > file.entry.size_bytes:
                    break
        if size != file.entry.size_bytes:
            raise file.damaged(f"has {size} bytes, not {file.entry.size_bytes}")
        self._compare(file, digest.hexdigest())
        if await self._key(file) != key:
            raise file.damaged("was replaced while it was read")
        self._remember(key)

    async def _key(self, file: CheckedFile) -> tuple[str, str, str]:
        """Return the key under which a successful check is remembered."""
        store = self._store.area(file.area)
        version = await asyncio.to_thread(store.version, file.object_name)
        return file.object_name, version, file.entry.digest

    def _compare(self, file: CheckedFile, found: str) -> None:
        if found != file.entry.digest:
            wanted = file.entry.digest
            raise file.damaged(f"has the digest {found[:12]}… instead of {wanted[:12]}…")

    def _remember(self, key: tuple[str, str, str]) -> None:
        self._known[key] = None
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)


def _hasher_of(entry: FileEntry) -> Hasher:
    """Return a hasher as for the digest of a file; that of a manifest is SHA-256."""
    return hashlib.sha256() if entry.sha256 else hasher()

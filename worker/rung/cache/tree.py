"""One listing in the cache: a folder whose files are links to what the cache holds.

trees/<key>/listing     what belongs here
trees/<key>/use         locked, shared, by each user while it lives; its time: the last use
trees/<key>/fill        locked by the one that fills it
trees/<key>/files/…     the files that are here, each whole and verified when it appears
trees/<key>/complete    all of them are here
trees/<key>/failure     why the last filler gave up, for those who wait for files
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rung.cache.errors import DataUnavailable
from rung.cache.listing import Entry, Listing, decode, encode

MODE: Final = 0o444
STAMP_S: Final = 946_684_800
"""When every file in the cache was last changed: one that was changed since has another time."""
_TURN_S: Final = 0.1


class Tree:
    """A listing's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / "files"
        self._complete = folder / "complete"
        self._failure = folder / "failure"

    @property
    def complete(self) -> bool:
        """Whether all files are here."""
        return self._complete.exists()

    @property
    def failure(self) -> str:
        """Why the last filler gave up; empty if it did not."""
        with contextlib.suppress(FileNotFoundError):
            return self._failure.read_text(encoding="utf-8")
        return ""

    @property
    def used_ns(self) -> int:
        """When it was used last."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "use").stat().st_mtime_ns
        return 0

    def prepare(self, listing: Listing) -> None:
        """Make the folder."""
        self.files.mkdir(parents=True, exist_ok=True)
        path = self.folder / "listing"
        if not path.exists():
            draft = self.folder / "listing.new"
            draft.write_bytes(encode(listing))
            draft.rename(path)

    def listing(self) -> Listing | None:
        """Return what belongs here; None if it was never written down."""
        try:
            return decode((self.folder / "listing").read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def root(self, listing: Listing) -> Path:
        """Return the path that the source has here."""
        return self.files / listing.entries[0].name if listing.single else self.files

    def use(self) -> int:
        """Keep it from being evicted while the returned descriptor is open."""
        lock = os.open(self.folder / "use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(lock)
        return lock

    def used(self) -> bool:
        """Whether anybody uses it, or fills it."""
        return any(_held(self.folder / name) for name in ("use", "fill"))

    @contextlib.contextmanager
    def filling(self, stop: threading.Event) -> Iterator[None]:
        """Be the one that fills it; wait for the one that does.

        Raises:
            DataUnavailable: told to stop.
        """
        lock = os.open(self.folder / "fill", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _locked(lock):
                if stop.wait(_TURN_S):
                    raise DataUnavailable("stopped while another process fills the cache")
            yield
        finally:
            os.close(lock)

    def holds(self, entry: Entry) -> bool:
        """Whether a file is here, as it was when it came."""
        return intact(self.files / entry.name, entry.size)

    def finish(self) -> None:
        """Note that all files are here."""
        self._failure.unlink(missing_ok=True)
        self._complete.touch()

    def doubt(self) -> None:
        """Have all files looked at before it counts as complete again."""
        self._complete.unlink(missing_ok=True)

    def fail(self, reason: str) -> None:
        """Tell those who wait for files that none will come; an empty reason: they may again."""
        if not reason:
            self._failure.unlink(missing_ok=True)
            return
        draft = self.folder / "failure.new"
        draft.write_text(reason, encoding="utf-8")
        draft.rename(self._failure)


def intact(path: Path, size: int) -> bool:
    """Whether a file has its size, and was not changed since it came."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_size == size and status.st_mtime_ns == STAMP_S * 1_000_000_000


def _held(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _locked(lock)
    finally:
        os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

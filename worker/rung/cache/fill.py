"""Fill: downloads the files of a tree; each appears in it whole and verified.

A file that another tree has already is linked; others are brought, several at once, in the order
of the listing. What was brought has the size that was listed, and the MD5, where the origin told
it. (An ETag may look like an MD5 and be none, where a bucket encrypts by itself: if a file comes
twice with the same content and still differs from its ETag, the ETag is not looked at any more.)
"""

import contextlib
import threading
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from rung.cache.blob_store import BlobStore
from rung.cache.errors import DataChanged, DataError, DataUnavailable
from rung.cache.listing import Entry, Listing
from rung.cache.origin import Origin, digests_of
from rung.cache.partial_download import PartialDownload
from rung.cache.tree import Tree

_AT_ONCE: Final = 8


class Fill:
    """Brings what is missing of a listing."""

    def __init__(
        self, blob_store: BlobStore, tree: Tree, listing: Listing, origin: Origin
    ) -> None:
        self._blob_store = blob_store
        self._tree = tree
        self._listing = listing
        self._origin = origin
        self._tells_md5 = True
        self.stop = threading.Event()
        """Set it, and the filling ends soon."""

    def run(self) -> int:
        """Return once all files are there: how many of them had to be brought.

        Raises:
            DataUnavailable: the origin does not answer, or it was told to stop; what has come
                stays for the next filler.
            DataChanged: a file is no longer what was listed.
            DataError: it cannot be filled.
        """
        try:
            with self._tree.filling(self.stop):
                if self._tree.complete:
                    return 0
                self._tree.fail("")
                brought = self._all()
                self._tree.finish()
                return brought
        except DataError as error:
            if not error.retriable or isinstance(error, DataChanged):
                self._tree.fail(str(error))
            raise
        except OSError as error:
            reason = f"the data cache {self._tree.folder} cannot be written: {error.strerror}"
            with contextlib.suppress(OSError):  # the disk may have no room for that either
                self._tree.fail(reason)
            raise DataError(reason) from error

    def _all(self) -> int:
        entries = iter(self._listing.entries)
        running: set[Future[bool]] = set()
        brought = 0
        with ThreadPoolExecutor(_AT_ONCE, "filling") as threads:
            try:
                for entry in entries:
                    running.add(threads.submit(self._one, entry))
                    if len(running) >= 4 * _AT_ONCE:
                        done, running = wait(running, return_when=FIRST_EXCEPTION, timeout=0.0)
                        if not done:
                            done, running = wait(running, return_when="FIRST_COMPLETED")
                        brought += sum(future.result() for future in done)
                done, running = wait(running, return_when=FIRST_EXCEPTION)
                brought += sum(future.result() for future in done)
            finally:
                for future in running:
                    future.cancel()
        return brought

    def _one(self, entry: Entry) -> bool:
        """Have one file in the tree; return whether it had to be brought."""
        key = self._listing.file_key(entry)
        target = self._tree.files / entry.name
        if self._linked(key, entry, target):
            return False
        with self._blob_store.partial(key, entry.size) as partial:
            if self._linked(key, entry, target):  # another process was at it
                partial.discard()
                return False
            self._blob_store.keep(partial, key, self._bring(entry, partial), target)
        return True

    def _linked(self, key: str, entry: Entry, target: Path) -> bool:
        if self.stop.is_set():
            raise DataUnavailable("stopped")
        blob = self._blob_store.find(key, entry.size)
        if blob is None:
            return False
        return (target.exists() and target.samefile(blob)) or self._blob_store.link(blob, target)

    def _bring(self, entry: Entry, partial: PartialDownload) -> str:
        """Bring a file's bytes and return their digest."""
        earlier = ""
        while True:
            self._origin.bring(self._listing, entry, partial)
            if not partial.whole():
                partial.restart()
                raise DataUnavailable(f"{entry.name} did not arrive whole")
            digest, md5 = digests_of(partial.path, md5=self._tells_md5 and bool(entry.md5))
            if md5 in {"", entry.md5}:
                return digest
            if digest == earlier:
                self._tells_md5 = False
                return digest
            if earlier:
                partial.restart()
                raise DataUnavailable(f"{entry.name} arrived damaged, each time in another way")
            earlier = digest
            partial.restart()

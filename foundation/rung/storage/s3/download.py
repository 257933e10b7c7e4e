"""Download of objects: the first range tells the size, the others are fetched in parallel.

A range whose connection breaks resumes there. All ranges are of one version of the object: if it
is replaced meanwhile, the server refuses (`If-Match`).
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from urllib3.response import BaseHTTPResponse

from rung.events.errors import ObjectError
from rung.storage.no_follow import new_file
from rung.storage.s3.client import Bucket
from rung.storage.s3.errors import OutOfRange, Replaced

_CHUNK: Final = 1 << 20
_ATTEMPTS: Final = 3
"""How often to read an object that is replaced meanwhile."""


def get_file(bucket: Bucket, doing: str, key: str, target: Path) -> None:
    """Write an object's bytes to a file, which does not exist if this fails.

    Raises:
        ObjectMissing: there is no such object.
        ObjectError: the store refused, or did not answer.
        OSError: the file cannot be written.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _Download(bucket, doing, key, target).get()
        except Replaced:
            if attempt == _ATTEMPTS:
                raise
        else:
            return


def read_range(  # noqa: PLR0913 - parts of a request
    bucket: Bucket, doing: str, key: str, offset: int, size: int | None, *, etag: str = ""
) -> bytes:
    """Return some of an object's bytes; fewer where it ends.

    Args:
        bucket: of the object.
        doing: for errors, as in `Bucket.attempt`.
        key: of the object.
        offset: of the first byte.
        size: in bytes; None: to the end.
        etag: of the version to read, in quotes as in HTTP; empty: any.

    Raises:
        ObjectMissing: there is no such object.
        Replaced: it has another version now.
        ObjectError: the store refused, or did not answer.
    """
    if size == 0:
        return b""
    found = bytearray()

    def take(chunk: bytes) -> None:
        found.extend(chunk)

    with contextlib.suppress(OutOfRange):
        _Range(bucket, doing, key, take).get(offset, size, etag)
    return bytes(found)


class _Range:
    """Download of a range, whose bytes go to `take`."""

    def __init__(
        self, bucket: Bucket, doing: str, key: str, take: Callable[[bytes], None]
    ) -> None:
        self._bucket = bucket
        self._doing = doing
        self._key = key
        self._take = take
        self._taken = 0
        self.etag = ""
        self.total: int | None = None
        """The object's size, if the server tells it."""

    def get(self, offset: int, size: int | None, etag: str = "") -> int:
        """Fetch the bytes; return how many there were."""
        self.etag = etag
        self._bucket.attempt(self._doing, lambda: self._resume(offset, size))
        return self._taken

    def _resume(self, offset: int, size: int | None) -> None:
        """Fetch what is left after an earlier attempt."""
        left = None if size is None else size - self._taken
        if left == 0:
            return
        with _closed(self._open(offset + self._taken, left)) as response:
            self.etag = self.etag or response.headers.get("ETag", "")
            _, _, total = response.headers.get("Content-Range", "").rpartition("/")
            self.total = int(total) if total.isdecimal() else None
            for chunk in response.stream(_CHUNK):
                self._take(chunk)
                self._taken += len(chunk)

    def _open(self, offset: int, size: int | None) -> BaseHTTPResponse:
        headers = {"If-Match": self.etag} if self.etag else {}
        return self._bucket.client.get_object(
            self._bucket.name,
            self._key,
            offset,
            size or 0,
            request_headers={**headers},
            ssec=self._bucket.customer_key(),
        )


class _Download:
    """Download of one object into a file."""

    def __init__(self, bucket: Bucket, doing: str, key: str, target: Path) -> None:
        self._bucket = bucket
        self._doing = doing
        self._key = key
        self._target = target
        self._file = -1

    def get(self) -> None:
        """Write the file; remove it if that fails."""
        try:
            self._get()
        except BaseException:
            if self._file >= 0:
                self._target.unlink(missing_ok=True)
            raise
        finally:
            if self._file >= 0:
                os.close(self._file)

    def _get(self) -> None:
        part = self._bucket.settings.part_bytes
        first = _Range(self._bucket, self._doing, self._key, self._writer(0))
        try:
            taken = first.get(0, part)
        except OutOfRange:  # an empty object has no first byte
            self._open()
            return
        self._open()
        total = taken if first.total is None else first.total

        def get(offset: int) -> None:
            rest = _Range(self._bucket, self._doing, self._key, self._writer(offset))
            rest.get(offset, min(part, total - offset), first.etag)

        self._bucket.in_parallel(self._doing, get, range(taken, total, part))
        if (found := os.fstat(self._file).st_size) != total:
            raise ObjectError(f"{self._doing}: {found} of {total} bytes arrived")

    def _writer(self, offset: int) -> Callable[[bytes], None]:
        at = offset

        def write(chunk: bytes) -> None:
            nonlocal at
            file = self._open()
            view = memoryview(chunk)
            while view:
                written = os.pwrite(file, view, at)
                view, at = view[written:], at + written

        return write

    def _open(self) -> int:
        """Return the file, which is created at the first write."""
        if self._file < 0:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._file = new_file(self._target)
        return self._file


@contextlib.contextmanager
def _closed(response: BaseHTTPResponse) -> Iterator[BaseHTTPResponse]:
    """Release the connection if the body was read to its end, else close it."""
    try:
        yield response
    except BaseException:
        response.close()
        raise
    finally:
        response.release_conn()

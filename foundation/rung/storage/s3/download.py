"""An object becomes a file: the first range tells how large it is, the others travel at once.

A range that breaks off goes on where it broke. All ranges are of one version of the object:
should another take its place meanwhile, the server says so and nothing is mixed.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from urllib3.response import BaseHTTPResponse

from rung.events.errors import ObjectError
from rung.storage.no_follow import new_file
from rung.storage.s3.client import Wire
from rung.storage.s3.errors import OutOfRange, Replaced

_CHUNK: Final = 1 << 20
_AGAIN: Final = 3
"""How often an object that is replaced while it is read is read anew."""


def get_file(wire: Wire, doing: str, key: str, target: Path) -> None:
    """Write an object's bytes to a file; there is none if this fails.

    Raises:
        ObjectMissing: there is no such object.
        ObjectError: the store refused, or did not answer.
        OSError: the file cannot be written.
    """
    for attempt in range(1, _AGAIN + 1):
        try:
            _Download(wire, doing, key, target).get()
        except Replaced:
            if attempt == _AGAIN:
                raise
        else:
            return


def read_range(  # noqa: PLR0913 - what a request says
    wire: Wire, doing: str, key: str, offset: int, size: int | None, *, etag: str = ""
) -> bytes:
    """Return some of an object's bytes; fewer where it ends.

    Args:
        wire: its bucket.
        doing: what a failure prevents.
        key: its key.
        offset: where to begin.
        size: how many bytes; None: to its end.
        etag: of the one version to read, in quotes as HTTP has it; empty: any.

    Raises:
        ObjectMissing: there is no such object.
        Replaced: it is another version now.
        ObjectError: the store refused, or did not answer.
    """
    if size == 0:
        return b""
    found = bytearray()

    def take(chunk: bytes) -> None:
        found.extend(chunk)

    with contextlib.suppress(OutOfRange):
        _Range(wire, doing, key, take).get(offset, size, etag)
    return bytes(found)


class _Range:
    """Some of an object's bytes, on their way to whoever takes them."""

    def __init__(self, wire: Wire, doing: str, key: str, take: Callable[[bytes], None]) -> None:
        self._wire = wire
        self._doing = doing
        self._key = key
        self._take = take
        self._taken = 0
        self.etag = ""
        self.total: int | None = None
        """The object's size, if the server told it."""

    def get(self, offset: int, size: int | None, etag: str = "") -> int:
        """Take the bytes; return how many there were."""
        self.etag = etag
        self._wire.attempt(self._doing, lambda: self._go_on(offset, size))
        return self._taken

    def _go_on(self, offset: int, size: int | None) -> None:
        """Take what an earlier attempt did not."""
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
        return self._wire.client.get_object(
            self._wire.bucket,
            self._key,
            offset,
            size or 0,
            request_headers={**headers},
            ssec=self._wire.customer_key(),
        )


class _Download:
    """One object on its way into a file."""

    def __init__(self, wire: Wire, doing: str, key: str, target: Path) -> None:
        self._wire = wire
        self._doing = doing
        self._key = key
        self._target = target
        self._file = -1

    def get(self) -> None:
        """Write the file; none is left if that fails."""
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
        part = self._wire.settings.part_bytes
        first = _Range(self._wire, self._doing, self._key, self._writer(0))
        try:
            taken = first.get(0, part)
        except OutOfRange:  # an empty object has no first byte
            self._open()
            return
        self._open()
        total = taken if first.total is None else first.total

        def get(offset: int) -> None:
            rest = _Range(self._wire, self._doing, self._key, self._writer(offset))
            rest.get(offset, min(part, total - offset), first.etag)

        self._wire.side_by_side(self._doing, get, range(taken, total, part))
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
        """Return the file, which is made once there is something to write."""
        if self._file < 0:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._file = new_file(self._target)
        return self._file


@contextlib.contextmanager
def _closed(response: BaseHTTPResponse) -> Iterator[BaseHTTPResponse]:
    """Give the connection back when the body was read to its end, else close it."""
    try:
        yield response
    except BaseException:
        response.close()
        raise
    finally:
        response.release_conn()

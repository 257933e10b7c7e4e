"""A file becomes an object: in one request, or in parts of which several travel at once.

    small       one request
    large       begin, parts, complete: the object is there when the last request is answered

An upload that a crash or an outage cut is found again by the object's name: parts whose digests
are those of the file's bytes stay, the others are sent. Uploads with other bytes are left alone,
for somebody may be writing them; `rung.storage.prepare` has the server drop them days later.

Each part is checked by the server as it arrives (MD5), and by us against the ETag that it
answers; the whole by the ETag made of the parts'. Where the keys that encrypt are not the
server's own, ETags tell nothing, and a cut upload begins anew.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from rung.events.errors import ObjectError, ObjectUnavailable
from rung.storage.s3.client import Digest, Wire
from rung.storage.s3.errors import UploadGone
from rung.storage.s3.settings import MIB

_PARTS_MAX: Final = 10_000
_BEGINNINGS: Final = 3
"""How often an upload is begun anew when the server has forgotten it."""
_MADE_OF_PARTS: Final = re.compile(r"[0-9a-f]{32}-[0-9]+")


def put_whole(wire: Wire, doing: str, key: str, data: bytes) -> None:
    """Write an object in one request.

    Raises:
        ObjectError: the store refused.
    """
    digest = Digest(data)
    etag = wire.attempt(doing, partial(wire.put, key, data, digest))
    _compare(wire, doing, digest.etag, etag)


def put_file(wire: Wire, doing: str, key: str, source: Path) -> None:
    """Return when the object is there, whole.

    Raises:
        ObjectError: the store refused, or the file changed meanwhile.
        ObjectUnavailable: it did not answer; the same call later goes on with the parts it has.
        OSError: the file cannot be read.
    """
    with source.open("rb") as opened:
        before = os.fstat(opened.fileno())
        if before.st_size <= wire.settings.part_bytes:
            put_whole(wire, doing, key, opened.read())
        else:
            _Parts(wire, doing, key, opened.fileno(), before.st_size).put()
        after = os.fstat(opened.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ObjectError(f"{doing}: the file changed meanwhile")


class _Part(NamedTuple):
    number: int
    offset: int
    size: int


class _Parts:
    """A large file on its way."""

    def __init__(self, wire: Wire, doing: str, key: str, file: int, size: int) -> None:
        self._wire = wire
        self._doing = doing
        self._key = key
        self._file = file
        self._parts = list(_divide(size, wire.settings.part_bytes))

    def put(self) -> None:
        """Write the object, with what an earlier attempt has sent already."""
        for beginning in range(1, _BEGINNINGS + 1):
            if self._is_there():
                return
            try:
                self._put_once()
            except UploadGone:
                if beginning == _BEGINNINGS:
                    raise
            else:
                return

    def _is_there(self) -> bool:
        """Whether an earlier attempt got to the end, although it may not have heard of it."""
        if not self._wire.tells_digests:
            return False
        etag = self._wire.attempt(self._doing, partial(self._wire.etag, self._key))
        if not etag.endswith(f"-{len(self._parts)}"):
            return False

        def digest(part: _Part) -> str:
            return Digest(self._read(part)).etag

        return etag == _whole_of(self._wire.side_by_side(self._doing, digest, self._parts))

    def _put_once(self) -> None:
        upload, etags = self._cut_upload()
        if not upload:
            begin = partial(self._wire.begin_upload, self._key)
            upload = self._wire.attempt(self._doing, begin)
        try:
            etags |= self._send(upload, [it for it in self._parts if it.number not in etags])
            self._complete(upload, [etags[part.number] for part in self._parts])
        except (ObjectUnavailable, UploadGone):
            raise  # what is there stays there: the next attempt goes on with it
        except ObjectError:
            with contextlib.suppress(ObjectError):
                self._wire.attempt(
                    self._doing, partial(self._wire.abort_upload, self._key, upload)
                )
            raise

    def _cut_upload(self) -> tuple[str, dict[int, str]]:
        """Return an upload of these very bytes that was cut, with the ETags of its parts."""
        if self._wire.tells_digests:
            begun = self._wire.attempt(self._doing, partial(self._wire.uploads, self._key))
            for key, upload in begun:
                if key == self._key and (etags := self._matching(upload)):
                    return upload, etags
        return "", {}

    def _matching(self, upload: str) -> dict[int, str]:
        """Return the ETags of an upload's parts if each of them is one of the file's."""
        try:
            there = self._wire.attempt(self._doing, partial(self._wire.parts, self._key, upload))
        except UploadGone:
            return {}
        for part in there:
            if part.part_number > len(self._parts):
                return {}
            own = self._parts[part.part_number - 1]
            if part.size != own.size or Digest(self._read(own)).etag != part.etag:
                return {}
        return {part.part_number: part.etag for part in there}

    def _send(self, upload: str, parts: list[_Part]) -> dict[int, str]:
        """Send parts, several at once; return their ETags by number."""
        etags = self._wire.side_by_side(self._doing, partial(self._send_part, upload), parts)
        return {part.number: etag for part, etag in zip(parts, etags, strict=True)}

    def _send_part(self, upload: str, part: _Part) -> str:
        data = self._read(part)
        digest = Digest(data)
        send = partial(self._wire.put_part, self._key, upload, part.number, data, digest)
        etag = self._wire.attempt(self._doing, send)
        _compare(self._wire, self._doing, digest.etag, etag)
        return etag

    def _complete(self, upload: str, etags: list[str]) -> None:
        complete = partial(self._wire.complete_upload, self._key, upload, etags)
        etag = self._wire.attempt(self._doing, complete)
        if _MADE_OF_PARTS.fullmatch(etag):
            _compare(self._wire, self._doing, _whole_of(etags), etag)

    def _read(self, part: _Part) -> bytes:
        """Return the file's bytes of a part; fewer if it was cut meanwhile."""
        return os.pread(self._file, part.size, part.offset)


def _divide(size: int, wanted: int) -> Iterator[_Part]:
    """Cut a file into parts of the size wanted, or so large that there are not too many."""
    least = -(-size // _PARTS_MAX)
    part_bytes = max(wanted, -(-least // MIB) * MIB)
    for number, offset in enumerate(range(0, size, part_bytes), start=1):
        yield _Part(number, offset, min(part_bytes, size - offset))


def _whole_of(etags: list[str]) -> str:
    """Return the ETag of an object that is made of parts with these ETags."""
    try:
        joined = b"".join(bytes.fromhex(etag) for etag in etags)
    except ValueError:
        return ""
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(etags)}"


def _compare(wire: Wire, doing: str, sent: str, arrived: str) -> None:
    """Check the digest that the server found, where it tells it.

    Raises:
        ObjectUnavailable: it differs; what was sent is whole, and may be sent again.
    """
    if wire.tells_digests and arrived != sent:
        raise ObjectUnavailable(f"{doing}: what arrived has the digest {arrived}, not {sent}")

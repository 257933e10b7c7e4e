"""Upload of files: in one request, or in parts, several at a time.

The object exists once the last request is answered. An upload that a crash or an outage cut is
found again by the object's name: parts whose digests are those of the file are kept, the others
are sent. Uploads with other bytes are left alone, as another process may be writing them; the
bucket's lifecycle rule aborts them days later.

The server checks the MD5 of each part; here it is compared with the ETag in the answer, and the
ETag of the object with the parts'. With encryption by other keys than the server's, ETags are no
digests, and a cut upload begins anew.
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
from rung.storage.s3.client import Bucket, Digest
from rung.storage.s3.errors import UploadGone
from rung.storage.s3.settings import MIB

_PARTS_MAX: Final = 10_000
_UPLOADS_MAX: Final = 3
"""How often an upload is begun when the server no longer knows it."""
_ETAG_OF_PARTS: Final = re.compile(r"[0-9a-f]{32}-[0-9]+")


def put_whole(bucket: Bucket, doing: str, key: str, data: bytes) -> None:
    """Write an object in one request.

    Raises:
        ObjectError: the store refused.
    """
    digest = Digest(data)
    etag = bucket.attempt(doing, partial(bucket.put, key, data, digest))
    _compare(bucket, doing, digest.etag, etag)


def put_file(bucket: Bucket, doing: str, key: str, source: Path) -> None:
    """Write a file to an object.

    Raises:
        ObjectError: the store refused, or the file changed meanwhile.
        ObjectUnavailable: it did not answer; the same call later resumes with the parts it has.
        OSError: the file cannot be read.
    """
    with source.open("rb") as opened:
        before = os.fstat(opened.fileno())
        if before.st_size <= bucket.settings.part_bytes:
            put_whole(bucket, doing, key, opened.read())
        else:
            _Parts(bucket, doing, key, opened.fileno(), before.st_size).put()
        after = os.fstat(opened.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ObjectError(f"{doing}: the file changed meanwhile")


class _Part(NamedTuple):
    number: int
    offset: int
    size: int


class _Parts:
    """Upload of a large file in parts."""

    def __init__(self, bucket: Bucket, doing: str, key: str, file: int, size: int) -> None:
        self._bucket = bucket
        self._doing = doing
        self._key = key
        self._file = file
        self._parts = list(_divide(size, bucket.settings.part_bytes))

    def put(self) -> None:
        """Write the object, reusing parts that an earlier attempt sent."""
        for upload in range(1, _UPLOADS_MAX + 1):
            if self._is_there():
                return
            try:
                self._put_once()
            except UploadGone:
                if upload == _UPLOADS_MAX:
                    raise
            else:
                return

    def _is_there(self) -> bool:
        """Return whether an earlier attempt completed the object."""
        if not self._bucket.tells_digests:
            return False
        etag = self._bucket.attempt(self._doing, partial(self._bucket.etag, self._key))
        if not etag.endswith(f"-{len(self._parts)}"):
            return False

        def digest(part: _Part) -> str:
            return Digest(self._read(part)).etag

        return etag == _etag_of(self._bucket.in_parallel(self._doing, digest, self._parts))

    def _put_once(self) -> None:
        upload, etags = self._cut_upload()
        if not upload:
            begin = partial(self._bucket.begin_upload, self._key)
            upload = self._bucket.attempt(self._doing, begin)
        try:
            etags |= self._send(upload, [it for it in self._parts if it.number not in etags])
            self._complete(upload, [etags[part.number] for part in self._parts])
        except (ObjectUnavailable, UploadGone):
            raise  # the next attempt resumes with its parts
        except ObjectError:
            with contextlib.suppress(ObjectError):
                self._bucket.attempt(
                    self._doing, partial(self._bucket.abort_upload, self._key, upload)
                )
            raise

    def _cut_upload(self) -> tuple[str, dict[int, str]]:
        """Return an incomplete upload of the same bytes, with the ETags of its parts."""
        if self._bucket.tells_digests:
            begun = self._bucket.attempt(self._doing, partial(self._bucket.uploads, self._key))
            for key, upload in begun:
                if key == self._key and (etags := self._matching(upload)):
                    return upload, etags
        return "", {}

    def _matching(self, upload: str) -> dict[int, str]:
        """Return the ETags of an upload's parts if all of them are of this file."""
        try:
            there = self._bucket.attempt(
                self._doing, partial(self._bucket.parts, self._key, upload)
            )
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
        """Send parts, several at a time; return their ETags by number."""
        etags = self._bucket.in_parallel(self._doing, partial(self._send_part, upload), parts)
        return {part.number: etag for part, etag in zip(parts, etags, strict=True)}

    def _send_part(self, upload: str, part: _Part) -> str:
        data = self._read(part)
        digest = Digest(data)
        send = partial(self._bucket.put_part, self._key, upload, part.number, data, digest)
        etag = self._bucket.attempt(self._doing, send)
        _compare(self._bucket, self._doing, digest.etag, etag)
        return etag

    def _complete(self, upload: str, etags: list[str]) -> None:
        complete = partial(self._bucket.complete_upload, self._key, upload, etags)
        etag = self._bucket.attempt(self._doing, complete)
        if _ETAG_OF_PARTS.fullmatch(etag):
            _compare(self._bucket, self._doing, _etag_of(etags), etag)

    def _read(self, part: _Part) -> bytes:
        """Return the file's bytes of a part; fewer if it was truncated meanwhile."""
        return os.pread(self._file, part.size, part.offset)


def _divide(size: int, wanted: int) -> Iterator[_Part]:
    """Divide a file into parts of the size wanted, or larger if there would be too many."""
    least = -(-size // _PARTS_MAX)
    part_bytes = max(wanted, -(-least // MIB) * MIB)
    for number, offset in enumerate(range(0, size, part_bytes), start=1):
        yield _Part(number, offset, min(part_bytes, size - offset))


def _etag_of(etags: list[str]) -> str:
    """Return the ETag of an object with parts of these ETags."""
    try:
        joined = b"".join(bytes.fromhex(etag) for etag in etags)
    except ValueError:
        return ""
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(etags)}"


def _compare(bucket: Bucket, doing: str, sent: str, arrived: str) -> None:
    """Check the digest that the server found, where it tells one.

    Raises:
        ObjectUnavailable: it differs; a retry may succeed.
    """
    if bucket.tells_digests and arrived != sent:
        raise ObjectUnavailable(f"{doing}: what arrived has the digest {arrived}, not {sent}")

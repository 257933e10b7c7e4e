"""Object store in a bucket: `s3://bucket/prefix`.

An object exists once its last request is answered. Deleting by prefix also aborts incomplete
uploads.

Not handled: a bucket that keeps versions (a deletion hides them; its owner sets how long they
stay), and two writers of one name: the last one wins.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from copy import copy
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from minio.deleteobjects import DeleteObject

from rung.events.errors import ObjectError, ObjectMissing
from rung.storage.area import area_prefix
from rung.storage.key import MAX_LENGTH, check_name, check_prefix
from rung.storage.port import ObjectInfo
from rung.storage.s3.client import Bucket
from rung.storage.s3.download import get_file, read_range
from rung.storage.s3.settings import S3Settings, from_environment
from rung.storage.s3.upload import put_file, put_whole

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_EXPIRES_S_MAX: Final = 7 * 24 * 3600


class S3Store:
    """An object store in a bucket, below a prefix."""

    def __init__(self, url: str, settings: S3Settings | None = None) -> None:
        """Open `s3://bucket/prefix`, by default with the environment's settings.

        Raises:
            ObjectError: the URL or a setting is not valid.
        """
        name, self._prefix = _parse(url)
        self._settings = settings or from_environment()
        self._bucket = Bucket(name, self._settings)

    @property
    def bucket(self) -> Bucket:
        """The bucket, for provisioning."""
        return self._bucket

    @property
    def prefix(self) -> str:
        """The prefix of its keys: empty, or with a slash at the end."""
        return self._prefix

    @property
    def url(self) -> str:
        """The URL `s3://…`; the endpoint is in the environment."""
        return f"s3://{self._bucket.name}/{quote(self._prefix)}".rstrip("/")

    @property
    def parallel(self) -> int:
        """How many objects to put or get at a time."""
        return self._settings.parallel

    def area(self, name: str) -> "S3Store":
        """Return the store of a storage area, with the same connections; itself for an empty name.

        Raises:
            ObjectError: no area can have this name.
        """
        if not name:
            return self
        found = copy(self)
        found._prefix = self._prefix + area_prefix(name)  # noqa: SLF001 - of this class
        return found

    def put(self, name: str, source: Path) -> None:
        """Store a file's bytes under the name, durably and all or nothing.

        After an `ObjectUnavailable`, the same call resumes with the parts that arrived.
        """
        key = self._key(name)
        doing = self._doing("write", name)
        with _local(doing):
            put_file(self._bucket, doing, key, source)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes under the name, durably and all or nothing."""
        put_whole(self._bucket, self._doing("write", name), self._key(name), data)

    def get(self, name: str, target: Path) -> None:
        """Write the object's bytes to a file; its folder is made where it is missing."""
        key = self._key(name)
        doing = self._doing("read", name)
        with _local(doing):
            get_file(self._bucket, doing, key, target)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return the object's bytes, or some of them; fewer where it ends."""
        return read_range(self._bucket, self._doing("read", name), self._key(name), offset, size)

    def version(self, name: str) -> str:
        """Return the object's ETag."""
        doing = self._doing("read", name)
        etag = self._bucket.attempt(doing, partial(self._bucket.etag, self._key(name)))
        if not etag:
            raise ObjectMissing(f"{doing}: there is no such object")
        return etag

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return the objects whose name begins with the prefix, sorted by name."""
        start = self._prefix + check_prefix(prefix)
        found: list[ObjectInfo] = []

        def resume() -> None:
            after = self._prefix + found[-1].name if found else None
            for it in self._bucket.client.list_objects(
                self._bucket.name, start, recursive=True, start_after=after
            ):
                key = it.object_name or ""
                if key.startswith(start) and not key.endswith("/"):
                    found.append(ObjectInfo(key.removeprefix(self._prefix), it.size or 0))

        self._bucket.attempt(self._doing("list", prefix), resume)
        return sorted(found)

    def delete(self, prefix: str) -> int:
        """Delete every object whose name begins with the prefix; return how many there were."""
        if not prefix:
            raise ObjectError("an empty prefix would delete every object; name a prefix")
        found = self.list(prefix)
        doing = self._doing("delete", prefix)
        self._bucket.attempt(doing, partial(self._delete, doing, found))
        self._bucket.attempt(doing, partial(self._abort_uploads, self._prefix + prefix))
        return len(found)

    def presign(self, name: str, expires_s: float) -> str | None:
        """Return an URL by which the object, if it exists, can be read for a while.

        None where reading needs the customer key (RUNG_S3_SSE=customer).
        """
        key = self._key(name)
        if self._settings.sse == "customer":
            return None
        expires = timedelta(seconds=max(1.0, min(expires_s, _EXPIRES_S_MAX)))
        sign = partial(self._bucket.public.presigned_get_object, self._bucket.name, key, expires)
        return self._bucket.attempt(self._doing("sign", name), sign)

    def close(self) -> None:
        """Close it: retries end with an `ObjectUnavailable`."""
        self._bucket.close()

    def _delete(self, doing: str, found: Sequence[ObjectInfo]) -> None:
        """Delete objects in batches; missing ones are ignored."""
        doomed = [DeleteObject(self._prefix + info.name) for info in found]
        for refused in self._bucket.client.remove_objects(self._bucket.name, doomed):
            raise ObjectError(f"{doing}: {refused.name}: {refused.message} ({refused.code})")

    def _abort_uploads(self, start: str) -> None:
        for key, upload in self._bucket.uploads(start):
            if key.startswith(start):
                self._bucket.abort_upload(key, upload)

    def _key(self, name: str) -> str:
        key = self._prefix + check_name(name)
        if len(key.encode()) > MAX_LENGTH:
            raise ObjectError(
                f"object name {name[:60]!r}…: longer than {MAX_LENGTH} bytes, the store's prefix"
                " included"
            )
        return key

    def _doing(self, verb: str, name: str) -> str:
        return f"cannot {verb} {name!r} in {self.url}"


@contextlib.contextmanager
def _local(doing: str) -> Iterator[None]:
    """Turn errors of local files into `ObjectError`."""
    try:
        yield
    except OSError as error:
        raise ObjectError(f"{doing}: {error}") from error


def _parse(url: str) -> tuple[str, str]:
    """Return bucket and prefix, the latter with a slash at its end unless it is empty."""
    parts = urlsplit(url)
    bucket, prefix = parts.netloc, unquote(parts.path).strip("/")
    if parts.scheme != "s3" or parts.query or parts.fragment:
        raise ObjectError(f"object store {url!r}: give an URL such as s3://bucket/prefix")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket or bucket.replace(".", "").isdecimal():
        raise ObjectError(
            f"object store {url!r}: {bucket!r} is no name of a bucket, which has 3 to 63 lower-"
            "case letters, digits and hyphens; keys and endpoint go into the environment"
        )
    return bucket, f"{check_name(prefix)}/" if prefix else ""

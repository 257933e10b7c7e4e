"""Objects in a bucket: `s3://bucket/prefix`.

An object is whole or absent because S3 makes it so: it appears when its last request is
answered. What is deleted takes along the uploads that never became objects.

Not handled: versions of objects in a bucket that keeps them (a deletion hides them; the bucket's
owner sets how long they stay), and two writers of one name; the last one wins, whole.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from minio.deleteobjects import DeleteObject

from rung.events.errors import ObjectError, ObjectMissing
from rung.storage.key import MAX_LENGTH, check_name, check_prefix
from rung.storage.port import ObjectInfo
from rung.storage.s3.client import Wire
from rung.storage.s3.download import get_file, read_range
from rung.storage.s3.settings import S3Settings, from_environment
from rung.storage.s3.upload import put_file, put_whole

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_EXPIRES_S_MAX: Final = 7 * 24 * 3600


class S3Store:
    """An object store in one bucket, below a prefix of it."""

    def __init__(self, url: str, settings: S3Settings | None = None) -> None:
        """Prepare it; the server is not asked for anything yet.

        Args:
            url: `s3://bucket` or `s3://bucket/prefix`.
            settings: how to reach it; the environment's if not given.

        Raises:
            ObjectError: the URL or a setting is not possible.
        """
        self._bucket, self._prefix = _parse(url)
        self._settings = settings or from_environment()
        self._wire = Wire(self._bucket, self._settings)

    @property
    def wire(self) -> Wire:
        """Its connection, for what prepares the bucket."""
        return self._wire

    @property
    def prefix(self) -> str:
        """What its keys begin with: empty, or with a slash at the end."""
        return self._prefix

    @property
    def url(self) -> str:
        """Where it is: `s3://…`; the endpoint is in the environment."""
        return f"s3://{self._bucket}/{quote(self._prefix)}".rstrip("/")

    @property
    def parallel(self) -> int:
        """How many objects it is good to put or get at once."""
        return self._settings.parallel

    def put(self, name: str, source: Path) -> None:
        """Store a file's bytes under the name, durably and all or nothing.

        After an `ObjectUnavailable`, the same call goes on with the parts that have arrived.
        """
        key = self._key(name)
        doing = self._doing("write", name)
        with _local(doing):
            put_file(self._wire, doing, key, source)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes under the name, durably and all or nothing."""
        put_whole(self._wire, self._doing("write", name), self._key(name), data)

    def get(self, name: str, target: Path) -> None:
        """Write the object's bytes to a file; its folder is made where it is missing."""
        key = self._key(name)
        doing = self._doing("read", name)
        with _local(doing):
            get_file(self._wire, doing, key, target)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return the object's bytes, or some of them; fewer where it ends."""
        return read_range(self._wire, self._doing("read", name), self._key(name), offset, size)

    def version(self, name: str) -> str:
        """Return the object's ETag."""
        doing = self._doing("read", name)
        etag = self._wire.attempt(doing, partial(self._wire.etag, self._key(name)))
        if not etag:
            raise ObjectMissing(f"{doing}: there is no such object")
        return etag

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return the objects whose name begins with the prefix, sorted by name."""
        start = self._prefix + check_prefix(prefix)
        found: list[ObjectInfo] = []

        def go_on() -> None:
            after = self._prefix + found[-1].name if found else None
            for it in self._wire.client.list_objects(
                self._bucket, start, recursive=True, start_after=after
            ):
                key = it.object_name or ""
                if key.startswith(start) and not key.endswith("/"):
                    found.append(ObjectInfo(key.removeprefix(self._prefix), it.size or 0))

        self._wire.attempt(self._doing("list", prefix), go_on)
        return sorted(found)

    def delete(self, prefix: str) -> int:
        """Delete every object whose name begins with the prefix; return how many there were."""
        if not prefix:
            raise ObjectError("an empty prefix would delete every object; name a prefix")
        found = self.list(prefix)
        doing = self._doing("delete", prefix)
        self._wire.attempt(doing, partial(self._delete, doing, found))
        self._wire.attempt(doing, partial(self._abort_uploads, self._prefix + prefix))
        return len(found)

    def presign(self, name: str, expires_s: float) -> str | None:
        """Return an URL under which anybody may read the object for a while; None if none can.

        Whether there is such an object is not looked at. None where reading needs a key of ours
        (RUNG_S3_SSE=customer), which nobody else is to have.
        """
        key = self._key(name)
        if self._settings.sse == "customer":
            return None
        expires = timedelta(seconds=max(1.0, min(expires_s, _EXPIRES_S_MAX)))
        sign = partial(self._wire.public.presigned_get_object, self._bucket, key, expires)
        return self._wire.attempt(self._doing("sign", name), sign)

    def close(self) -> None:
        """Let go of it: what is being tried again ends with an `ObjectUnavailable`."""
        self._wire.close()

    def _delete(self, doing: str, found: Sequence[ObjectInfo]) -> None:
        """Delete objects in batches; one that is gone already is no trouble."""
        doomed = [DeleteObject(self._prefix + info.name) for info in found]
        for refused in self._wire.client.remove_objects(self._bucket, doomed):
            raise ObjectError(f"{doing}: {refused.name}: {refused.message} ({refused.code})")

    def _abort_uploads(self, start: str) -> None:
        for key, upload in self._wire.uploads(start):
            if key.startswith(start):
                self._wire.abort_upload(key, upload)

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
    """Say what was to be done when a local file is the trouble."""
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

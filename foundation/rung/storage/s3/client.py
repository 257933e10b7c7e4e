"""Requests to S3 by the `minio` client, with retries of our own; thread-safe.

The client's own retries are off: they would multiply with these, and have no bound in time. Each
body is sent with its MD5, which servers check; not all of them check the SHA-256 of the signature.
"""

import base64
import concurrent.futures
import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.datatypes import Part
from minio.error import S3Error
from minio.sse import Sse, SseCustomerKey, SseKMS, SseS3

from rung.backoff import Backoff
from rung.events.errors import ObjectError, ObjectUnavailable
from rung.storage.s3.credentials import credentials
from rung.storage.s3.errors import KeysRefused, UploadGone, explain
from rung.storage.s3.settings import Identity, S3Settings

_BACKOFF: Final = Backoff(0.2, 5.0)
_ROTATION_S: Final = 5.0
"""Time within which all keys in files are replaced, once the first one is."""
_PAGE: Final = 1000

T = TypeVar("T")
R = TypeVar("R")


class Digest:
    """The MD5 of a body, as in the header and as in the ETag."""

    def __init__(self, data: bytes) -> None:
        digest = hashlib.md5(data, usedforsecurity=False)
        self.etag = digest.hexdigest()
        self.header = base64.b64encode(digest.digest()).decode()


class Bucket:
    """The requests to one bucket."""

    def __init__(self, name: str, settings: S3Settings) -> None:
        self.name = name
        self.settings = settings
        self._credentials = credentials(settings)
        self._client = self._client_at(settings.endpoint)
        self._public = self._client_at(settings.public_endpoint or settings.endpoint)
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(settings.parallel, "s3")
        """For parts; no task in it waits for another one in it."""

    @property
    def client(self) -> Minio:
        """The client, for calls inside `attempt`."""
        return self._client

    @property
    def public(self) -> Minio:
        """A client of the public endpoint, for URLs."""
        return self._public

    def close(self) -> None:
        """End retries; begin no more requests."""
        self._closing.set()
        self._pool.shutdown(wait=False, cancel_futures=True)  # a server may not answer

    def in_parallel(self, doing: str, work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """Return the results for all parts, in order, several at a time.

        The first failure is raised once none of them runs any more.
        """
        try:
            running = [self._pool.submit(work, part) for part in parts]
        except RuntimeError as error:  # it is shut down
            raise ObjectUnavailable(f"{doing}: the store is closed") from error
        try:
            for done in concurrent.futures.as_completed(running):
                done.result()
        except concurrent.futures.CancelledError as error:
            raise ObjectUnavailable(f"{doing}: the store is closed") from error
        finally:
            for future in running:
                future.cancel()
            concurrent.futures.wait(running)
        return [future.result() for future in running]

    def attempt(self, doing: str, call: Callable[[], T]) -> T:
        """Return what the call returns; transient errors are retried.

        Args:
            doing: for errors, such as "cannot read 'x' in s3://bucket".
            call: requests that can be repeated.

        Raises:
            ObjectError: it was refused.
            ObjectUnavailable: it did not succeed within `patience_s`.
        """

        def attempted() -> T:
            try:
                return call()
            except Exception as error:
                explained = explain(error, doing, self.settings.endpoint)
                if explained is None or explained is error:
                    raise
                raise explained from error

        def sleep(wait_s: float) -> None:
            if self._closing.wait(wait_s):
                raise ObjectUnavailable(f"{doing}: the store is closed")

        return _BACKOFF.retry_blocking(
            attempted, self._patience_s, clock=time.monotonic, sleep=sleep
        )

    def _patience_s(self, error: BaseException) -> float:
        """Return for how long to retry after an error."""
        if not isinstance(error, ObjectError):
            return 0.0
        keys = self.settings.credentials
        if isinstance(error, KeysRefused) and (isinstance(keys, Identity) or keys.rotate):
            return _ROTATION_S
        return self.settings.patience_s if error.retriable else 0.0

    def encryption(self) -> dict[str, str]:
        """Return the headers of requests that write an object."""
        sse: Sse
        match self.settings.sse:
            case "s3":
                sse = SseS3()
            case "kms":
                assert self.settings.sse_key is not None, "checked"
                sse = SseKMS(self.settings.sse_key.read(), {})
            case _:
                return self.key_headers()
        return sse.headers()

    def customer_key(self) -> SseCustomerKey | None:
        """Return the key that requests for an object's bytes need, if there is one."""
        if self.settings.sse != "customer":
            return None
        return SseCustomerKey(self.settings.customer_key())

    def key_headers(self) -> dict[str, str]:
        """Return that key as headers."""
        key = self.customer_key()
        return key.headers() if key else {}

    @property
    def tells_digests(self) -> bool:
        """Whether ETags are MD5s: not with encryption by other keys than the server's."""
        return self.settings.sse in {"none", "s3"}

    def put(self, key: str, data: bytes, digest: Digest) -> str:
        """Write an object in one request; return its ETag."""
        headers = {"Content-MD5": digest.header} | self.encryption()
        written = self._client._put_object(self.name, key, data, {**headers})  # noqa: SLF001 - the public one sends no MD5
        return written.etag or ""

    def etag(self, key: str) -> str:
        """Return an object's ETag; empty if there is no such object."""
        try:
            found = self._client.stat_object(self.name, key, ssec=self.customer_key())
        except S3Error as error:
            if error.code == "NoSuchKey":
                return ""
            raise
        return found.etag or ""

    def server_of(self, key: str) -> str:
        """Return the name of the server's software, empty if it does not tell."""
        found = self._client.stat_object(self.name, key, ssec=self.customer_key())
        return str((found.metadata or {}).get("Server", ""))

    def begin_upload(self, key: str) -> str:
        """Begin an upload in parts; return its id."""
        client = self._client
        return client._create_multipart_upload(self.name, key, {**self.encryption()})  # noqa: SLF001 - see put_part

    def put_part(self, key: str, upload: str, number: int, data: bytes, digest: Digest) -> str:
        """Write a part; return its ETag."""
        headers = {"Content-MD5": digest.header} | self.key_headers()
        return self._client._upload_part(self.name, key, data, {**headers}, upload, number)  # noqa: SLF001 - the client has no public way to go on with an upload

    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        """Return key and id of incomplete uploads in parts, one page of them."""
        found = self._client._list_multipart_uploads(self.name, prefix=prefix)  # noqa: SLF001 - see put_part
        return [(it.object_name, it.upload_id) for it in found.uploads if it.upload_id]

    def parts(self, key: str, upload: str) -> list[Part]:
        """Return the parts that an upload has."""
        parts: list[Part] = []
        marker: str | None = None
        while True:
            page = self._client._list_parts(  # noqa: SLF001 - see put_part
                self.name, key, upload, _PAGE, marker
            )
            parts.extend(page.parts)
            if not page.is_truncated or not page.parts:
                return parts
            marker = str(page.parts[-1].part_number)

    def complete_upload(self, key: str, upload: str, etags: list[str]) -> str:
        """Make an object of an upload's parts; return its ETag.

        Raises:
            UploadGone: the server knows no such upload, or its parts are others.
        """
        parts = [Part(number, etag) for number, etag in enumerate(etags, start=1)]
        done = self._client._complete_multipart_upload(  # noqa: SLF001 - see put_part
            self.name, key, upload, parts, self.customer_key()
        )
        if done.etag is None:  # an error may have status 200
            raise UploadGone(f"{key}: its parts did not become an object")
        return done.etag

    def abort_upload(self, key: str, upload: str) -> None:
        """Drop an upload and its parts."""
        self._client._abort_multipart_upload(self.name, key, upload)  # noqa: SLF001 - see put_part

    def _client_at(self, endpoint: str) -> Minio:
        settings = self.settings
        pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=settings.timeout_s, read=settings.timeout_s),
            maxsize=2 * settings.parallel,
            retries=False,
            cert_reqs="CERT_REQUIRED",
            ca_certs=str(settings.ca_file) if settings.ca_file else None,
        )
        return Minio(
            urlsplit(endpoint).netloc,
            secure=endpoint.startswith("https:"),
            region=settings.region,
            http_client=pool,
            credentials=self._credentials,
        )

"""Data in S3: what lies below a prefix, or one object.

A large object comes in parts, several at once; each request names the version that was listed,
so that an object that is replaced meanwhile is noticed and never mixed.

Variables that begin with `RUNG_CACHE_` go before those of the same name without it, so that data
may lie on another server than checkpoints, under keys that open nothing else:
`RUNG_CACHE_S3_ENDPOINT` goes before `RUNG_S3_ENDPOINT`, `RUNG_CACHE_AWS_ACCESS_KEY_ID` before
`AWS_ACCESS_KEY_ID`.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from minio.error import S3Error

from rung.cache.errors import DataChanged, DataError, DataUnavailable
from rung.cache.listing import Entry, Listing
from rung.cache.partial_download import PartialDownload
from rung.cache.source import Source
from rung.events.errors import ObjectError, ObjectMissing, ObjectUnavailable
from rung.storage.s3.client import Bucket
from rung.storage.s3.download import read_range
from rung.storage.s3.errors import OutOfRange, Replaced
from rung.storage.s3.settings import from_environment

_OWN: Final = "RUNG_CACHE_"
_MD5: Final = re.compile(r"[0-9a-f]{32}")


class S3Origin:
    """Objects of one bucket."""

    def __init__(self, source: Source, environment: Mapping[str, str]) -> None:
        """Prepare it; the server is not asked for anything yet.

        Raises:
            DataError: a setting is missing or not possible.
        """
        bucket, _, self._prefix = source.location.removeprefix("s3://").partition("/")
        self._what = f"data source {source.name}: {source.location}"
        try:
            settings = from_environment(settings_of(environment))
        except ObjectError as error:
            raise DataError(f"{self._what}: {error}") from error
        self._bucket = Bucket(bucket, settings)
        self._place = f"s3 {settings.endpoint}/{bucket}/"

    def list(self) -> Listing:
        """Return what there is now: one object of that name, or all below it."""
        with self._told():
            single = self._single()
            if single is not None:
                listing = Listing(f"{self._place}{self._prefix}", single=True, entries=[single])
            else:
                start = f"{self._prefix.rstrip('/')}/" if self._prefix.strip("/") else ""
                listing = Listing(
                    f"{self._place}{start}", single=False, entries=[*self._below(start)]
                )
        return listing.check(self._what)

    def bring(self, listing: Listing, entry: Entry, partial: PartialDownload) -> None:
        """Bring the parts that are missing."""
        start = listing.place.removeprefix(self._place)
        key = start if listing.single else f"{start}{entry.name}"
        doing = f"cannot read {key!r}"

        def get(offset: int) -> None:
            size = min(partial.part_bytes, entry.size - offset)
            data = read_range(self._bucket, doing, key, offset, size, etag=f'"{entry.version}"')
            if len(data) != size:
                raise DataChanged(f"{self._what}: {key!r} is shorter than it was")
            partial.write(offset, data)
            partial.done(offset)

        missing = partial.missing()
        with self._told(key):
            if len(missing) == 1:
                get(missing[0])
            elif missing:
                self._bucket.in_parallel(doing, get, missing)

    def close(self) -> None:
        """End what is under way."""
        self._bucket.close()

    def _single(self) -> Entry | None:
        """Return the object that the source names itself, if there is one."""
        if not self._prefix or self._prefix.endswith("/"):
            return None
        bucket = self._bucket

        def ask() -> Entry | None:
            try:
                found = bucket.client.stat_object(
                    bucket.name, self._prefix, ssec=bucket.customer_key()
                )
            except S3Error as error:
                if error.code in {"NoSuchKey", "NoSuchObject"}:
                    return None
                raise
            name = PurePosixPath(self._prefix).name
            return self._entry(name, found.size, found.etag)

        return bucket.attempt(f"cannot look at {self._prefix!r}", ask)

    def _below(self, start: str) -> Sequence[Entry]:
        found: dict[str, Entry] = {}
        bucket = self._bucket

        def go_on() -> None:
            after = f"{start}{next(reversed(found))}" if found else None
            for it in bucket.client.list_objects(
                bucket.name, start, recursive=True, start_after=after
            ):
                key = it.object_name or ""
                if key.startswith(start) and not key.endswith("/"):
                    name = key.removeprefix(start)
                    found[name] = self._entry(name, it.size, it.etag)

        bucket.attempt("cannot list", go_on)
        return sorted(found.values())

    def _entry(self, name: str, size: int | None, etag: str | None) -> Entry:
        version = (etag or "").strip('"')
        whole = self._bucket.tells_digests and _MD5.fullmatch(version)
        return Entry(name, size or 0, version, version if whole else "")

    @contextlib.contextmanager
    def _told(self, key: str = "") -> Iterator[None]:
        """Say which source it was when the store refuses."""
        what = f"{self._what}: {key}" if key else self._what
        try:
            yield
        except (Replaced, OutOfRange, ObjectMissing) as error:
            raise DataChanged(f"{what} is not what was listed: {error}") from error
        except ObjectUnavailable as error:
            raise DataUnavailable(f"{what}: {error}") from error
        except ObjectError as error:
            raise DataError(f"{what}: {error}") from error
        except OSError as error:
            raise DataError(f"{what} cannot be written to the cache: {error.strerror}") from error


def settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as it is for data."""
    found = {name: value for name, value in environment.items() if not name.startswith(_OWN)}
    for name, value in environment.items():
        own = name.removeprefix(_OWN)
        if own != name and own.startswith("S3_"):
            found[f"RUNG_{own}"] = value
        elif own != name and own.startswith("AWS_"):
            twin = own.removesuffix("_FILE") if own.endswith("_FILE") else f"{own}_FILE"
            found.pop(twin, None)
            found[own] = value
    return found

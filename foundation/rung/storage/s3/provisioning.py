"""What a bucket needs before Rung uses it, and whether it has it.

The lifecycle rule drops the parts of uploads that nobody finished, days after they were begun;
rules of others in the bucket stay. Servers that know no lifecycle say so. MinIO takes no such rule
and needs none: it drops such parts by itself after a day.
"""

import secrets
from functools import partial
from typing import Final

from minio.commonconfig import ENABLED, Filter
from minio.lifecycleconfig import AbortIncompleteMultipartUpload, LifecycleConfig, Rule

from rung.events.errors import ObjectError, ObjectUnavailable
from rung.storage.s3.errors import NoBucket
from rung.storage.s3.store import S3Store

ABANDONED_DAYS: Final = 3
_PROBES: Final = "probe/"
_PROBE: Final = b"rung was here"
_MINIO: Final = "MinIO"


def prepare_bucket(store: S3Store, *, make_bucket: bool) -> list[str]:
    """Make the bucket, set its lifecycle, try whether it can be used; return what was done."""
    done = _make(store) if make_bucket else []
    return done if _try(store) == _MINIO else done + _set_lifecycle(store)


def inspect_bucket(store: S3Store) -> list[str]:
    """Return what differs from what Rung wants; changes nothing but a probe that it removes."""
    if _try(store) == _MINIO:
        return []
    try:
        rules = _rules(store)
    except ObjectUnavailable:
        raise
    except ObjectError as error:
        return [f"no lifecycle rule can be read: {error}"]
    if _rule(store) in rules:
        return []
    return [f"no lifecycle rule drops abandoned uploads in {store.url}; `rung cluster init` does"]


def _make(store: S3Store) -> list[str]:
    """Make the bucket if it is missing."""
    try:
        store.list(_PROBES)
    except NoBucket:
        wire = store.wire
        wire.attempt(
            f"cannot make the bucket {wire.bucket}",
            partial(wire.client.make_bucket, wire.bucket, wire.settings.region),
        )
        return [f"made the bucket {wire.bucket}"]
    return []


def _set_lifecycle(store: S3Store) -> list[str]:
    wire, own = store.wire, _rule(store)
    try:
        rules = _rules(store)
        if own in rules:
            return []
        config = LifecycleConfig([*(it for it in rules if it.rule_id != own.rule_id), own])
        wire.attempt(
            f"cannot set the lifecycle of the bucket {wire.bucket}",
            partial(wire.client.set_bucket_lifecycle, wire.bucket, config),
        )
    except ObjectUnavailable:
        raise
    except ObjectError as error:
        return [f"abandoned uploads stay until somebody drops them: {error}"]
    return [f"set a lifecycle rule: uploads abandoned for {ABANDONED_DAYS} days are dropped"]


def _rules(store: S3Store) -> list[Rule]:
    wire = store.wire
    config = wire.attempt(
        f"cannot read the lifecycle of the bucket {wire.bucket}",
        partial(wire.client.get_bucket_lifecycle, wire.bucket),
    )
    return list(config.rules) if config else []


def _rule(store: S3Store) -> Rule:
    return Rule(
        ENABLED,
        rule_filter=Filter(prefix=store.prefix),
        rule_id=f"rung-abandoned-uploads-{store.prefix.strip('/') or 'all'}"[:255],
        abort_incomplete_multipart_upload=AbortIncompleteMultipartUpload(ABANDONED_DAYS),
    )


def _try(store: S3Store) -> str:
    """Write, read, list and delete an object; return what the server calls itself.

    Raises:
        ObjectError: one of them is refused; the message says what to do.
    """
    store.list(_PROBES)  # first: some servers make a missing bucket when they are written to
    name = f"{_PROBES}{secrets.token_hex(8)}"
    store.put_bytes(name, _PROBE)
    try:
        if store.read(name) != _PROBE:
            raise ObjectError(f"{store.url}: what is read back is not what was written")
        server = store.wire.attempt(
            f"cannot ask for {name!r} in {store.url}",
            partial(store.wire.server_of, store.prefix + name),
        )
    finally:
        found = store.delete(name)
    if found != 1:
        raise ObjectError(f"{store.url}: what was written is not listed")
    return server

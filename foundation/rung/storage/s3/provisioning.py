"""Provisioning of a bucket: created, checked, and with a lifecycle rule.

The rule aborts uploads in parts that were never completed, days after they were begun; other rules
of the bucket stay. MinIO supports no such rule and needs none: it aborts them itself after a day.
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


def prepare_bucket(store: S3Store) -> list[str]:
    """Create the bucket, set its lifecycle and try it; return what was changed."""
    done = _make(store)
    return done if _try(store) == _MINIO else done + _set_lifecycle(store)


def inspect_bucket(store: S3Store) -> list[str]:
    """Return what `prepare_bucket` would change; only a probe is written, and removed."""
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
    """Create the bucket if it is missing."""
    try:
        store.list(_PROBES)
    except NoBucket:
        bucket = store.bucket
        bucket.attempt(
            f"cannot make the bucket {bucket.name}",
            partial(bucket.client.make_bucket, bucket.name, bucket.settings.region),
        )
        return [f"made the bucket {bucket.name}"]
    return []


def _set_lifecycle(store: S3Store) -> list[str]:
    bucket, own = store.bucket, _rule(store)
    try:
        rules = _rules(store)
        if own in rules:
            return []
        config = LifecycleConfig([*(it for it in rules if it.rule_id != own.rule_id), own])
        bucket.attempt(
            f"cannot set the lifecycle of the bucket {bucket.name}",
            partial(bucket.client.set_bucket_lifecycle, bucket.name, config),
        )
    except ObjectUnavailable:
        raise
    except ObjectError as error:
        return [f"abandoned uploads stay until they are aborted by hand: {error}"]
    return [f"set a lifecycle rule: uploads abandoned for {ABANDONED_DAYS} days are dropped"]


def _rules(store: S3Store) -> list[Rule]:
    bucket = store.bucket
    config = bucket.attempt(
        f"cannot read the lifecycle of the bucket {bucket.name}",
        partial(bucket.client.get_bucket_lifecycle, bucket.name),
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
    """Write, read, list and delete an object; return the name of the server's software.

    Raises:
        ObjectError: an operation is refused; the message says what to do.
    """
    store.list(_PROBES)  # first: some servers create a missing bucket at a write
    name = f"{_PROBES}{secrets.token_hex(8)}"
    store.put_bytes(name, _PROBE)
    try:
        if store.read(name) != _PROBE:
            raise ObjectError(f"{store.url}: what is read back is not what was written")
        server = store.bucket.attempt(
            f"cannot ask for {name!r} in {store.url}",
            partial(store.bucket.server_of, store.prefix + name),
        )
    finally:
        found = store.delete(name)
    if found != 1:
        raise ObjectError(f"{store.url}: what was written is not listed")
    return server

"""What an object store needs before it is used: a folder nothing, a bucket some."""

from typing import TYPE_CHECKING, cast

from rung.storage.port import ObjectStore

if TYPE_CHECKING:
    from rung.storage.s3.store import S3Store


def prepare(store: ObjectStore, *, make_bucket: bool = True) -> list[str]:
    """Make a store ready for use; return what was done, one line each. May be repeated.

    Args:
        store: what `open_store` returned.
        make_bucket: whether a missing bucket is made.

    Raises:
        ObjectError: it cannot be used; the message says what to do.
    """
    if (bucket := _bucket_of(store)) is None:
        return []
    from rung.storage.s3.provisioning import prepare_bucket  # noqa: PLC0415 - an extra

    return prepare_bucket(bucket, make_bucket=make_bucket)


def inspect(store: ObjectStore) -> list[str]:
    """Return what differs from how `prepare` leaves a store, one line each.

    Raises:
        ObjectError: it cannot be used; the message says what to do.
    """
    if (bucket := _bucket_of(store)) is None:
        return []
    from rung.storage.s3.provisioning import inspect_bucket  # noqa: PLC0415 - an extra

    return inspect_bucket(bucket)


def _bucket_of(store: ObjectStore) -> "S3Store | None":
    return cast("S3Store", store) if store.url.startswith("s3:") else None

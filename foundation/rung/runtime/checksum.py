"""Checksums of snapshots: derived data, of which a damaged piece is left out, not believed."""

from typing import Final

from blake3 import blake3

from rung.events import LedgerDamaged

_BYTES: Final = 16


def with_checksum(value: bytes) -> bytes:
    """Return a value behind its checksum."""
    return blake3(value).digest(_BYTES) + value


def without_checksum(data: bytes) -> bytes:
    """Return the value that `with_checksum` took.

    Raises:
        LedgerDamaged: it is not that value any more.
    """
    value = data[_BYTES:]
    if blake3(value).digest(_BYTES) != data[:_BYTES]:
        raise LedgerDamaged("the snapshot is damaged: its checksum is wrong")
    return value

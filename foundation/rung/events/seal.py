"""Seals: signed digests of ranges of records, by which an altered ledger is found.

`rung.ledger.seals` computes the digests and signatures; decision 0020 describes them.
"""

from typing import ClassVar

from msgspec import Struct

from rung.events import topic


class SealedGroup(Struct, frozen=True, kw_only=True):
    """The records of one experiment (or pool, or agent) in a sealed range."""

    name: str
    """BLAKE3 of the records' key up to its first dot, 16 bytes in hexadecimal digits."""
    count: int
    digest: str
    """BLAKE3 of their positions, keys and values."""


class _Partition(Struct, frozen=True, kw_only=True):
    """The partition that an event is about."""

    TOPIC: ClassVar[str] = topic.SEALS
    WRITER: ClassVar[str] = "sealer"
    READERS: ClassVar[tuple[str, ...]] = ("sealer", "verify")

    ledger: str
    topic: str
    partition: int

    @property
    def place(self) -> str:
        """The partition's name, the key of the event."""
        return f"{self.topic}/{self.partition}"


class PartitionSealed(_Partition, frozen=True, kw_only=True):
    """A range of records of a partition was sealed: a change of any of them is detected."""

    TYPE: ClassVar[str] = "rung.partition.sealed.v1"

    number: int
    """Of the partition's seals, counted from 0."""
    first: int
    """Position of the range's first record."""
    last: int
    count: int
    groups: list[SealedGroup]
    """Sorted by name."""
    checksums: str
    """CRC-32 of key and value of each record, in base64, to find the record that differs."""
    digest: str
    """BLAKE3 of all of the above."""
    previous: str | None
    """BLAKE3 of the event of the partition's seal before; null: it is the first."""
    key: str
    """The Ed25519 public key that `signature` was made for, in hexadecimal digits."""
    signature: str


class PartitionTrimmed(_Partition, frozen=True, kw_only=True):
    """Retention removes the records of a partition before `first`."""

    TYPE: ClassVar[str] = "rung.partition.trimmed.v1"

    first: int
    """Position of the first record that is kept, where a sealed range begins."""
    key: str
    """The Ed25519 public key that `signature` was made for, in hexadecimal digits."""
    signature: str

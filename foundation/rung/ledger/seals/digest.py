"""Digest of a range of records: one BLAKE3 per experiment, and one over all of them.

Records are grouped by their key up to its first dot, so that the records of an experiment and of
its trials form one group. A group's digest covers the position, key and value of each of its
records, in order. The digest of the range covers the sorted list of groups; so the records of one
experiment can be verified, and are known to be complete in that range, without those of others.

CRC-32 checksums, one per record, locate a record that differs; they protect from nothing.
"""

import base64
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec
from blake3 import blake3
from msgspec import Struct

from rung.events.seal import PartitionSealed, SealedGroup
from rung.ledger.port import Record, root_of

_HEAD: Final = struct.Struct("<QII").pack
"""Position, bytes of the key, bytes of the value."""
_NAME_BYTES: Final = 16
_encoder: Final = msgspec.json.Encoder()


class RangeDigest(Struct, frozen=True, kw_only=True):
    """The fields of a seal about its records."""

    first: int
    last: int
    count: int
    groups: list[SealedGroup]
    checksums: str
    digest: str


class _Group:
    """The records of one experiment in a range."""

    __slots__ = ("count", "hash", "parts")

    def __init__(self) -> None:
        self.count = 0
        self.hash = blake3()
        self.parts: list[bytes] = []


class RangeHasher:
    """Computes the digest of a range from its records, in batches of any size."""

    def __init__(self, topic: str, partition: int) -> None:
        self._place: Final = (topic, partition)
        self._groups: dict[str, _Group] = {}
        self._keys: dict[str, tuple[_Group, bytes, int]] = {}
        self._checksums = array("I")
        self._first = -1
        self._last = -1
        self.count = 0
        """The number of records."""
        self.size_bytes = 0
        """The size of their values."""

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self._groups)

    def add(self, records: Sequence[Record]) -> None:
        """Add records, in the order of their positions."""
        if not records:
            return
        if not self.count:
            self._first = records[0].position
        keys = self._keys
        checksums = self._checksums
        size = 0
        for record in records:
            key, value = record.key, record.value
            known = keys.get(key)
            if known is None:
                known = keys[key] = self._enter(key)
            group, encoded, checksum = known
            length = len(value)
            group.parts += (_HEAD(record.position, len(encoded), length), encoded, value)
            checksums.append(crc32(value, checksum))
            size += length
        self._last = records[-1].position
        self.count += len(records)
        self.size_bytes += size
        for group in self._groups.values():
            if group.parts:
                group.count += len(group.parts) // 3
                group.hash.update(b"".join(group.parts))
                group.parts.clear()

    def finish(self) -> RangeDigest:
        """Return the digest of the records; there must be some."""
        assert self.count
        groups = sorted(
            (
                SealedGroup(
                    name=group_name(text), count=group.count, digest=group.hash.hexdigest()
                )
                for text, group in self._groups.items()
            ),
            key=lambda group: group.name,
        )
        checksums = pack_checksums(self._checksums)
        made = RangeDigest(
            first=self._first,
            last=self._last,
            count=self.count,
            groups=groups,
            checksums=checksums,
            digest="",
        )
        return msgspec.structs.replace(made, digest=digest_of(*self._place, made))

    def _enter(self, key: str) -> tuple[_Group, bytes, int]:
        group = self._groups.setdefault(root_of(key), _Group())
        encoded = key.encode()
        return group, encoded, crc32(encoded)


def group_name(group: str) -> str:
    """Return the name of a group in seals, a digest: exports do not reveal other experiments."""
    return blake3(group.encode()).hexdigest(length=_NAME_BYTES)


def digest_of(topic: str, partition: int, made: "RangeDigest | PartitionSealed") -> str:
    """Return the digest of all fields of a seal about its records."""
    groups = [(group.name, group.count, group.digest) for group in made.groups]
    said = (topic, partition, made.first, made.last, made.count, groups, made.checksums)
    return blake3(_encoder.encode(said)).hexdigest()


def pack_checksums(checksums: "array[int]") -> str:
    """Encode checksums as in a seal: 32 bits each, little-endian, in base64."""
    if sys.byteorder == "big":
        checksums = array("I", checksums)
        checksums.byteswap()
    return base64.b64encode(checksums.tobytes()).decode()


def unpack_checksums(text: str) -> "array[int]":
    """Decode the checksums of a seal.

    Raises:
        ValueError: they are damaged.
    """
    checksums = array("I")
    checksums.frombytes(base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        checksums.byteswap()
    return checksums

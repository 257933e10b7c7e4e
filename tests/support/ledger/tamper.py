"""What somebody who can write to the store could do to an archive."""

import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from rung.ledger import Record
from rung.ledger.archive.index import read_index
from rung.ledger.archive.segment import Builder, Segment, open_segment
from rung.storage import ObjectStore

Change = Callable[[list[Record]], list[Record]]


def segments_of(store: ObjectStore, ledger_id: str, name: str) -> list[Segment]:
    """Return the segments of the first partition of a topic that has several, in order."""
    shelf = read_index(store, ledger_id)
    for partition in range(shelf.partitions):
        found = list(shelf.of(name, partition))
        if len(found) > 2:
            return found
    raise AssertionError(f"no partition of {name} has three segments")


def flip(store: ObjectStore, segment: Segment, at: int) -> None:
    """Change one bit of an object."""
    data = bytearray(store.read(segment.name))
    data[at] ^= 1
    store.put_bytes(segment.name, bytes(data))


def swap(store: ObjectStore, one: Segment, other: Segment) -> None:
    """Put the bytes of each of two objects into the other."""
    first, second = store.read(one.name), store.read(other.name)
    store.put_bytes(one.name, second)
    store.put_bytes(other.name, first)


def rewrite(
    store: ObjectStore, segment: Segment, change: Change, *, previous: str | None = None
) -> Segment:
    """Replace a segment by another one with altered records, which is whole by itself."""
    opened = open_segment(segment, store.read(segment.name))
    before = previous or opened.header.segment.previous
    builder = Builder(segment.place, before, size_bytes=1 << 30)
    builder.add(change(opened.records()))
    written, data = builder.finish()
    store.delete(segment.name)
    store.put_bytes(written.name, data)
    return written


def rewrite_all(store: ObjectStore, segments: Sequence[Segment], change: Change) -> None:
    """Alter the records of segments, and all digests after them."""
    previous: str | None = None
    for segment in segments:
        previous = rewrite(store, segment, change, previous=previous).digest


def lie(store: ObjectStore, segment: Segment, **claims: Any) -> Segment:
    """Replace a segment by one whose header claims something, with the digests to it."""
    data = store.read(segment.name)
    unpacker = zlib.decompressobj(31)
    header = msgspec.json.decode(unpacker.decompress(data))
    for name, value in claims.items():
        (header["segment"] if name in header["segment"] else header)[name] = value
    line = msgspec.json.encode(header) + b"\n"
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    packed = packer.compress(line) + packer.flush() + unpacker.unused_data
    told = segment._replace(digest=hashlib.sha256(line).hexdigest())
    store.delete(segment.name)
    store.put_bytes(told.name, packed)
    return told


def worsen(records: list[Record]) -> list[Record]:
    """Alter the first decision that closes a trial, or asks for a run."""
    for at, record in enumerate(records):
        if b'"length":' in record.value:
            event = msgspec.json.decode(record.value)
            event["data"]["spec"]["length"] += 1
            records[at] = replace(record, value=msgspec.json.encode(event))
            return records
    return records

"""Segment: consecutive records of one partition, as one immutable object of an archive.

    archive/<ledger>/<topic>/<partition>-of-<count>/<first>-<last>-<digest>.jsonl.gz

Unpacked it is an export (`rung.ledger.export.format`): a header, then one line per record, so
`zcat` and readers of exports can read it. It is packed as two members of gzip, the header apart;
packing the same records twice gives the same bytes.

The header holds the digest of the records' lines and the digest of the segment before; the digest
in the name is that of the header's line. So each segment proves all before it.
"""

import base64
import hashlib
import re
import zlib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Final, NamedTuple, Self

import msgspec
from msgspec import Struct

from rung.events import TOPICS, partition_of
from rung.events.errors import LedgerDamaged
from rung.ledger import Record
from rung.ledger.export.format import FORMAT, Line, line_of
from rung.ledger.export.format import VERSION_UNSEALED as VERSION

ROOT: Final = "archive/"
_NAME: Final = re.compile(
    ROOT + r"(?P<ledger>[^/]+)/(?P<topic>[a-z]+)/(?P<partition>\d{4})-of-(?P<partitions>\d{4})/"
    r"(?P<first>\d{16})-(?P<last>\d{16})-(?P<digest>[0-9a-f]{64})\.jsonl\.gz"
)
_GZIP: Final = 31
"""zlib's number for gzip with the largest window."""
_LEVEL: Final = 6
_HEADER_BYTES_MAX: Final = 1 << 16


class Place(NamedTuple):
    """One partition of one topic of one ledger, in an archive."""

    ledger: str
    topic: str
    partition: int
    partitions: int
    """Of the topic."""

    @property
    def prefix(self) -> str:
        """The prefix of the names of its segments."""
        return f"{ROOT}{self.ledger}/{self.topic}/{self.partition:04}-of-{self.partitions:04}/"

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Segment(NamedTuple):
    """A segment, as named."""

    place: Place
    first: int
    last: int
    digest: str

    @property
    def name(self) -> str:
        """The object's name."""
        return f"{self.place.prefix}{self.first:016}-{self.last:016}-{self.digest}.jsonl.gz"

    def __str__(self) -> str:
        return f"{self.place} {self.first} to {self.last} ({self.digest[:12]})"

    @classmethod
    def of(cls, name: str) -> Self | None:
        """Return the segment of a name, None if it is not the name of one."""
        found = _NAME.fullmatch(name)
        if found is None or found["topic"] not in TOPICS:
            return None
        place = Place(
            found["ledger"], found["topic"], int(found["partition"]), int(found["partitions"])
        )
        return cls(place, int(found["first"]), int(found["last"]), found["digest"])


class Contents(Struct, frozen=True, kw_only=True):
    """The contents of a segment, and the segment before it."""

    topic: str
    partition: int
    partitions: int
    first: int
    last: int
    size_bytes: int
    """Of the records' lines, unpacked."""
    sha256: str
    """Of the same lines."""
    previous: str | None
    """Digest of the segment before, None for the first one."""


class Header(Struct, frozen=True, kw_only=True):
    """A segment's first line: an export's header with the contents."""

    format: str = FORMAT
    version: int = VERSION
    ledger: str
    rung: str
    experiment: None = None
    records: int
    segment: Contents


class Opened(NamedTuple):
    """A segment that agrees with its name and its header."""

    segment: Segment
    header: Header
    body: bytes
    """One line per record."""

    def records(self) -> list[Record]:
        """Return its records.

        Raises:
            LedgerDamaged: a line does not agree with the header.
        """
        try:
            return list(self._records())
        except (msgspec.DecodeError, ValueError) as error:
            raise LedgerDamaged(f"the segment {self.segment} is damaged: {error}") from error

    def _records(self) -> Iterator[Record]:
        contents = self.header.segment
        last = contents.first - 1
        for text in self.body[:-1].split(b"\n"):
            record = _record_of(text)
            if (record.topic, record.partition) != (contents.topic, contents.partition):
                raise ValueError(f"a record of {record.topic}/{record.partition} is in it")
            if partition_of(record.key, contents.partitions) != contents.partition:
                raise ValueError(f"the key {record.key!r} belongs into another partition")
            if not last < record.position <= contents.last:
                raise ValueError(f"position {record.position} comes after {last}")
            last = record.position
            yield record
        if last != contents.last:
            raise ValueError(f"it ends at position {last} instead of {contents.last}")


_encoder: Final = msgspec.json.Encoder()
_header_decoder: Final = msgspec.json.Decoder(Header)
_line_decoder: Final = msgspec.json.Decoder(Line)


class Builder:
    """Packs records one by one, so only the packed ones are in memory."""

    def __init__(self, place: Place, previous: str | None, *, size_bytes: int) -> None:
        """Begin a segment.

        Args:
            place: of its records.
            previous: digest of the segment before.
            size_bytes: of the unpacked lines of a full segment.
        """
        self._place = place
        self._previous = previous
        self._limit = size_bytes
        self._packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._packed: list[bytes] = []
        self._hash = hashlib.sha256()
        self._first = -1
        self._last = -1
        self._size = 0
        self.count = 0
        """The number of its records."""

    @property
    def full(self) -> bool:
        """Whether it has its full size."""
        return self._size >= self._limit

    def add(self, records: Sequence[Record]) -> int:
        """Add records until it is full; return how many were added."""
        lines: list[bytes] = []
        for record in records:
            if self.full:
                break
            line = _encoder.encode(line_of(record)) + b"\n"
            lines.append(line)
            self._size += len(line)
        if lines:
            if not self.count:
                self._first = records[0].position
            self._last = records[len(lines) - 1].position
            self.count += len(lines)
            joined = b"".join(lines)
            self._hash.update(joined)
            self._packed.append(self._packer.compress(joined))
        return len(lines)

    def finish(self) -> tuple[Segment, bytes]:
        """Return the segment and the bytes of its object."""
        assert self.count
        place = self._place
        contents = Contents(
            topic=place.topic,
            partition=place.partition,
            partitions=place.partitions,
            first=self._first,
            last=self._last,
            size_bytes=self._size,
            sha256=self._hash.hexdigest(),
            previous=self._previous,
        )
        header = Header(
            ledger=place.ledger, rung=version("rung"), records=self.count, segment=contents
        )
        line = _encoder.encode(header) + b"\n"
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        data = [packer.compress(line), packer.flush(), *self._packed, self._packer.flush()]
        digest = hashlib.sha256(line).hexdigest()
        return Segment(place, self._first, self._last, digest), b"".join(data)


def open_segment(segment: Segment, data: bytes) -> Opened:
    """Unpack an object and check it against the segment's name.

    Raises:
        LedgerDamaged: it differs; the message names the segment and the difference.
    """
    try:
        return _open(segment, data)
    except (zlib.error, msgspec.DecodeError, ValueError) as error:
        raise LedgerDamaged(f"the segment {segment} is damaged: {error}") from error


def _open(segment: Segment, data: bytes) -> Opened:
    line, rest = _unpack(data, _HEADER_BYTES_MAX)
    if hashlib.sha256(line).hexdigest() != segment.digest:
        raise ValueError("its header is not the one that its name has the digest of")
    header = _header_decoder.decode(line)
    contents, place = header.segment, segment.place
    said = Place(header.ledger, contents.topic, contents.partition, contents.partitions)
    if (said, contents.first, contents.last) != (place, segment.first, segment.last):
        raise ValueError(f"its header says {said} {contents.first} to {contents.last}")
    if header.version != VERSION:
        raise ValueError(f"it is of format version {header.version}: upgrade Rung")
    body, rest = _unpack(rest, contents.size_bytes)
    if rest:
        raise ValueError(f"{len(rest)} bytes follow its end")
    if hashlib.sha256(body).hexdigest() != contents.sha256:
        raise ValueError("its records are not those that its header has the digest of")
    if body.count(b"\n") != header.records:
        raise ValueError(f"its header promises {header.records} records")
    return Opened(segment, header, body)


def _unpack(data: bytes, limit: int) -> tuple[bytes, bytes]:
    """Return the first member of gzip, unpacked, and the bytes behind it."""
    unpacker = zlib.decompressobj(_GZIP)
    unpacked = unpacker.decompress(data, limit + 1)
    if len(unpacked) > limit:
        raise ValueError(f"it holds more than the {limit} bytes that it should")
    if not unpacker.eof:
        raise ValueError("it is cut short")
    return unpacked, unpacker.unused_data


def _record_of(text: bytes) -> Record:
    line = _line_decoder.decode(text)
    if isinstance(line.event, msgspec.Raw):
        value = bytes(line.event)
    elif isinstance(line.raw, str):
        value = base64.b64decode(line.raw, validate=True)
    else:
        raise ValueError("neither `event` nor `raw`")  # noqa: TRY004 - the line's value, not type
    return Record(line.topic, line.partition, line.position, line.key, value)

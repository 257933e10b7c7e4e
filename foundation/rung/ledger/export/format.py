"""Format of exports: a header line, one line per record, those of the seals, and the end line.

    {"format": "rung-ledger", "version": 3, "ledger": …, "experiment": …, "records": n, …}
    {"topic": …, "partition": …, "position": …, "key": …, "event": {a CloudEvent}}
    {"topic": "seals", …}
    {"format": "rung-ledger-end", "lines": n, "digest": …, "heads": […], "key": …, "signature": …}

A value that is not an event of this version (a dead letter) is kept as it is, in base64 under
`raw` instead of `event`.

The last line holds the digest of all lines before it, the signed heads of the seals, and, where
the installation's key was at hand, a signature. Version 1 has neither it nor seals; before version
3 there are no dead letters.
"""

import base64
import binascii
from typing import Final

import msgspec

from rung.events import Event, decode, decode_from, topic
from rung.events.codec import decode_handled
from rung.events.deadletter import FactDropped, FactRetried, MessageDropped
from rung.events.errors import LedgerError, UndecodableEvent
from rung.events.topic import DECISIONS, FACTS_OF
from rung.ledger.port import Record
from rung.ledger.seals import Heads, signed_by

FORMAT: Final = "rung-ledger"
VERSION: Final = 3
VERSION_UNSEALED: Final = 1
"""Of exports without seals and without an end line."""
VERSION_WITHOUT_LETTERS: Final = 2
"""Of exports without dead letters."""
END: Final = "rung-ledger-end"
STREAMS: Final = (topic.METRICS, topic.LOGS, topic.DEADLETTER, topic.IMPORTS)
POINTING: Final = (*FACTS_OF, topic.DEADLETTER)
"""Topics whose events name a fact by its position."""
TOPICS: Final = (*DECISIONS, *FACTS_OF, *STREAMS)
"""The topics of an export, beside the seals."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """An export's first line."""

    format: str = FORMAT
    version: int
    ledger: str
    rung: str
    experiment: str | None
    records: int
    """Without seals."""
    partitions: int = 0
    """Of each topic; 0 in version 1."""
    keys: list[str] = msgspec.field(default_factory=list[str])
    """The public keys that signed its seals."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """An export's last line."""

    format: str = END
    lines: int
    """The number of lines before it."""
    digest: str
    """BLAKE3 of those lines."""
    heads: list[Heads]
    """The heads of the seals of the whole ledger at the export."""
    key: str | None = None
    signature: str | None = None

    @property
    def authentic(self) -> bool:
        """Whether the key signed it."""
        if self.key is None or self.signature is None:
            return False
        return signed_by(self.key, self.signature, end_message(self))


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of an export."""

    topic: str
    partition: int
    position: int
    key: str
    event: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    raw: str | msgspec.UnsetType = msgspec.UNSET


class Parsed(msgspec.Struct, frozen=True):
    """A parsed line: its place, its value, and the event if it holds one."""

    topic: str
    partition: int
    position: int
    key: str
    value: bytes
    event: Event | None


class _Cause(msgspec.Struct):
    causeposition: int = -1


_DROPS: Final = frozenset({MessageDropped.TYPE})
_REQUESTS: Final = frozenset({FactRetried.TYPE, FactDropped.TYPE})
_header_decoder: Final = msgspec.json.Decoder(Header)
_end_decoder: Final = msgspec.json.Decoder(End)
_line_decoder: Final = msgspec.json.Decoder(Line)
_cause_decoder: Final = msgspec.json.Decoder(_Cause)


def line_of(record: Record) -> Line:
    """Return a record as a line of an export."""
    value = record.value
    try:
        decode_from(record.topic, value)
        readable = b"\n" not in value and value == value.strip()
    except UndecodableEvent:
        readable = False
    return Line(
        topic=record.topic,
        partition=record.partition,
        position=record.position,
        key=record.key,
        event=msgspec.Raw(value) if readable else msgspec.UNSET,
        raw=msgspec.UNSET if readable else base64.b64encode(value).decode(),
    )


def drop_in(value: bytes) -> MessageDropped | None:
    """Return which fact an event on the topic of dead letters drops; None if it drops none."""
    try:
        event = decode_handled(value, _DROPS)
    except UndecodableEvent:
        return None
    if event is None:
        return None
    assert isinstance(event.data, MessageDropped)
    return event.data if event.data.topic in DECISIONS else None


def is_request(value: bytes) -> bool:
    """Return whether a fact is an operator's request about a rejected one."""
    try:
        return decode_handled(value, _REQUESTS) is not None
    except UndecodableEvent:
        return False


def parse_header(line: bytes | str) -> Header:
    """Parse the first line.

    Raises:
        LedgerError: it is not an export, or one of a newer version.
    """
    try:
        header = _header_decoder.decode(line)
    except msgspec.DecodeError as error:
        raise LedgerError(f"line 1: this is not an export of a ledger ({error})") from error
    if header.format != FORMAT:
        raise LedgerError(f"line 1: this is not an export of a ledger, but {header.format!r}")
    if not VERSION_UNSEALED <= header.version <= VERSION:
        raise LedgerError(
            f"line 1: this export is of format version {header.version}, written by Rung "
            f"{header.rung}; this Rung reads versions up to {VERSION}. Upgrade Rung, or export "
            "again with a version that writes it"
        )
    return header


def is_end(line: bytes | str) -> bool:
    """Return whether a line is an export's last one."""
    if isinstance(line, str):
        return line.startswith('{"format"')
    return line.startswith(b'{"format"')


def parse_end(line: bytes | str, number: int) -> End:
    """Parse the last line.

    Raises:
        LedgerError: it is damaged.
    """
    try:
        return _end_decoder.decode(line)
    except msgspec.DecodeError as error:
        raise LedgerError(f"line {number} is damaged: {error}") from error


def end_message(end: End) -> bytes:
    """Return the message that the signature of a last line signs."""
    return msgspec.json.encode((END, end.lines, end.digest, end.heads, end.key))


def parse_line(line: bytes | str, number: int) -> Parsed:
    """Parse the line of a record.

    Raises:
        LedgerError: the line is damaged.
    """
    try:
        return _parse(_line_decoder.decode(line))
    except (msgspec.DecodeError, UndecodableEvent, binascii.Error, ValueError) as error:
        raise LedgerError(f"line {number} is damaged: {error}") from error


def _parse(line: Line) -> Parsed:
    if line.topic not in TOPICS and line.topic != topic.SEALS:
        raise ValueError(f"unknown topic {line.topic!r}")
    event: Event | None = None
    if isinstance(line.event, msgspec.Raw):
        value = bytes(line.event)
        event = decode(value)
        if (event.topic, event.key) != (line.topic, line.key):
            raise ValueError(
                f"the event is of {event.topic} and key {event.key!r}, "
                f"the line of {line.topic} and {line.key!r}"
            )
        if line.topic in FACTS_OF and (event.cause is None or event.causeposition is None):
            raise ValueError("a decision without its cause")
    elif isinstance(line.raw, str):
        value = base64.b64decode(line.raw, validate=True)
    else:
        raise ValueError("neither `event` nor `raw`")  # noqa: TRY004 - the line's value, not type
    return Parsed(line.topic, line.partition, line.position, line.key, value, event)


def fact_of(value: bytes) -> int:
    """Return the position of a decision's fact, -1 where it cannot be read."""
    try:
        return _cause_decoder.decode(value).causeposition
    except msgspec.DecodeError:
        return -1

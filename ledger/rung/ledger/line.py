"""One line of an export: a header first, then one per record.

    {"format": "rung-ledger", "version": 1, "ledger": …, "rung": …, "experiment": …, "records": n}
    {"topic": …, "partition": …, "position": …, "key": …, "event": {a CloudEvent}}

A value that is no event of this version (it lies in the dead letters) is kept as it is, in
base64 under `raw` instead of `event`.
"""

import base64
import binascii
from typing import Final

import msgspec

from rung.events import Event, decode, decode_from, topic
from rung.events.errors import LedgerError, UndecodableEvent
from rung.ledger.port import Record

FORMAT: Final = "rung-ledger"
VERSION: Final = 1
DECISIONS: Final = {
    topic.EXPERIMENTS: (topic.SEARCHES, topic.RETIREMENTS),
    topic.POOLS: (topic.PLACEMENTS,),
}
"""Each topic of facts with the topics of decisions on them."""
STREAMS: Final = (topic.METRICS, topic.LOGS, topic.IMPORTS)
FACTS_OF: Final = {name: facts for facts, names in DECISIONS.items() for name in names}
_TOPICS: Final = (*DECISIONS, *FACTS_OF, *STREAMS)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """An export's first line."""

    format: str = FORMAT
    version: int
    ledger: str
    rung: str
    experiment: str | None
    records: int


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of an export."""

    topic: str
    partition: int
    position: int
    key: str
    event: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    raw: str | msgspec.UnsetType = msgspec.UNSET


class Parsed(msgspec.Struct, frozen=True):
    """A line that was understood: where it lay, its value, and the event if it holds one."""

    topic: str
    partition: int
    position: int
    key: str
    value: bytes
    event: Event | None


_header_decoder: Final = msgspec.json.Decoder(Header)
_line_decoder: Final = msgspec.json.Decoder(Line)


def line_of(record: Record) -> Line:
    """Return a record as a line of an export."""
    value = record.value
    try:
        decode_from(record.topic, value)
        readable = b"\n" not in value
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


def parse_header(line: bytes | str) -> Header:
    """Return what the first line says.

    Raises:
        LedgerError: it is no export, or one of a newer version.
    """
    try:
        header = _header_decoder.decode(line)
    except msgspec.DecodeError as error:
        raise LedgerError(f"line 1: this is no export of a ledger ({error})") from error
    if header.format != FORMAT:
        raise LedgerError(f"line 1: this is no export of a ledger, but {header.format!r}")
    if header.version != VERSION:
        raise LedgerError(
            f"line 1: this export is of format version {header.version}, written by Rung "
            f"{header.rung}; this Rung reads version {VERSION}. Upgrade Rung, or export again "
            "with a version that writes it"
        )
    return header


def parse_line(line: bytes | str, number: int) -> Parsed:
    """Return the record that a line holds.

    Raises:
        LedgerError: the line is damaged.
    """
    try:
        return _parse(_line_decoder.decode(line))
    except (msgspec.DecodeError, UndecodableEvent, binascii.Error, ValueError) as error:
        raise LedgerError(f"line {number} is damaged: {error}") from error


def _parse(line: Line) -> Parsed:
    if line.topic not in _TOPICS:
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

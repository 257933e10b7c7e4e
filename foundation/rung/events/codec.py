"""Events as bytes: CloudEvents 1.0 in the structured JSON format."""

import functools
from collections.abc import Container
from typing import Any, Final, get_args

import msgspec

from rung.events.envelope import Event, Payload
from rung.events.errors import UndecodableEvent
from rung.events.topic import TOPICS
from rung.events.upcast import UPCASTERS

PAYLOADS: Final[dict[str, type[Payload]]] = {kind.TYPE: kind for kind in get_args(Payload)}
"""Type string → the record of its data."""


class _Wire(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The envelope on the wire; its data is decoded once the type is known.

    Like `Event` it holds no cycles, so the garbage collector need not track it.
    """

    id: str
    source: str
    type: str
    subject: str
    time: str
    data: msgspec.Raw
    specversion: str
    datacontenttype: str
    actor: str | None = None
    cause: str | None = None
    causeposition: int | None = None
    causeindex: int | None = None
    origin: str | None = None
    sequence: int | None = None
    traceparent: str | None = None
    onbehalfof: str | None = None


class Head(msgspec.Struct, frozen=True, gc=False):
    """The type and the cause of an event; the rest is not decoded."""

    type: str
    causeposition: int | None = None
    causeindex: int | None = None

    @property
    def known(self) -> bool:
        """Whether this version can decode events of the type."""
        return self.type in PAYLOADS or self.type in UPCASTERS


_head_decoder: Final = msgspec.json.Decoder(Head)
_wire_decoder: Final = msgspec.json.Decoder(_Wire)
_decoder_of: Final = functools.cache(msgspec.json.Decoder)
_encoder: Final = msgspec.json.Encoder()


def encode(event: Event) -> bytes:
    """Return the event as one line of JSON."""
    return _encoder.encode(
        _Wire(
            event.id,
            event.source,
            event.data.TYPE,
            event.subject,
            event.time,
            msgspec.Raw(_encoder.encode(event.data)),
            "1.0",
            "application/json",
            event.actor,
            event.cause,
            event.causeposition,
            event.causeindex,
            event.origin,
            event.sequence,
            event.traceparent,
            event.onbehalfof,
        )
    )


def decode_head(value: bytes) -> Head:
    """Return the head of the event that the bytes hold.

    Raises:
        UndecodableEvent: the bytes are no CloudEvent, or of a type unknown to this version.
    """
    try:
        head = _head_decoder.decode(value)
    except msgspec.DecodeError as error:
        raise UndecodableEvent(f"not an event: {error}") from error
    if not head.known:
        raise _unknown(head.type)
    return head


def decode(value: bytes) -> Event:
    """Return the event that the bytes hold; fields that this version does not know are ignored.

    Raises:
        UndecodableEvent: the bytes are no CloudEvent, or of a type unknown to this version.
    """
    try:
        wire = _wire_decoder.decode(value)
        return _event(wire)
    except msgspec.DecodeError as error:
        raise UndecodableEvent(f"not an event: {error}") from error


def decode_handled(value: bytes, types: Container[str]) -> Event | None:
    """Return the event that the bytes hold, None where its type is known and not among `types`.

    Raises:
        UndecodableEvent: the bytes are no CloudEvent, or of a type unknown to this version.
    """
    try:
        wire = _wire_decoder.decode(value)
        if wire.type in PAYLOADS:
            return _event(wire) if wire.type in types else None
        event = _event(wire)  # of an older type, which becomes another one
    except msgspec.DecodeError as error:
        raise UndecodableEvent(f"not an event: {error}") from error
    return event if event.type in types else None


def _event(wire: _Wire) -> Event:
    kind = PAYLOADS.get(wire.type)
    data: Payload = _upcast(wire) if kind is None else _decoder_of(kind).decode(wire.data)
    # By position: naming a dozen fields costs as much as decoding them.
    return Event(
        wire.id,
        wire.source,
        wire.subject,
        wire.time,
        data,
        wire.actor,
        wire.cause,
        wire.causeposition,
        wire.causeindex,
        wire.origin,
        wire.sequence,
        wire.traceparent,
        wire.onbehalfof,
    )


def decode_from(name: str, value: bytes) -> Event:
    """Return the event of a record of a topic; on a topic of decisions it must name its cause.

    Raises:
        UndecodableEvent: the bytes are no event known to this version, or not the decision that
            they should be.
    """
    event = decode(value)
    if TOPICS[name].holds == "decisions" and (
        event.cause is None or event.causeposition is None or event.causeindex is None
    ):
        raise UndecodableEvent(f"not a decision: event {event.id} does not name its cause")
    return event


def _upcast(wire: _Wire) -> Payload:
    kind = wire.type
    data: dict[str, Any] = msgspec.json.decode(wire.data)
    try:
        while kind in UPCASTERS:
            kind, data = UPCASTERS[kind](data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UndecodableEvent(f"not an event: {wire.type}: {error}") from error
    if kind not in PAYLOADS:
        raise _unknown(wire.type)
    return msgspec.convert(data, PAYLOADS[kind])


def _unknown(kind: str) -> UndecodableEvent:
    return UndecodableEvent(f"unknown type {kind!r}; was it written by a newer Rung?")

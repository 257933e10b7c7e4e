"""Every event that Rung writes, and its envelope.

One module per subject holds the payloads (`experiment`, `trial`, `checkpoint`, `allocation`,
`metric`, `directory` with its `changes`, `installation`, `ledger_import`); `envelope` wraps them
as CloudEvents; `codec` turns an event into bytes and back; `upcast` reads what older versions
wrote; `topic` lists the topics and maps keys to partitions; `errors` holds the tree of exceptions.
"""

from rung.events.codec import decode, decode_from, encode
from rung.events.envelope import Event, Payload, decision, fact
from rung.events.errors import (
    EventTooLarge,
    Fenced,
    LedgerDamaged,
    LedgerError,
    LedgerMissing,
    LedgerRefused,
    LedgerTrimmed,
    LedgerUnavailable,
    RungError,
    UndecodableEvent,
)
from rung.events.topic import TOPICS, Topic, partition_of

__all__ = [
    "TOPICS",
    "Event",
    "EventTooLarge",
    "Fenced",
    "LedgerDamaged",
    "LedgerError",
    "LedgerMissing",
    "LedgerRefused",
    "LedgerTrimmed",
    "LedgerUnavailable",
    "Payload",
    "RungError",
    "Topic",
    "UndecodableEvent",
    "decision",
    "decode",
    "decode_from",
    "encode",
    "fact",
    "partition_of",
]

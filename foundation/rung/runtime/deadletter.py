"""Messages that could not be read or folded: what the log and the ledger say of them."""

from collections.abc import Sequence
from typing import Final

import structlog

from rung.events import UndecodableEvent, decode, encode, fact
from rung.events.metric import MessageRejected
from rung.ledger import Draft
from rung.runtime import tracing
from rung.runtime.fact_writer import now
from rung.runtime.fold import Rejected
from rung.runtime.metrics import catalog

_TOLD_BYTES: Final = 128 << 10
"""Of a record's value in its dead letter, which must not be too large for the ledger itself."""
_REASON_MAX: Final = 2_000

_log = structlog.get_logger()


def say_rejected(reader: str, rejected: Sequence[Rejected]) -> None:
    """Say in the log what a reader did not take, what it is about, and from which request."""
    for record, reason in rejected:
        try:
            event = decode(record.value)
        except UndecodableEvent:
            event = None
        with tracing.about(event):
            _log.error(
                "message rejected",
                reader=reader,
                topic=record.topic,
                partition=record.partition,
                position=record.position,
                key=record.key,
                reason=reason,
            )


def dead_letter(ledger_id: str, reader: str, rejected: Rejected) -> Draft:
    """Return the dead letter about a record; the same however often it is met."""
    record, reason = rejected
    catalog.DEAD_LETTERS.of(reader).inc()
    event = fact(
        MessageRejected(
            topic=record.topic,
            partition=record.partition,
            position=record.position,
            key=record.key,
            reader=reader,
            reason=reason[:_REASON_MAX],
            value=record.value[:_TOLD_BYTES].decode(errors="replace"),
        ),
        source=f"/rung/{reader}",
        origin=f"{ledger_id}/{reader}/{record.topic}/{record.partition}",
        sequence=record.position,
        time=now(),
    )
    return Draft(event.topic, event.key, encode(event))

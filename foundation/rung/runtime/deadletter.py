"""Dead letters: messages that a component could not take, and what operators ask of them."""

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

import structlog

from rung.events import UndecodableEvent, decode, encode, fact, partition_of
from rung.events.codec import decode_handled
from rung.events.deadletter import (
    MessageDropped,
    MessageRejected,
    MessageRetryRequested,
    MessageTaken,
)
from rung.events.topic import DEADLETTER
from rung.ledger import Draft, Ledger, Record
from rung.runtime import tracing
from rung.runtime.fact_writer import now
from rung.runtime.fold import Rejected
from rung.runtime.metrics import catalog

_TOLD_BYTES: Final = 128 << 10
"""Of a record's value in its dead letter, which must not be too large for the ledger itself."""
_REASON_MAX: Final = 2_000
_READ_MAX: Final = 2_000
_REQUESTS: Final = frozenset({MessageRetryRequested.TYPE, MessageDropped.TYPE})

_log = structlog.get_logger()


class Letter(NamedTuple):
    """Which message an operator's request is about."""

    position: int
    key: str
    drop: bool
    """Whether to go on without it; else it is tried again."""


class DeadLetters:
    """What operators ask of the messages that one reader rejected in one partition."""

    def __init__(self, ledger: Ledger, reader: str, topic: str, partition: int) -> None:
        """Take whose they are; nothing is read yet."""
        self._ledger = ledger
        self._reader = reader
        self._place = topic, partition
        self._partition = partition_of(topic, ledger.partitions(DEADLETTER))
        self._position = 0
        self.dropped: set[int] = set()
        """Positions of messages that are passed over."""

    async def open(self) -> None:
        """Read what was asked until now.

        Raises:
            LedgerError: the ledger does not answer.
        """
        if self._position == 0:
            self._position = await self._ledger.start(DEADLETTER, self._partition)
        while records := await self._ledger.read(
            DEADLETTER, self._partition, self._position, _READ_MAX
        ):
            self._take(records)

    async def requests(self) -> AsyncIterator[list[Letter]]:
        """Yield what is asked from now on, as it is asked; never an empty list.

        Raises:
            LedgerError: the ledger does not answer.
        """
        async for records in self._ledger.follow(DEADLETTER, self._partition, self._position):
            letters = self._take(records)
            if letters:
                yield letters

    def _take(self, records: Sequence[Record]) -> list[Letter]:
        letters = []
        for record in records:
            self._position = record.position + 1
            try:
                event = decode_handled(record.value, _REQUESTS)
            except UndecodableEvent:
                continue  # written by a newer release, or damaged: no request to this one
            data = event.data if event is not None else None
            if not isinstance(data, MessageRetryRequested | MessageDropped):
                continue
            if (data.reader, data.topic, data.partition) != (self._reader, *self._place):
                continue
            letters.append(Letter(data.position, data.key, isinstance(data, MessageDropped)))
            if isinstance(data, MessageDropped):
                self.dropped.add(data.position)
        return letters


def taken(ledger_id: str, reader: str, record: Record) -> Draft:
    """Return the note that a rejected message was taken after all, or passed over."""
    event = fact(
        MessageTaken(
            topic=record.topic,
            partition=record.partition,
            position=record.position,
            key=record.key,
            reader=reader,
        ),
        source=f"/rung/{reader}",
        origin=f"{ledger_id}/{reader}/{record.topic}/{record.partition}/{record.position}/taken",
        sequence=0,
        time=now(),
    )
    return Draft(event.topic, event.key, encode(event))


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

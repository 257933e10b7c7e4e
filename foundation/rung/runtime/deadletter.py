"""Dead letters: messages that a component could not take, and what operators ask of them.

Every request is answered on the same topic: by `MessageTaken`, or where the message was tried
again in vain by another `MessageRejected`. That one has an origin of its own, by which readers
tell it from the first, which is repeated however often the message is met. A request that has no
answer yet is found again at the next start.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, assert_never

import structlog

from rung.events import Event, UndecodableEvent, decode, encode, fact, partition_of
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
from rung.runtime.metrics import catalog
from rung.runtime.processor.fold import Rejected
from rung.runtime.processor.processor import types_of

_TOLD_BYTES: Final = 128 << 10
"""Of a record's value in its dead letter, which must not be too large for the ledger itself."""
_REASON_MAX: Final = 2_000
_AGAIN: Final = "/again"
"""Ends the origin of a dead letter about a message that was tried again."""
_READ_MAX: Final = 2_000
Message = MessageRejected | MessageRetryRequested | MessageDropped | MessageTaken
_TYPES: Final = types_of(Message)

_log = structlog.get_logger()


class Letter(NamedTuple):
    """Which message an operator's request is about."""

    position: int
    key: str
    drop: bool
    """Whether to go on without it; else it is tried again."""
    asked: int
    """Where the request lies on the topic of dead letters."""


class DeadLetters:
    """The messages that one reader rejected in one partition, and what operators ask of them."""

    def __init__(self, ledger: Ledger, reader: str, topic: str, partition: int) -> None:
        """Take whose they are; nothing is read yet."""
        self._ledger = ledger
        self._reader = reader
        self._place = topic, partition
        self._partition = partition_of(topic, ledger.partitions(DEADLETTER))
        self._position = 0
        self._pending: dict[int, Letter] = {}
        """Position → what is asked of that message, where it is not answered yet."""
        self.rejected: dict[int, str] = {}
        """Positions of messages that were not taken so far, with their keys."""
        self.dropped: set[int] = set()
        """Positions of messages that are passed over."""

    async def open(self) -> None:
        """Read what is on record until now.

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
        """Yield what is asked: what was not answered so far, then what comes; never an empty list.

        Raises:
            LedgerError: the ledger does not answer.
        """
        if self._pending:
            yield self.pending
        async for records in self._ledger.follow(DEADLETTER, self._partition, self._position):
            letters = self._take(records)
            if letters:
                yield letters

    async def answer(self, drafts: Sequence[Draft], settled: Mapping[int, str]) -> None:
        """Append facts, and the notes that messages were taken after all, or passed over.

        Args:
            drafts: of the facts.
            settled: positions of the messages, with their keys.

        Raises:
            LedgerError: the ledger failed; nothing is answered, or nobody knows.
        """
        notes = [self._taken(position, key) for position, key in settled.items()]
        if drafts or notes:
            await self._ledger.append([*drafts, *notes])
        for position in settled:
            self._settle(position)

    @property
    def pending(self) -> list[Letter]:
        """What is asked and has no answer yet."""
        return list(self._pending.values())

    def _take(self, records: Sequence[Record]) -> list[Letter]:
        """Take note of what is on record; return the requests in it that have no answer."""
        start = self._position
        for asked, event, data in messages_in(records):
            self.note(asked, event, data)
        self._position = records[-1].position + 1
        return [letter for letter in self.pending if letter.asked >= start]

    def note(self, asked: int, event: Event, data: Message) -> None:
        """Take note of what the record at a position of the topic of dead letters says."""
        position = data.position
        if (data.reader, data.topic, data.partition) != (self._reader, *self._place):
            return
        match data:
            case MessageRejected():
                self.rejected[position] = data.key
                pending = self._pending.get(position)
                if pending is not None and _answers(event, pending):
                    del self._pending[position]
            case MessageTaken():
                self._settle(position)
            case MessageDropped():
                self.dropped.add(position)
                self._pending[position] = Letter(position, data.key, drop=True, asked=asked)
            case MessageRetryRequested():
                self._pending[position] = Letter(position, data.key, drop=False, asked=asked)
            case _:
                assert_never(data)

    def _settle(self, position: int) -> None:
        self._pending.pop(position, None)
        self.rejected.pop(position, None)

    def _taken(self, position: int, key: str) -> Draft:
        topic, partition = self._place
        event = fact(
            MessageTaken(
                topic=topic, partition=partition, position=position, key=key, reader=self._reader
            ),
            source=f"/rung/{self._reader}",
            origin=f"{self._ledger.id}/{self._reader}/{topic}/{partition}/{position}/taken",
            sequence=0,
            time=now(),
        )
        return Draft(event.topic, event.key, encode(event))


def messages_in(records: Sequence[Record]) -> Iterator[tuple[int, Event, Message]]:
    """Yield position and event of records of the topic of dead letters.

    What a newer release wrote, or is damaged, is nothing to this one.
    """
    for record in records:
        with contextlib.suppress(UndecodableEvent):
            event = decode_handled(record.value, _TYPES)
            if event is not None:
                assert isinstance(event.data, Message)
                yield record.position, event, event.data


def _answers(event: Event, letter: Letter) -> bool:
    """Return whether a rejection came of trying a message again as it was asked."""
    again = event.origin is not None and event.origin.endswith(_AGAIN)
    return again and event.sequence == letter.asked


def say_rejected(reader: str, rejected: Sequence[Rejected]) -> None:
    """Say in the log what a reader did not take, what it is about, and from which request."""
    for record, reason, _ in rejected:
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


def dead_letter(
    ledger_id: str, reader: str, rejected: Rejected, *, asked: int | None = None
) -> Draft:
    """Return the dead letter about a record; the same however often it is met.

    Args:
        ledger_id: where the record lies.
        reader: who could not take it.
        rejected: the record, and why.
        asked: `Letter.asked`, where it was tried again because an operator asked for it.
    """
    record, reason, _ = rejected
    origin = f"{ledger_id}/{reader}/{record.topic}/{record.partition}"
    if asked is not None:
        origin = f"{origin}/{record.position}{_AGAIN}"
    catalog.DEAD_LETTERS.labels(reader).inc()
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
        origin=origin,
        sequence=record.position if asked is None else asked,
        time=now(),
    )
    return Draft(event.topic, event.key, encode(event))

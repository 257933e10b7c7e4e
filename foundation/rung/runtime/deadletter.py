"""Dead letters: messages that a relay or sink rejected, and operators' requests about them.

Every request is answered on the same topic: by `MessageTaken`, or where the retry failed by
another `MessageRejected`. That one has an origin of its own, which distinguishes it from the
first, which is written again whenever the message is read. A reader goes on behind the requests
that it has answered; one without an answer is found again at the next start.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, assert_never

import structlog

from rung.events import Event, LedgerError, UndecodableEvent, decode, fact, partition_of
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
from rung.runtime.checksum import with_checksum, without_checksum
from rung.runtime.fact_writer import now
from rung.runtime.metrics import catalog
from rung.runtime.processor.fold import Rejected
from rung.runtime.processor.processor import types_of

_VALUE_MAX: Final = 128 << 10
"""Bytes of a record's value in its dead letter, which must not be too large for the ledger."""
_REASON_MAX: Final = 2_000
_AGAIN: Final = "/again"
"""Ends the origin of a dead letter about a message that was retried."""
_READ_MAX: Final = 2_000
_SAVE_EVERY: Final = 1_000
"""Records, of whatever readers."""
Message = MessageRejected | MessageRetryRequested | MessageDropped | MessageTaken
_TYPES: Final = types_of(Message)

_log = structlog.get_logger()


class Request(NamedTuple):
    """An operator's request about a message."""

    position: int
    key: str
    drop: bool
    """Whether to skip the message; else it is retried."""
    asked: int
    """Position of the request on the topic of dead letters."""


class Requests:
    """What operators ask of the messages that one reader rejected in one partition."""

    def __init__(self, ledger: Ledger, reader: str, topic: str, partition: int) -> None:
        self._ledger = ledger
        self._reader = reader
        self._place = topic, partition
        self._partition = partition_of(topic, ledger.partitions(DEADLETTER))
        self._name = f"requests/{reader}/{topic}"
        self._position = 0
        """Behind what was read."""
        self._saved: int | None = None
        """Behind what is answered, as the next start will know it; None: not opened."""
        self._pending: dict[int, Request] = {}
        """Position of a message → the request about it that is not answered yet."""

    async def open(self) -> None:
        """Read what came since the last start.

        Raises:
            LedgerError: the ledger does not answer.
        """
        if self._saved is None:
            start = await self._ledger.start(DEADLETTER, self._partition)
            end = await self._ledger.end(DEADLETTER, self._partition)
            saved = await self._load()  # beyond the end: the ledger was restored from a backup
            self._saved = self._position = saved if start <= saved <= end else start
        while records := await self._ledger.read(
            DEADLETTER, self._partition, self._position, _READ_MAX
        ):
            self._take(records)

    async def news(self) -> AsyncIterator[list[Request]]:
        """Yield the unanswered requests, then new ones; never an empty list.

        Raises:
            LedgerError: the ledger does not answer.
        """
        if self._pending:
            yield list(self._pending.values())
        await self._save()
        async for records in self._ledger.follow(DEADLETTER, self._partition, self._position):
            if requests := self._take(records):
                yield requests
            await self._save()

    async def answer(self, drafts: Sequence[Draft], settled: Mapping[int, str]) -> None:
        """Append facts, and settle messages, which are given by position with their keys.

        Raises:
            LedgerError: the ledger failed; the answer may not have been written.
        """
        notes = [self._taken(position, key) for position, key in settled.items()]
        if drafts or notes:
            await self._ledger.append([*drafts, *notes])
        for position in settled:
            self._pending.pop(position, None)

    async def _load(self) -> int:
        try:
            value = await self._ledger.snapshot(self._name, self._place[1])
            return 0 if value is None else int(without_checksum(value))
        except (LedgerError, ValueError) as error:
            _log.warning("snapshot ignored", name=self._name, reason=str(error))
            return 0

    async def _save(self) -> None:
        """Save how far all is answered, where that is some way on.

        A few records are read again at the next start, and what answers them with them.
        """
        assert self._saved is not None, "not open"
        if self._pending or self._position - self._saved < _SAVE_EVERY:
            return
        value = with_checksum(str(self._position).encode())
        try:
            await self._ledger.save_snapshot(self._name, self._place[1], value)
        except LedgerError as error:
            _log.warning("no snapshot saved", name=self._name, reason=str(error))
        self._saved = self._position

    def _take(self, records: Sequence[Record]) -> list[Request]:
        """Note records; return the requests in them that have no answer."""
        start = self._position
        for asked, event, data in _messages_in(records):
            self._note(asked, event, data)
        self._position = records[-1].position + 1
        return [request for request in self._pending.values() if request.asked >= start]

    def _note(self, asked: int, event: Event, data: Message) -> None:
        """Take note of what the record at a position of the topic of dead letters says."""
        position = data.position
        if (data.reader, data.topic, data.partition) != (self._reader, *self._place):
            return
        match data:
            case MessageRejected():
                pending = self._pending.get(position)
                if pending is not None and _answers(event, pending):
                    del self._pending[position]
            case MessageTaken():
                self._pending.pop(position, None)
            case MessageDropped():
                self._pending[position] = Request(position, data.key, drop=True, asked=asked)
            case MessageRetryRequested():
                self._pending[position] = Request(position, data.key, drop=False, asked=asked)
            case _:
                assert_never(data)

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
        return Draft.of(event)


def _messages_in(records: Sequence[Record]) -> Iterator[tuple[int, Event, Message]]:
    """Yield position and event of records of the topic of dead letters.

    Records of a newer release, and damaged ones, are skipped.
    """
    for record in records:
        with contextlib.suppress(UndecodableEvent):
            event = decode_handled(record.value, _TYPES)
            if event is not None:
                assert isinstance(event.data, Message)
                yield record.position, event, event.data


def _answers(event: Event, request: Request) -> bool:
    """Return whether a rejection is the answer to a request."""
    again = event.origin is not None and event.origin.endswith(_AGAIN)
    return again and event.sequence == request.asked


def log_rejected(reader: str, rejected: Sequence[Rejected]) -> None:
    """Log messages that a reader rejected, with their ids and traces."""
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
    """Return the dead letter about a record, the same whenever the record is read.

    `asked` is that of the request whose retry failed.
    """
    record, reason, _ = rejected
    origin = f"{ledger_id}/{reader}/{record.topic}/{record.partition}/{record.position}"
    if asked is not None:
        origin += _AGAIN
    catalog.DEAD_LETTERS.labels(reader).inc()
    event = fact(
        MessageRejected(
            topic=record.topic,
            partition=record.partition,
            position=record.position,
            key=record.key,
            reader=reader,
            reason=reason[:_REASON_MAX],
            value=record.value[:_VALUE_MAX].decode(errors="replace"),
        ),
        source=f"/rung/{reader}",
        origin=origin,
        sequence=0 if asked is None else asked,
        time=now(),
    )
    return Draft.of(event)

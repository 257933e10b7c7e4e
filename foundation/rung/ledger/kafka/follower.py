"""Follows partitions on behalf of all followers in this process.

Theory of operation. A *stream* per partition holds what came and was not taken yet: each partition
is fetched once for all its followers, at the pace of the foremost; one that falls far behind reads
for itself. A stream that has something to catch up with is read by the reader. At the end of its
partition it goes *live*: one `AIOKafkaConsumer` for all waits at the brokers for what is appended.
A live stream of which more comes than is taken is paused, and catches up again.

While a broker is away those who follow its partitions wait. A live stream of which no broker
tells anything for a while, or tells that its position is not there, goes back to the reader, which
finds the broker again or the reason: a topic that is gone, or a position that is no longer or not
yet there, ends the following. A consumer that is told of nothing at all is replaced by one that
begins at the addresses of the URL.
"""

import asyncio
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition, errors

from rung.events.errors import LedgerDamaged, LedgerError, LedgerUnavailable
from rung.ledger.kafka.cluster import Cluster, stop
from rung.ledger.kafka.errors import FAILURES, explain, told
from rung.ledger.kafka.reader import FETCH_BYTES, Reader, records_of
from rung.ledger.port import Record

_BATCH: Final = 1000
_ALL: Final = sys.maxsize
_ANSWER_BYTES: Final = 8 << 20
"""Of one broker's partitions together comes at once."""
_AHEAD_BYTES: Final = 1 << 20
"""A stream runs until this much lies ready for its foremost follower."""
_KEPT_BYTES: Final = 4 << 20
"""What is kept for slower ones; who falls behind that reads for itself."""
_TICK_S: Final = 1.0
_BACKOFF_S: Final = 0.2
_AGAIN_S: Final = 0.05
_QUIET_S: Final = 10.0
"""Between two warnings that a broker does not answer."""

_log = structlog.get_logger()


class Follower:
    """Fetches what the followers of a ledger wait for."""

    def __init__(self, cluster: Cluster, reader: Reader) -> None:
        self._cluster = cluster
        self._reader = reader
        self._streams: dict[TopicPartition, _Stream] = {}
        self._consumer: AIOKafkaConsumer | None = None
        self._running: set[TopicPartition] = set()
        """What the consumer fetches; it has more, which is paused."""
        self._pump: asyncio.Task[None] | None = None
        self._feeding: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._warned_s = float("-inf")
        self._closed: LedgerError | None = None

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on, for ever, as they are appended."""
        position, end = await self._reader.place(topic, partition, position)
        place = TopicPartition(self._cluster.address.topic(topic), partition)
        stream = self._streams.setdefault(place, _Stream(topic, position, live=position == end))
        cursor = _Cursor(position)
        stream.cursors.add(cursor)
        try:
            while True:
                if self._closed is not None:
                    raise self._closed
                records = stream.recent(cursor.position, _BATCH)
                if not records and cursor.position < stream.position:
                    records = await self._read(place, stream, cursor.position, _BATCH)
                    if not records:  # they are there: others have seen the stream go past them
                        await asyncio.sleep(_AGAIN_S)
                        continue
                if records:
                    cursor.position = records[-1].position + 1
                    self._pace(place, stream)
                    yield records
                else:
                    if cursor.position > stream.position:  # others read for themselves
                        stream.skip(cursor.position)
                        self._running.discard(place)
                        self._steer_soon()
                    self._pace(place, stream)
                    await stream.wait(cursor)
        finally:
            stream.cursors.discard(cursor)
            if not stream.cursors and self._streams.get(place) is stream:
                del self._streams[place]
                self._steer_soon()

    async def close(self, reason: LedgerError) -> None:
        """Send the followers away."""
        self._closed = reason
        for stream in self._streams.values():
            stream.fail(reason)
        tasks = [*self._feeding, *([self._pump] if self._pump else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stop()

    def _pace(self, place: TopicPartition, stream: "_Stream") -> None:
        """Have a stream of which somebody wants more filled."""
        if self._closed is not None or not stream.wanted:
            return
        if stream.live:
            if place not in self._running:
                self._steer_soon()
        elif not stream.feeding:
            stream.feeding = True
            task = asyncio.create_task(self._feed(place, stream))
            self._feeding.add(task)
            task.add_done_callback(self._feeding.discard)

    async def _feed(self, place: TopicPartition, stream: "_Stream") -> None:
        """Read on behalf of a stream until it has enough or is live."""
        try:
            while stream.wanted and not stream.live:
                position = stream.position
                records = await self._read(place, stream, position, _ALL)
                if stream.position != position:
                    continue  # somebody who follows further ahead has come meanwhile
                if records:
                    stream.grow(records)
                else:
                    stream.live = True
                    self._steer_soon()
        except LedgerError as error:
            if isinstance(error, LedgerDamaged) and stream.grown:
                self._cluster.lose(place.topic)
            stream.fail(error)
        finally:
            stream.feeding = False

    async def _read(
        self, place: TopicPartition, stream: "_Stream", position: int, limit: int
    ) -> list[Record]:
        """Read what is there, however long the ledger is away."""
        while True:
            try:
                return await self._reader.read(stream.topic, place.partition, position, limit)
            except LedgerUnavailable as error:
                if self._closed is not None:
                    raise
                self._warn(str(error))

    def _steer_soon(self) -> None:
        """Change what the consumer fetches, once for all that changes at the same time."""
        if not self._scheduled and self._closed is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._steer)

    def _steer(self) -> None:
        """Have the consumer fetch the live streams of which more is wanted."""
        self._scheduled = False
        if self._closed is not None:
            return
        if self._pump is None:
            self._pump = asyncio.create_task(self._keep_fetching())
        consumer = self._consumer
        if consumer is None:
            return  # the pump is about to start one
        wanted = {at for at, stream in self._streams.items() if stream.live and stream.wanted}
        if not wanted <= consumer.assignment():
            consumer.assign(list(self._streams))
            for place in self._streams:
                consumer.seek(place, 0)
            consumer.pause(*self._streams)
            self._running.clear()
        consumer.pause(*self._running - wanted)
        started = wanted - self._running
        for place in started:
            self._streams[place].heard_ms = _now_ms()
            consumer.seek(place, self._streams[place].position)
        consumer.resume(*started)
        self._running = wanted

    async def _keep_fetching(self) -> None:
        """Hand what comes to the streams, for ever."""
        while True:
            try:
                await self._fetch()
            except FAILURES as error:
                self._warn(told(error))
                await self._stop()
                await asyncio.sleep(_BACKOFF_S)
            except Exception as error:  # noqa: BLE001 - those who follow must learn of it
                reason = explain(error, "following")
                for stream in self._streams.values():
                    stream.fail(reason)
                await self._stop()
                await asyncio.sleep(_BACKOFF_S)

    async def _fetch(self) -> None:
        """Fetch until the consumer fails.

        Raises:
            KafkaError, OSError: it did.
        """
        if self._consumer is None:
            self._consumer = await self._cluster.started(
                AIOKafkaConsumer(
                    auto_offset_reset="none",
                    enable_auto_commit=False,
                    fetch_max_wait_ms=int(self._cluster.settings.fetch_wait_s * 1000),
                    fetch_max_bytes=_ANSWER_BYTES,
                    max_partition_fetch_bytes=FETCH_BYTES,
                    **self._cluster.options(),
                )
            )
            self._steer()
        consumer: Any = self._consumer
        looked_s = time.monotonic()
        while True:
            try:
                found = await consumer.getmany(timeout_ms=int(_TICK_S * 1000))
            except errors.KafkaError as error:
                self._running.clear()  # what else came is lost with it: all begin where they are
                self._blame(error)
            else:
                for place, items in found.items():
                    stream = self._streams.get(place)
                    if stream is not None and items and items[0].offset >= stream.position:
                        stream.grow(records_of(items, stream.topic))
                        stream.live = stream.wanted
            self._steer()
            if time.monotonic() - looked_s > _TICK_S:
                looked_s = time.monotonic()
                self._look_after(consumer)

    async def _stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._running.clear()
        if consumer is not None:
            await stop(consumer)

    def _blame(self, error: errors.KafkaError) -> None:
        """End the following of what an error is about, or let the reader see to it.

        Raises:
            KafkaError: it is about no partition.
        """
        if isinstance(error, errors.OffsetOutOfRangeError):
            for place in error.args[0]:
                self._back_to_reader(place)
            return
        blamed = [
            (place, stream)
            for place, stream in self._streams.items()
            if error.args in {(place.topic,), (f"Invalid CRC - {place}",)}
        ]
        if not blamed:
            raise error
        for place, stream in blamed:
            stream.fail(explain(error, f"following {place.topic}/{place.partition}"))

    def _look_after(self, consumer: AIOKafkaConsumer) -> None:
        """Let the reader see to partitions that no broker tells of, or that end too early.

        Raises:
            KafkaError: no broker tells of any.
        """
        silent_ms = _now_ms() - 1000 * (self._cluster.settings.fetch_wait_s + 2 * _TICK_S)
        heard = {
            place: max(self._streams[place].heard_ms, consumer.last_poll_timestamp(place) or 0)
            for place in self._running & self._streams.keys()
        }
        for place, heard_ms in heard.items():
            end = consumer.highwater(place)
            if heard_ms < silent_ms or (end is not None and end < self._streams[place].position):
                self._back_to_reader(place)
        if heard and max(heard.values()) < silent_ms:
            raise errors.KafkaConnectionError(f"no broker tells of {len(heard)} partitions")

    def _back_to_reader(self, place: TopicPartition) -> None:
        if (stream := self._streams.get(place)) is not None:
            stream.live = False
            self._pace(place, stream)

    def _warn(self, error: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._warned_s > _QUIET_S:
            self._warned_s = now
            _log.warning("following waits", brokers=str(self._cluster.address), error=error)


class _Cursor:
    """Where one follower is, and what it waits for there."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.waiting: asyncio.Future[None] | None = None


class _Chunk(NamedTuple):
    """What came at once."""

    records: list[Record]
    size: int
    end: int


class _Stream:
    """One partition as the followers in this process see it."""

    def __init__(self, topic: str, position: int, *, live: bool) -> None:
        self.topic: Final = topic
        self.position = position
        """Where what is fetched next begins."""
        self.live = live
        """Whether the consumer fetches it, and not the reader."""
        self.feeding = False
        self.grown = False
        """Whether records came."""
        self.heard_ms = 0
        self.cursors: set[_Cursor] = set()
        self._chunks: deque[_Chunk] = deque()

    @property
    def wanted(self) -> bool:
        """Whether somebody follows the newest of it and has little left to take."""
        foremost = max((cursor.position for cursor in self.cursors), default=-1)
        first = self._chunks[0].records[0].position if self._chunks else self.position
        if foremost < first:
            return False
        return sum(chunk.size for chunk in self._chunks if chunk.end > foremost) < _AHEAD_BYTES

    def recent(self, position: int, limit: int) -> Sequence[Record]:
        """Return records from a position on, nothing if they are not at hand."""
        for chunk in self._chunks:
            if position < chunk.records[0].position:
                break
            if position < chunk.end:
                index = bisect_left(chunk.records, position, key=_position)
                return chunk.records[index : index + limit]
        return ()

    async def wait(self, cursor: _Cursor) -> None:
        """Wait until there is something at the cursor's position, or a failure.

        Raises:
            LedgerError: following it failed.
        """
        cursor.waiting = asyncio.get_running_loop().create_future()
        try:
            await cursor.waiting
        finally:
            cursor.waiting = None

    def skip(self, position: int) -> None:
        """Go on at a later position."""
        self._chunks.clear()
        self.position = position
        self._wake()  # those behind read for themselves what nobody fetches for them now

    def grow(self, records: list[Record]) -> None:
        """Take what was fetched at the stream's position."""
        self.position = records[-1].position + 1
        self.grown = True
        size = sum(map(len, map(_value, records)))
        self._chunks.append(_Chunk(records, size, self.position))
        self._trim()
        self._wake()

    def fail(self, error: LedgerError) -> None:
        """Make all who wait meet a failure."""
        for cursor in self.cursors:
            if cursor.waiting and not cursor.waiting.done():
                cursor.waiting.set_exception(error)

    def _wake(self) -> None:
        for cursor in self.cursors:
            if cursor.waiting and not cursor.waiting.done() and cursor.position < self.position:
                cursor.waiting.set_result(None)

    def _trim(self) -> None:
        positions = [cursor.position for cursor in self.cursors]
        hindmost, foremost = min(positions, default=0), max(positions, default=0)
        kept = sum(chunk.size for chunk in self._chunks)
        while self._chunks:
            first = self._chunks[0]
            if first.end > hindmost and not (kept > _KEPT_BYTES and first.end <= foremost):
                return
            kept -= first.size
            self._chunks.popleft()


_position: Final = attrgetter("position")
_value: Final = attrgetter("value")


def _now_ms() -> int:
    return int(time.time() * 1000)

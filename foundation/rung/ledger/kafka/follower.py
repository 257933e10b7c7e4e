"""Follower: fetches each partition once for all that follow it in this process.

Theory of operation. A *stream* per partition buffers records that are fetched and not yet
consumed, at the speed of its fastest follower; one that falls far behind reads for itself. A
stream behind the end of its partition is filled by the reader. At the end it becomes *live*: one
`AIOKafkaConsumer` for all live streams waits at the brokers for new records. A live stream that
grows faster than it is consumed is paused, and catches up again.

While a broker is away, followers of its partitions wait. A live stream without an answer for a
while, or whose position does not exist, goes back to the reader, which finds the broker again or
the reason: a topic that no longer exists, or a position that does not exist, ends the following. A
consumer without any answer is replaced by one that begins with the addresses of the URL.
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

from rung.events.errors import LedgerDamaged, LedgerError, LedgerTrimmed, LedgerUnavailable
from rung.ledger.kafka.cluster import Cluster, stop
from rung.ledger.kafka.errors import FAILURES, describe, explain
from rung.ledger.kafka.reader import FETCH_BYTES, Reader, records_of
from rung.ledger.port import Record

_BATCH: Final = 1000
_ALL: Final = sys.maxsize
_ANSWER_BYTES: Final = 8 << 20
"""Bytes of all partitions of a broker in one answer."""
_AHEAD_BYTES: Final = 1 << 20
"""A stream is filled until it has so many bytes ahead of its fastest follower."""
_KEPT_BYTES: Final = 4 << 20
"""Bytes kept for slower followers; one behind them reads for itself."""
_TICK_S: Final = 1.0
_BACKOFF_S: Final = 0.2
_AGAIN_S: Final = 0.05
_QUIET_S: Final = 10.0
"""Least time between two warnings that a broker does not answer."""

_log = structlog.get_logger()


class Follower:
    """Follows the partitions of a ledger."""

    def __init__(self, cluster: Cluster, reader: Reader) -> None:
        self._cluster = cluster
        self._reader = reader
        self._streams: dict[TopicPartition, _Stream] = {}
        self._consumer: AIOKafkaConsumer | None = None
        self._running: set[TopicPartition] = set()
        """Partitions that the consumer fetches; the others it is assigned are paused."""
        self._fetching: asyncio.Task[None] | None = None
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
                    if not records:  # the stream is past them, so they exist
                        await asyncio.sleep(_AGAIN_S)
                        continue
                if records:
                    cursor.position = records[-1].position + 1
                    self._fill(place, stream)
                    yield records
                else:
                    if cursor.position > stream.position:  # it read for itself
                        stream.skip(cursor.position)
                        self._running.discard(place)
                        self._steer_soon()
                    self._fill(place, stream)
                    await stream.wait(cursor)
        finally:
            stream.cursors.discard(cursor)
            if not stream.cursors and self._streams.get(place) is stream:
                del self._streams[place]
                self._steer_soon()

    async def close(self, reason: LedgerError) -> None:
        """Stop; followers raise the reason."""
        self._closed = reason
        for stream in self._streams.values():
            stream.fail(reason)
        tasks = [*self._feeding, *([self._fetching] if self._fetching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stop()

    def _fill(self, place: TopicPartition, stream: "_Stream") -> None:
        """Have a stream filled if more of it is wanted."""
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
        """Fill a stream by the reader until it has enough or is live."""
        try:
            while stream.wanted and not stream.live:
                position = stream.position
                try:
                    records = await self._read(place, stream, position, _ALL)
                except LedgerTrimmed:
                    if stream.position == position:
                        raise
                    continue  # the readers went on past the trimmed records meanwhile
                if stream.position != position:
                    continue  # a follower further ahead was added meanwhile
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
        """Read existing records, however long the ledger is unavailable."""
        while True:
            try:
                return await self._reader.read(stream.topic, place.partition, position, limit)
            except LedgerUnavailable as error:
                if self._closed is not None:
                    raise
                self._warn(str(error))

    def _steer_soon(self) -> None:
        """Schedule `_steer` once for all changes of this turn of the event loop."""
        if not self._scheduled and self._closed is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._steer)

    def _steer(self) -> None:
        """Make the consumer fetch the live streams of which more is wanted."""
        self._scheduled = False
        if self._closed is not None:
            return
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._keep_fetching())
        consumer = self._consumer
        if consumer is None:
            return  # the task is about to start one
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
            self._streams[place].answered_ms = _now_ms()
            consumer.seek(place, self._streams[place].position)
        consumer.resume(*started)
        self._running = wanted

    async def _keep_fetching(self) -> None:
        """Fetch for the live streams, for ever."""
        while True:
            try:
                await self._fetch()
            except FAILURES as error:
                self._warn(describe(error))
                await self._stop()
                await asyncio.sleep(_BACKOFF_S)
            except Exception as error:  # noqa: BLE001 - goes to the followers
                reason = explain(error, "following")
                for stream in self._streams.values():
                    stream.fail(reason)
                await self._stop()
                await asyncio.sleep(_BACKOFF_S)

    async def _fetch(self) -> None:
        """Fetch until the consumer fails.

        Raises:
            KafkaError, OSError: the consumer failed.
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
                self._running.clear()  # other records are lost with it: all seek again
                self._handle(error)
            else:
                for place, items in found.items():
                    stream = self._streams.get(place)
                    if stream is not None and items and items[0].offset >= stream.position:
                        stream.grow(records_of(items, stream.topic))
                        self._cluster.seen(*place)
                        stream.live = stream.wanted
            self._steer()
            if time.monotonic() - looked_s > _TICK_S:
                looked_s = time.monotonic()
                self._check_answers(consumer)

    async def _stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._running.clear()
        if consumer is not None:
            await stop(consumer)

    def _handle(self, error: errors.KafkaError) -> None:
        """Fail the streams that an error names, or hand them back to the reader.

        Raises:
            KafkaError: it names no partition.
        """
        if isinstance(error, errors.OffsetOutOfRangeError):
            for place in error.args[0]:
                self._back_to_reader(place)
            return
        failed = [
            (place, stream)
            for place, stream in self._streams.items()
            if error.args in {(place.topic,), (f"Invalid CRC - {place}",)}
        ]
        if not failed:
            raise error
        for place, stream in failed:
            stream.fail(explain(error, f"following {place.topic}/{place.partition}"))

    def _check_answers(self, consumer: AIOKafkaConsumer) -> None:
        """Hand partitions without an answer, or that end too early, back to the reader.

        Raises:
            KafkaError: no partition has an answer.
        """
        silent_ms = _now_ms() - 1000 * (self._cluster.settings.fetch_wait_s + 2 * _TICK_S)
        answered = {
            place: max(self._streams[place].answered_ms, consumer.last_poll_timestamp(place) or 0)
            for place in self._running & self._streams.keys()
        }
        for place, answered_ms in answered.items():
            end = consumer.highwater(place)
            if answered_ms < silent_ms or (
                end is not None and end < self._streams[place].position
            ):
                self._back_to_reader(place)
        if answered and max(answered.values()) < silent_ms:
            raise errors.KafkaConnectionError(f"no broker answers for {len(answered)} partitions")

    def _back_to_reader(self, place: TopicPartition) -> None:
        if (stream := self._streams.get(place)) is not None:
            stream.live = False
            self._fill(place, stream)

    def _warn(self, error: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._warned_s > _QUIET_S:
            self._warned_s = now
            _log.warning("following waits", brokers=str(self._cluster.address), error=error)


class _Cursor:
    """Position of one follower, and the future it waits for there."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.waiting: asyncio.Future[None] | None = None


class _Chunk(NamedTuple):
    """Records that were fetched at once."""

    records: list[Record]
    size: int
    end: int


class _Stream:
    """The buffered records of one partition."""

    def __init__(self, topic: str, position: int, *, live: bool) -> None:
        self.topic: Final = topic
        self.position = position
        """Where the next fetch begins."""
        self.live = live
        """Whether the consumer fetches it, in place of the reader."""
        self.feeding = False
        self.grown = False
        """Whether it ever had records."""
        self.answered_ms = 0
        self.cursors: set[_Cursor] = set()
        self._chunks: deque[_Chunk] = deque()

    @property
    def wanted(self) -> bool:
        """Whether its fastest follower is at the newest records and has few left."""
        fastest = max((cursor.position for cursor in self.cursors), default=-1)
        first = self._chunks[0].records[0].position if self._chunks else self.position
        if fastest < first:
            return False
        return sum(chunk.size for chunk in self._chunks if chunk.end > fastest) < _AHEAD_BYTES

    def recent(self, position: int, limit: int) -> Sequence[Record]:
        """Return buffered records from a position on."""
        for chunk in self._chunks:
            if position < chunk.records[0].position:
                break
            if position < chunk.end:
                index = bisect_left(chunk.records, position, key=_position)
                return chunk.records[index : index + limit]
        return ()

    async def wait(self, cursor: _Cursor) -> None:
        """Wait for records at the cursor's position.

        Raises:
            LedgerError: following it failed.
        """
        cursor.waiting = asyncio.get_running_loop().create_future()
        try:
            await cursor.waiting
        finally:
            cursor.waiting = None

    def skip(self, position: int) -> None:
        """Continue at a later position."""
        self._chunks.clear()
        self.position = position
        self._wake()  # those behind must read the skipped records themselves

    def grow(self, records: list[Record]) -> None:
        """Add records fetched at the stream's position."""
        self.position = records[-1].position + 1
        self.grown = True
        size = sum(map(len, map(_value, records)))
        self._chunks.append(_Chunk(records, size, self.position))
        self._trim()
        self._wake()

    def fail(self, error: LedgerError) -> None:
        """Raise an error in all waiting followers."""
        for cursor in self.cursors:
            if cursor.waiting and not cursor.waiting.done():
                cursor.waiting.set_exception(error)

    def _wake(self) -> None:
        for cursor in self.cursors:
            if cursor.waiting and not cursor.waiting.done() and cursor.position < self.position:
                cursor.waiting.set_result(None)

    def _trim(self) -> None:
        positions = [cursor.position for cursor in self.cursors]
        slowest, fastest = min(positions, default=0), max(positions, default=0)
        kept = sum(chunk.size for chunk in self._chunks)
        while self._chunks:
            first = self._chunks[0]
            if first.end > slowest and not (kept > _KEPT_BYTES and first.end <= fastest):
                return
            kept -= first.size
            self._chunks.popleft()


_position: Final = attrgetter("position")
_value: Final = attrgetter("value")


def _now_ms() -> int:
    return int(time.time() * 1000)

"""Reader: reads records from any position, without waiting for more.

Theory of operation. One `AIOKafkaConsumer` is assigned all partitions of the ledger, all paused. A
read seeks its position, resumes its partition until records arrive, and pauses it again; reads of
different partitions are concurrent. What was fetched beyond the limit is kept for the next read.
At the end of a partition nothing is fetched, for the consumer would wait at the broker.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerStoppedError, TopicPartition, errors

from rung.events.errors import LedgerDamaged, LedgerTrimmed, LedgerUnavailable
from rung.ledger.kafka.cluster import Cluster, stop
from rung.ledger.port import FLEETING, Record

FETCH_BYTES: Final = 1 << 20
"""Bytes of a partition in one answer; a larger record comes all the same."""
_AT_ONCE_MS: Final = 0
"""How long a broker waits for records that exist: not at all."""
_FETCH_MS_MAX: Final = 1000
_AHEAD: Final = 16
"""Partitions of which records beyond the limit are kept."""

T = TypeVar("T")


class Reader:
    """Reads partitions of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._consumer: AIOKafkaConsumer | None = None
        self._starting = asyncio.Lock()
        self._users: set[asyncio.Future[Any]] = set()
        self._closed = False
        self._locks: defaultdict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ends: dict[TopicPartition, int] = {}
        """Positions that partitions reach at least."""
        self._ahead: OrderedDict[tuple[str, int], list[Record]] = OrderedDict()

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on; an empty list at the end.

        Raises:
            LedgerUnavailable: no answer in time.
            LedgerTrimmed: the position was removed.
            LedgerDamaged: the position lies beyond the end, so records were lost.
        """
        if limit < 1:
            return []
        place = (topic, partition)
        records = self._ahead.pop(place, [])
        if not records or records[0].position != position:
            records = await self._use(
                topic,
                partition,
                f"reading from {position} of",
                lambda consumer, at: self._fetch(consumer, topic, at, position),
            )
        if len(records) > limit:
            self._ahead[place] = records[limit:]
            if len(self._ahead) > _AHEAD:
                self._ahead.popitem(last=False)
        return records[:limit]

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        _, end = await self._use(topic, partition, "asking for the end of", self._bounds)
        return end

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists."""
        return await self._use(topic, partition, "asking for the start of", _start)

    async def place(self, topic: str, partition: int, position: int) -> tuple[int, int]:
        """Return the position at which to read, and the end of the partition.

        Raises:
            LedgerTrimmed: the position was removed.
            LedgerDamaged: it lies beyond the end, so records were lost.
        """
        return await self._use(
            topic,
            partition,
            f"looking for {position} in",
            lambda consumer, at: self._placed(consumer, topic, at, position),
        )

    async def close(self) -> None:
        """Close the connections; reads under way raise LedgerUnavailable."""
        self._closed = True
        for using in self._users:
            using.cancel()
        if self._consumer is not None:
            await stop(self._consumer)

    async def _use(
        self,
        topic: str,
        partition: int,
        what: str,
        work: Callable[[AIOKafkaConsumer, TopicPartition], Awaitable[T]],
    ) -> T:
        """Use the consumer for a partition that nothing else reads meanwhile."""
        place = TopicPartition(self._cluster.address.topic(topic), partition)

        async def attempt() -> T:
            consumer = await self._started()
            async with self._locks[place]:
                try:
                    return await work(consumer, place)
                except ConsumerStoppedError:
                    raise errors.KafkaConnectionError("the connections were closed") from None

        what = f"{what} {place.topic}/{partition}"
        using = asyncio.ensure_future(self._cluster.persist(attempt, what, topic=place.topic))
        self._users.add(using)
        try:
            await asyncio.wait({using})
            return using.result()
        except asyncio.CancelledError:
            if using.cancelled() and self._closed:
                address = self._cluster.address
                raise LedgerUnavailable(f"{what}: the ledger {address} is closed") from None
            raise
        except LedgerUnavailable:
            if self._users == {using} and self._consumer is not None:
                consumer, self._consumer = self._consumer, None
                await stop(consumer)
            raise
        finally:
            using.cancel()
            self._users.discard(using)

    async def _started(self) -> AIOKafkaConsumer:
        async with self._starting:
            if self._consumer is None:
                consumer = await self._cluster.started(
                    AIOKafkaConsumer(
                        auto_offset_reset="none",
                        enable_auto_commit=False,
                        fetch_max_wait_ms=_AT_ONCE_MS,
                        max_partition_fetch_bytes=FETCH_BYTES,
                        **self._cluster.options(),
                    )
                )
                places = [
                    TopicPartition(name, partition.number)
                    for name, partitions in self._cluster.topics.items()
                    for partition in partitions
                ]
                consumer.assign(places)
                for place in places:
                    consumer.seek(place, 0)
                consumer.pause(*places)
                self._consumer = consumer
            return self._consumer

    async def _fetch(
        self, consumer: AIOKafkaConsumer, topic: str, place: TopicPartition, position: int
    ) -> list[Record]:
        if position >= self._ends.get(place, 0):
            position, end = await self._placed(consumer, topic, place, position)
            if position == end:
                return []
        try:
            found = await _fetch_at(consumer, place, position)
        except errors.OffsetOutOfRangeError as error:
            placed, _ = await self._placed(consumer, topic, place, position)
            if placed == position:  # a leader that does not know its end yet
                raise errors.StaleMetadata(str(error)) from error
            return await self._fetch(consumer, topic, place, placed)
        if not found:
            del self._ends[place]
            raise errors.RequestTimedOutError("no records arrived")
        return records_of(found, topic)

    async def _placed(
        self, consumer: AIOKafkaConsumer, topic: str, place: TopicPartition, position: int
    ) -> tuple[int, int]:
        start, end = await self._bounds(consumer, place)
        name, partition = place
        if position < start:
            if topic in FLEETING:
                return start, end
            raise LedgerTrimmed(
                f"position {position} of {name}/{partition} was removed by retention: the first "
                f"one is {start}",
                first=start,
            )
        if position > end:
            await self._cluster.refresh()
            if name not in self._cluster.topics:  # brokers may not raise that here
                raise errors.UnknownTopicOrPartitionError(name)
            if end == 0:  # deleted, and created again for a client that asked
                self._cluster.emptied(name, partition)
                raise errors.UnknownTopicOrPartitionError(name)
            raise LedgerDamaged(
                f"{name}/{partition} ends at {end}, before position {position}: the cluster lost "
                "records (an unclean leader election, or a recreated topic). Restore them, or "
                "begin a new ledger under another prefix"
            )
        return position, end

    async def _bounds(self, consumer: AIOKafkaConsumer, place: TopicPartition) -> tuple[int, int]:
        """Return the start and the end of a partition."""
        start, end = await _start(consumer, place), (await consumer.end_offsets([place]))[place]
        if end > start:
            self._cluster.seen(*place)
        self._ends[place] = end
        return start, end


def records_of(items: Sequence[Any], topic: str) -> list[Record]:
    """Return fetched messages of one partition as records."""
    keys: dict[bytes | None, str] = {}  # they repeat, and decoding one costs as much as the rest
    records = []
    for item in items:
        key = keys.get(item.key)
        if key is None:
            key = keys[item.key] = (item.key or b"").decode(errors="replace")
        records.append(Record(topic, item.partition, item.offset, key, item.value or b""))
    return records


async def _start(consumer: AIOKafkaConsumer, place: TopicPartition) -> int:
    return int((await consumer.beginning_offsets([place]))[place])


async def _fetch_at(consumer: AIOKafkaConsumer, place: TopicPartition, position: int) -> list[Any]:
    """Return the messages fetched at a position; none if they do not arrive in time."""
    consumer.seek(place, position)
    consumer.resume(place)
    try:
        found = await consumer.getmany(place, timeout_ms=_FETCH_MS_MAX)
    finally:
        consumer.pause(place)
    return list(found.get(place, []))

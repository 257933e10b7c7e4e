"""Writer: appends to the partitions of a cluster, in batches that are written whole or not at all.

Theory of operation. Each partition has a queue of appends, in order. One batch of each queue at a
time is with the producer (an `AIOKafkaProducer`, which sends the batches of all partitions that
one broker leads in one request, and retries until they are acknowledged). What is appended
meanwhile forms the next batch: a hundred concurrent appends share one, and a single append never
waits for others. Nothing follows a batch before it is settled, so nothing overtakes it, whatever
the broker does.

An append that times out (`timeout_s`) or is canceled leaves its queue with all rows that were not
handed to the producer: of one append, a partition holds all rows, or the first ones. A batch
cannot be taken back from the producer, so its bytes count as buffered until it is settled.

The producer is idempotent: it numbers its batches, so that what it retries is written once. The
numbers do not go on after a refused batch, so a new producer takes over then. What the old one may
have written and the new one writes again is there twice, and readers drop it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from aiokafka import AIOKafkaProducer, errors

from rung.events.errors import EventTooLarge, LedgerError, LedgerUnavailable
from rung.ledger.kafka.cluster import Cluster, retrieve
from rung.ledger.kafka.errors import FAILURES, describe, explain, is_transient

BATCH_BYTES: Final = 1 << 20
OVERHEAD_BYTES: Final = 100
"""Most bytes that a batch and a record add to key and value."""
_BACKOFF_S: Final = 0.1
_STOPS_WITHIN_S: Final = 1.0
_SEQUENCE_LOST: Final = (
    errors.OutOfOrderSequenceNumber,
    errors.DuplicateSequenceNumber,
    errors.UnknownProducerId,
    errors.InvalidProducerEpoch,
    errors.ProducerFenced,
    errors.ProducerClosed,
)
"""Errors after which a new producer can write the batch."""

Row = tuple[bytes, bytes]
"""Key and value."""
Place = tuple[str, int]
"""A topic by its name on the cluster, and a partition."""


class Writer:
    """Appends to the partitions of a cluster."""

    def __init__(self, cluster: Cluster, batch_bytes: int = BATCH_BYTES) -> None:
        self._cluster = cluster
        self._batch_bytes = batch_bytes
        self._queues: dict[Place, _Queue] = {}
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._stopping: set[asyncio.Task[None]] = set()
        self._last_error: Exception | None = None
        self._budget = Budget(cluster.settings.buffer_bytes)
        self._appends = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def buffered_bytes(self) -> int:
        """How much waits to be acknowledged, by appends or after they gave up."""
        return self._budget.taken

    async def append(self, rows: dict[Place, list[Row]]) -> dict[Place, list[int]]:
        """Append rows to partitions, in order within each; return their positions.

        Raises:
            LedgerUnavailable: they were not acknowledged in time.
            LedgerError: the cluster refuses them.
        """
        size = min(sum(map(_size, rows.values())), self._cluster.settings.buffer_bytes)
        taken = 0
        parts: list[_Part] = []
        self._appends += 1
        self._idle.clear()
        try:
            async with asyncio.timeout(self._cluster.settings.timeout_s):
                await self._budget.take(size)
                taken = size
                parts = [self._put(place, more) for place, more in rows.items()]
                for part in parts:
                    await part.done
        except TimeoutError:
            raise self._too_late(rows, parts) from self._last_error
        finally:
            for part in parts:
                taken -= _abandon(part, taken)
            self._budget.give(taken)
            self._appends -= 1
            if not self._appends:
                self._idle.set()
        return {part.queue.place: part.positions for part in parts}

    async def close(self) -> None:
        """Stop once every append is acknowledged or has failed.

        While a broker is away, the producer keeps retrying the batches that it has.
        """
        await self._idle.wait()
        senders = [queue.sender for queue in self._queues.values() if queue.sender is not None]
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        self._replace(self._producer)
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=_STOPS_WITHIN_S)

    def _put(self, place: Place, rows: Sequence[Row]) -> "_Part":
        queue = self._queues.setdefault(place, _Queue(place))
        part = _Part(queue, rows)
        queue.parts.append(part)
        if queue.sender is None:
            queue.sender = asyncio.create_task(self._send_all(queue))
        return part

    def _too_late(self, rows: Iterable[Place], parts: Sequence["_Part"]) -> LedgerUnavailable:
        unfinished = [part.queue.place for part in parts if part.sent < len(part.rows)]
        topic, partition = (unfinished or [*rows])[0]
        why = describe(self._last_error) if self._last_error else "no answer"
        outcome = "whether it was written is not known" if parts else "nothing of it was written"
        return LedgerUnavailable(
            f"appending to {topic}/{partition}: {self._cluster.address} did not acknowledge it "
            f"within {self._cluster.settings.timeout_s:g} s ({why}); {outcome}"
        )

    async def _send_all(self, queue: "_Queue") -> None:
        """Send what waits in a queue, batch by batch."""
        try:
            while queue.waits():
                try:
                    await self._send(queue)
                except LedgerError as error:
                    queue.fail(error)
                except Exception as error:  # noqa: BLE001 - goes to the appends that wait
                    what = f"appending to {queue.place[0]}/{queue.place[1]}"
                    queue.fail(explain(error, what))
        finally:
            queue.sender = None

    async def _send(self, queue: "_Queue") -> None:
        """Write one batch.

        Raises:
            LedgerError: nothing can be written to this partition.
        """
        name, partition = queue.place
        if name not in self._cluster.topics:
            await self._cluster.look(name)
        self._cluster.require(name)
        producer: Any = None
        try:
            producer = await self._started()
            builder = producer.create_batch()
            queue.batch = _Batch(builder, queue.parts)
            try:
                future = await producer.send_batch(builder, name, partition=partition)
            except AssertionError:  # raised where there is no such partition
                raise errors.UnknownTopicOrPartitionError(name) from None
            future.add_done_callback(retrieve)
            found = await self._cluster.attend(future, name)
            if found.offset < 0:
                raise errors.DuplicateSequenceNumber
            if found.offset < queue.end:
                self._cluster.lose(name)
                raise self._cluster.gone(name)
            queue.end = queue.batch.acknowledge(found.offset)
            self._cluster.seen(name, partition)
        except FAILURES as error:
            self._last_error = error
            self._replace(producer)
            if not is_transient(error) and not isinstance(error, _SEQUENCE_LOST):
                if queue.batch is None:
                    raise explain(error, f"appending to {name}/{partition}") from error
                queue.batch.fail(_refusal(error, queue.batch, queue.place))
                return
            self._settle(queue)
            await asyncio.sleep(_BACKOFF_S)
            await self._cluster.look(name)
        finally:
            self._settle(queue)

    def _settle(self, queue: "_Queue") -> None:
        """Note that the producer has no batch of a queue."""
        if queue.batch is not None:
            self._budget.give(queue.batch.kept)
            queue.batch = None

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                self._producer = await self._cluster.started(
                    AIOKafkaProducer(
                        acks="all",
                        enable_idempotence=True,
                        max_batch_size=self._batch_bytes,
                        **self._cluster.options(),
                    )
                )
            return self._producer

    def _replace(self, producer: Any) -> None:
        """Drop a producer, which stops once its batches are settled; the next batch starts one."""
        if self._producer is not None and producer is self._producer:
            self._producer = None
            task: asyncio.Task[None] = asyncio.create_task(producer.stop())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)


class Budget:
    """A bound on the bytes that wait to be sent; appends beyond it wait, in order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._turn = asyncio.Lock()
        self._given = asyncio.Event()
        self.taken = 0

    async def take(self, size: int) -> None:
        """Take bytes; more than the bound waits for all of it."""
        size = min(size, self._size)
        async with self._turn:
            while self.taken + size > self._size:
                self._given.clear()
                await self._given.wait()
            self.taken += size

    def give(self, size: int) -> None:
        """Give bytes back."""
        self.taken -= min(size, self._size)
        self._given.set()


class _Queue:
    """The appends to one partition, in order."""

    def __init__(self, place: Place) -> None:
        self.place: Final = place
        self.parts: Final[deque[_Part]] = deque()
        self.batch: _Batch | None = None
        """What the producer has of it."""
        self.end = 0
        """The position behind the last acknowledged record."""
        self.sender: asyncio.Task[None] | None = None

    def waits(self) -> bool:
        """Drop what is settled or given up; return whether anything is left to send."""
        while self.parts and self.parts[0].done.done():
            self.parts.popleft()
        return bool(self.parts)

    def fail(self, error: LedgerError) -> None:
        """Fail all appends in the queue."""
        for part in self.parts:
            if not part.done.done():
                part.done.set_exception(error)


class _Part:
    """The rows of one append for one partition."""

    __slots__ = ("done", "positions", "queue", "rows", "sent")

    def __init__(self, queue: _Queue, rows: Sequence[Row]) -> None:
        self.queue = queue
        self.rows = rows
        self.sent = 0
        self.positions: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Batch:
    """The rows of a queue that the producer has: how many of which part."""

    def __init__(self, builder: Any, parts: Iterable[_Part]) -> None:
        """Take from the parts as many rows as fit, at least one."""
        self.kept = 0
        """Bytes, of appends that gave up, that stay taken until it is settled."""
        self._taken: list[tuple[_Part, int]] = []
        timestamp = int(time.time() * 1000)
        for part in parts:
            if part.done.done():
                continue
            count = 0
            for key, value in islice(part.rows, part.sent, None):
                if builder.append(timestamp=timestamp, key=key, value=value) is None:
                    break
                count += 1
            if count:
                self._taken.append((part, count))
            if part.sent + count < len(part.rows):
                break
        builder.close()
        self.size: Final = int(builder.size())

    def keep(self, part: _Part, size_max: int) -> int:
        """Keep the bytes that the producer has of a part whose append gave up, and return them."""
        count = sum(count for taken, count in self._taken if taken is part)
        size = min(_size(part.rows[part.sent : part.sent + count]), size_max)
        self.kept += size
        return size

    def acknowledge(self, first: int) -> int:
        """Give the parts their positions; return the one behind."""
        for part, count in self._taken:
            part.positions += range(first, first + count)
            first += count
            part.sent += count
            if not part.done.done() and part.sent == len(part.rows):
                part.done.set_result(None)
        return first

    def fail(self, error: LedgerError) -> None:
        """Fail the parts."""
        for part, _ in self._taken:
            if not part.done.done():
                part.done.set_exception(error)


def _abandon(part: _Part, size_max: int) -> int:
    """Drop the rows of a part that were not sent, and its failure if the append has another one.

    Returns how many bytes of it stay with the producer until it has settled them.
    """
    batch = part.queue.batch
    kept = batch.keep(part, size_max) if batch is not None else 0
    part.rows = ()
    if not part.done.done():
        part.done.cancel()
    elif not part.done.cancelled():
        part.done.exception()
    return kept


def _size(rows: Iterable[Row]) -> int:
    return sum(len(key) + len(value) + OVERHEAD_BYTES for key, value in rows)


def _refusal(error: Exception, batch: _Batch, place: Place) -> LedgerError:
    """Return the error of a batch that the cluster refused."""
    name, partition = place
    if isinstance(error, errors.MessageSizeTooLargeError):
        return EventTooLarge(
            f"the cluster refuses a batch of {batch.size} bytes for {name}: raise the "
            "topic's max.message.bytes"
        )
    return explain(error, f"appending to {name}/{partition}")

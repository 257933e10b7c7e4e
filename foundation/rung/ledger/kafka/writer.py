"""Appends: what waits for a partition goes out as one batch, and each batch is all or nothing.

Theory of operation. Every partition has a *lane*, in which what was appended lies in its order.
One batch of each lane at a time is with the producer (an `AIOKafkaProducer`, which sends those of
all lanes that one broker leads in one request, and repeats them until they are acknowledged).
Meanwhile more comes to lie in the lane, so that a hundred writers share a batch, and one writer
never waits for others to come. As nothing follows a batch before it is settled, nothing overtakes
it, whatever a broker makes of it.

An append that is too late (`timeout_s`) or canceled leaves its lane, with all of it that was not
handed to the producer: what lies in the partition of one append is all of it, or its beginning.
The producer cannot be asked to drop a batch, so what it has counts until it is settled.

The producer numbers its batches, so that what it repeats is written once. The numbers do not go
on after a batch that was refused, so another producer takes over then; what one producer may have
written and another one writes again is there twice, and readers drop it. Brokers that give out no
such numbers serve too, with one more occasion for that.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from aiokafka import AIOKafkaProducer, errors

from rung.events.errors import EventTooLarge, LedgerError, LedgerUnavailable
from rung.ledger.kafka.budget import Budget
from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.errors import FAILURES, explain, passes, told

BATCH_BYTES: Final = 1 << 20
OVERHEAD_BYTES: Final = 100
"""What a batch and a record weigh beside key and value, at most."""
_BACKOFF_S: Final = 0.1
_STOPS_WITHIN_S: Final = 1.0
_NO_NUMBERS: Final = (
    errors.UnknownError,
    errors.ClusterAuthorizationFailedError,
    errors.IncompatibleBrokerVersion,
)
"""How a broker says that it gives out no numbers for batches, or not to this user."""
_LOST_COUNT: Final = (
    errors.OutOfOrderSequenceNumber,
    errors.DuplicateSequenceNumber,
    errors.UnknownProducerId,
    errors.InvalidProducerEpoch,
    errors.ProducerFenced,
    errors.ProducerClosed,
)
"""What another producer can write."""

Row = tuple[bytes, bytes]
"""Key and value."""
Place = tuple[str, int]
"""A topic by its name on the cluster, and a partition."""


class Writer:
    """Appends to the partitions of a cluster."""

    def __init__(self, cluster: Cluster, batch_bytes: int = BATCH_BYTES) -> None:
        self._cluster = cluster
        self._batch_bytes = batch_bytes
        self._lanes: dict[Place, _Lane] = {}
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._numbers = True
        self._stopping: set[asyncio.Task[None]] = set()
        self._last: Exception | None = None
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
        size = sum(_size(more) for more in rows.values())
        size = min(size, self._cluster.settings.buffer_bytes)
        self._appends += 1
        self._idle.clear()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._cluster.settings.timeout_s
        parts: list[_Part] = []
        timer: asyncio.TimerHandle | None = None
        try:
            if not self._budget.take_now(size):
                await self._take(size, deadline, next(iter(rows)))
            parts = [self._put(place, more) for place, more in rows.items()]
            timer = loop.call_at(deadline, self._expire, parts)
            for part in parts:
                await part.done
        finally:
            if timer is not None:
                timer.cancel()
                for part in parts:
                    size -= _leave(part, size)
                self._budget.give(size)
            self._appends -= 1
            if not self._appends:
                self._idle.set()
        return {part.lane.place: part.positions for part in parts}

    async def close(self) -> None:
        """Wait until what was appended is acknowledged or given up, and stop.

        Where a broker is away, the producer goes on by itself with the batches that it has.
        """
        await self._idle.wait()
        pumps = [lane.pump for lane in self._lanes.values() if lane.pump is not None]
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._replace(self._producer)
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=_STOPS_WITHIN_S)

    async def _take(self, size: int, deadline: float, place: Place) -> None:
        """Wait in line for room.

        Raises:
            LedgerUnavailable: there was none in time.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._budget.take(size)
        except TimeoutError:
            raise self._too_late(place, "nothing of it was written") from self._last

    def _expire(self, parts: Sequence["_Part"]) -> None:
        """Fail an append that is too late."""
        for part in parts:
            if not part.done.done():
                outcome = "whether it was written is not known"
                part.done.set_exception(self._too_late(part.lane.place, outcome))

    def _put(self, place: Place, rows: Sequence[Row]) -> "_Part":
        lane = self._lanes.setdefault(place, _Lane(place))
        part = _Part(lane, rows)
        lane.parts.append(part)
        if lane.pump is None:
            lane.pump = asyncio.create_task(self._pump(lane))
        return part

    def _too_late(self, place: Place, outcome: str) -> LedgerUnavailable:
        why = told(self._last) if self._last else "no answer"
        return LedgerUnavailable(
            f"appending to {place[0]}/{place[1]}: {self._cluster.address} did not acknowledge it "
            f"within {self._cluster.settings.timeout_s:g} s ({why}); {outcome}"
        )

    async def _pump(self, lane: "_Lane") -> None:
        """Send what waits in a lane, batch by batch."""
        try:
            while lane.waits():
                try:
                    await self._send(lane)
                except LedgerError as error:
                    lane.fail(error)
                except Exception as error:  # noqa: BLE001 - those who wait must learn of it
                    what = f"appending to {lane.place[0]}/{lane.place[1]}"
                    lane.fail(explain(error, what))
        finally:
            lane.pump = None

    async def _send(self, lane: "_Lane") -> None:
        """Have one batch written.

        Raises:
            LedgerError: nothing can be written to this partition.
        """
        name, partition = lane.place
        if name not in self._cluster.topics:
            await self._cluster.look(name)
        self._cluster.require(name)
        producer: Any = None
        try:
            producer = await self._started()
            builder = producer.create_batch()
            lane.batch = _Batch(builder, lane.parts)
            try:
                future = await producer.send_batch(builder, name, partition=partition)
            except AssertionError:  # how it says that there is no such partition
                raise errors.UnknownTopicOrPartitionError(name) from None
            future.add_done_callback(_retrieve)
            found = await self._cluster.attend(future, name)
            if found.offset < 0:
                raise errors.DuplicateSequenceNumber
            if found.offset < lane.end:
                self._cluster.lose(name)
                raise self._cluster.gone(name)
            lane.end = lane.batch.acknowledge(found.offset)
        except FAILURES as error:
            self._last = error
            self._replace(producer)
            if not passes(error) and not isinstance(error, _LOST_COUNT):
                if lane.batch is None:
                    raise explain(error, f"appending to {name}/{partition}") from error
                lane.batch.fail(_refusal(error, lane.batch, lane.place))
                return
            self._settle(lane)
            await asyncio.sleep(_BACKOFF_S)
            await self._cluster.look(name)
        finally:
            self._settle(lane)

    def _settle(self, lane: "_Lane") -> None:
        """Take note that the producer has nothing of a lane any more."""
        if lane.batch is not None:
            self._budget.give(lane.batch.kept)
            lane.batch = None

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            while self._producer is None:
                producer: Any = AIOKafkaProducer(
                    acks="all",
                    enable_idempotence=self._numbers,
                    max_batch_size=self._batch_bytes,
                    **self._cluster.options(),
                )
                try:
                    self._producer = await self._cluster.started(producer)
                except _NO_NUMBERS:
                    if not self._numbers:
                        raise
                    self._numbers = False
            return self._producer

    def _replace(self, producer: Any) -> None:
        """Let a new producer take over; the old one ends when it has settled what it has."""
        if self._producer is not None and producer is self._producer:
            self._producer = None
            task: asyncio.Task[None] = asyncio.create_task(producer.stop())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)


class _Lane:
    """What waits for one partition."""

    def __init__(self, place: Place) -> None:
        self.place: Final = place
        self.parts: Final[deque[_Part]] = deque()
        self.batch: _Batch | None = None
        """What the producer has of it."""
        self.end = 0
        """Behind what was acknowledged."""
        self.pump: asyncio.Task[None] | None = None

    def waits(self) -> bool:
        """Whether there is something to send; what was settled or given up is cleared."""
        while self.parts and self.parts[0].done.done():
            self.parts.popleft()
        return bool(self.parts)

    def fail(self, error: LedgerError) -> None:
        """Fail all that waits."""
        for part in self.parts:
            if not part.done.done():
                part.done.set_exception(error)


class _Part:
    """What one append has for one partition."""

    __slots__ = ("done", "lane", "positions", "rows", "sent")

    def __init__(self, lane: _Lane, rows: Sequence[Row]) -> None:
        self.lane = lane
        self.rows = rows
        self.sent = 0
        self.positions: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Batch:
    """What the producer has of a lane: how many rows of which part."""

    def __init__(self, builder: Any, parts: Iterable[_Part]) -> None:
        """Take from the parts as many rows as fit, at least one."""
        self.kept = 0
        """Bytes of the budget that stay taken until it is settled: of appends that gave up."""
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
        """Count what the producer has of a part whose append gave up; return how much that is."""
        count = sum(count for taken, count in self._taken if taken is part)
        size = min(_size(part.rows[part.sent : part.sent + count]), size_max)
        self.kept += size
        return size

    def acknowledge(self, first: int) -> int:
        """Tell the parts their positions; return the one behind."""
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


def _leave(part: _Part, size_max: int) -> int:
    """Give up what was not sent of a part, and whatever failed it besides the first.

    Returns how many bytes of it stay with the producer until it has settled them.
    """
    batch = part.lane.batch
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
    """Return why the cluster does not take a batch."""
    name, partition = place
    if isinstance(error, errors.MessageSizeTooLargeError):
        return EventTooLarge(
            f"the cluster refuses a batch of {batch.size} bytes for {name}: raise the "
            "topic's max.message.bytes"
        )
    return explain(error, f"appending to {name}/{partition}")


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Take note of what became of a batch that perhaps nobody waits for any more."""
    if not future.cancelled():
        future.exception()

"""Follows partitions on behalf of all followers in this process: waits at the brokers for more.

Theory of operation. A *stream* per followed partition holds what was fetched and not yet taken.
Whenever streams want more, one request per leading broker takes along all that are not under way
already; it waits at the broker until something is appended. Requests that wait at the same time
have connections of their own, a few per broker; what finds none free is taken along by the next.

A broker that does not answer changes nothing for a follower but the time it waits: the metadata
is asked for anew, and the fetch repeated at the same position, for ever. Only what no repeating
mends ends the following: a position that is no longer or not yet there, a topic that is gone.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Final

import structlog
from aiokafka import errors

from rung.events.errors import LedgerDamaged, LedgerError, LedgerUnavailable
from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.errors import explain, failed, passes, told
from rung.ledger.kafka.fetch import Answer, Wanted, answers, fetch_request, unpack
from rung.ledger.kafka.reader import Reader
from rung.ledger.kafka.stream import Cursor, Stream
from rung.ledger.port import Record

_BATCH: Final = 1000
_FETCH_BYTES: Final = 16 << 20
_PARTITION_BYTES: Final = 1 << 20
_LINKS: Final = 8
"""Connections per broker on which fetches wait."""
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
        self._streams: dict[tuple[str, int], Stream] = {}
        self._busy: dict[int, set[int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._warned_s = float("-inf")
        self._closed: LedgerError | None = None

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on, for ever, as they are appended."""
        position = await self._reader.place(topic, partition, position)
        stream = self._streams.setdefault((topic, partition), Stream(topic, partition, position))
        cursor = Cursor(position)
        stream.cursors.add(cursor)
        try:
            while True:
                if self._closed is not None:
                    raise self._closed
                records = stream.recent(cursor.position, _BATCH)
                if not records and cursor.position < stream.position:
                    records = await self._catch_up(topic, partition, cursor.position)
                    if not records:  # they are there: others have seen the stream go past them
                        await asyncio.sleep(_AGAIN_S)
                        continue
                if records:
                    cursor.position = records[-1].position + 1
                    self._schedule()
                    yield records
                else:
                    self._schedule()
                    await stream.wait(cursor)
        finally:
            stream.cursors.discard(cursor)
            if not stream.cursors and self._streams.get((topic, partition)) is stream:
                del self._streams[topic, partition]

    async def close(self, reason: LedgerError) -> None:
        """Send the followers away."""
        self._closed = reason
        for stream in self._streams.values():
            stream.fail(reason)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _catch_up(self, topic: str, partition: int, position: int) -> Sequence[Record]:
        """Read what is no longer at hand, however long the ledger is away."""
        while True:
            try:
                return await self._reader.read(topic, partition, position, _BATCH)
            except LedgerUnavailable as error:
                if self._closed is not None:
                    raise
                self._warn(str(error))

    def _schedule(self) -> None:
        """Fetch soon: what is wanted in this turn of the loop goes together."""
        if not self._scheduled and self._closed is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Send a fetch to every broker of which something is wanted."""
        self._scheduled = False
        if self._closed is not None:
            return
        ready: dict[int, list[Stream]] = {}
        for stream in self._streams.values():
            if stream.fetching or not stream.wanted:
                continue
            name = self._cluster.address.topic(stream.topic)
            try:
                node = self._cluster.metadata.leader(name, stream.partition)
            except errors.KafkaError as error:
                self._mend_soon(stream, error)
            except LedgerError as error:
                stream.fail(error)
            else:
                ready.setdefault(node, []).append(stream)
        for node, streams in ready.items():
            busy = self._busy.setdefault(node, set())
            free = next((link for link in range(_LINKS) if link not in busy), None)
            if free is not None:
                busy.add(free)
                for stream in streams:
                    stream.fetching = True
                self._run(self._fetch(node, free, streams))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, node: int, link: int, streams: Sequence[Stream]) -> None:
        """Wait at a broker for more of some streams."""
        topic = self._cluster.address.topic
        asked = {(topic(each.topic), each.partition): (each, each.position) for each in streams}
        request = fetch_request(
            [Wanted(*place, position) for place, (_, position) in asked.items()],
            wait_ms=int(self._cluster.settings.fetch_wait_s * 1000),
            bytes_max=_FETCH_BYTES,
            bytes_each=_PARTITION_BYTES,
        )
        try:
            found = list(answers(await self._cluster.send(node, request, f"follow-{link}")))
        except Exception as error:  # noqa: BLE001 - what a broker answers may be of any kind
            await self._pause(error)
            found = []
        finally:
            self._busy[node].discard(link)
        for answer in found:
            stream, position = asked.pop((answer.name, answer.partition))
            stream.fetching = False
            if stream.position != position:
                continue  # somebody who follows further ahead has come meanwhile
            try:
                if _take(stream, answer):
                    self._queue_up(stream)
            except errors.KafkaError as error:
                self._mend_soon(stream, error)
            except Exception as error:  # noqa: BLE001 - bytes of any kind: its followers hear it
                stream.fail(LedgerDamaged(f"{self._place(stream)} cannot be read: {told(error)}"))
        for stream, _ in asked.values():
            stream.fetching = False
        self._schedule()

    def _queue_up(self, stream: Stream) -> None:
        """Ask for it after all others next time.

        A broker fills its answer in the order of the request, and only the first gets a record
        that is larger than its part of it.
        """
        place = (stream.topic, stream.partition)
        if self._streams.get(place) is stream:
            self._streams[place] = self._streams.pop(place)

    def _place(self, stream: Stream) -> str:
        return f"{self._cluster.address.topic(stream.topic)}/{stream.partition}"

    def _mend_soon(self, stream: Stream, error: errors.KafkaError) -> None:
        stream.fetching = True
        self._run(self._mend(stream, stream.position, error))

    async def _mend(self, stream: Stream, position: int, error: errors.KafkaError) -> None:
        """Find out what became of a partition, and fetch it again or end its following."""
        try:
            if isinstance(error, errors.OffsetOutOfRangeError):
                await self._pause(error)
                with contextlib.suppress(LedgerUnavailable):
                    stream.skip(await self._reader.place(stream.topic, stream.partition, position))
            elif passes(error):
                await self._pause(error)
            else:
                stream.fail(explain(error, f"following {self._place(stream)}"))
        except LedgerError as reason:
            stream.fail(reason)
        finally:
            stream.fetching = False
            self._schedule()

    async def _pause(self, error: Exception) -> None:
        """Wait a moment, then ask who leads now."""
        self._warn(told(error))
        await asyncio.sleep(_BACKOFF_S)
        await self._cluster.refresh_quietly()

    def _warn(self, error: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._warned_s > _QUIET_S:
            self._warned_s = now
            _log.warning("following waits", brokers=str(self._cluster.address), error=error)


def _take(stream: Stream, answer: Answer) -> bool:
    """Hand what was fetched at a stream's position to it; return whether that is something.

    Raises:
        KafkaError: it cannot be fetched there.
    """
    if answer.code:
        raise failed(answer.code)
    if answer.raw:
        stream.grow(unpack(answer.raw, stream.topic, stream.partition, stream.position))
    elif answer.end < stream.position:
        raise errors.OffsetOutOfRangeError(f"ends at {answer.end}")
    return bool(answer.raw)

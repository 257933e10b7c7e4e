"""Reads records from any position, without waiting for more."""

from collections import OrderedDict
from typing import Final

from aiokafka import errors

from rung.events.errors import LedgerDamaged, LedgerError, LedgerTrimmed
from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.failure import failed
from rung.ledger.kafka.fetch import (
    AT_ONCE_MS,
    EARLIEST,
    LATEST,
    Fetched,
    Wanted,
    answers,
    bound,
    fetch_request,
    unpack,
)
from rung.ledger.port import Record

_RECORD_BYTES: Final = 2048
"""A record is expected to be no larger, on average."""
_FETCH_BYTES_MIN: Final = 1 << 16
_FETCH_BYTES_MAX: Final = 4 << 20
_AHEAD: Final = 16
"""Of so many partitions is kept what was fetched beyond what was asked for."""


class Reader:
    """Reads partitions of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ahead: OrderedDict[tuple[str, int], list[Record]] = OrderedDict()

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on; an empty list at the end.

        Raises:
            LedgerUnavailable: no answer in time.
            LedgerTrimmed: the position is no longer there.
            LedgerDamaged: the position is not there yet, so that records were lost.
        """
        if limit < 1:
            return []
        place = (topic, partition)
        records = self._ahead.pop(place, [])
        if not records or records[0].position != position:
            size = min(max(limit * _RECORD_BYTES, _FETCH_BYTES_MIN), _FETCH_BYTES_MAX)
            records = await self._cluster.persist(
                lambda: self._fetch(topic, partition, position, size),
                f"reading {self._cluster.address.topic(topic)}/{partition} from {position}",
            )
        if len(records) > limit:
            self._ahead[place] = records[limit:]
            if len(self._ahead) > _AHEAD:
                self._ahead.popitem(last=False)
        return records[:limit]

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        return await self._bound(topic, partition, LATEST)

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists."""
        return await self._bound(topic, partition, EARLIEST)

    async def misplaced(self, topic: str, partition: int, position: int) -> LedgerError | None:
        """Return why a position cannot be read, None if it can."""
        start = await self.start(topic, partition)
        if position < start:
            return LedgerTrimmed(
                f"position {position} of {self._cluster.address.topic(topic)}/{partition} is no "
                f"longer there, its retention took it away: the first one is {start}",
                first=start,
            )
        end = await self.end(topic, partition)
        if position > end:
            return LedgerDamaged(
                f"{self._cluster.address.topic(topic)}/{partition} ends at {end}, but {position} "
                "was reached before: the cluster lost records (an unclean leader election, or a "
                "topic made anew). Restore it, or begin a new ledger under another prefix"
            )
        return None

    async def _bound(self, topic: str, partition: int, which: int) -> int:
        name = self._cluster.address.topic(topic)
        return await self._cluster.persist(
            lambda: bound(self._cluster, name, partition, which),
            f"asking where {name}/{partition} begins and ends",
        )

    async def _fetch(self, topic: str, partition: int, position: int, size: int) -> list[Record]:
        name = self._cluster.address.topic(topic)
        while True:
            wanted = [Wanted(name, partition, position)]
            request = fetch_request(wanted, wait_ms=AT_ONCE_MS, bytes_max=size, bytes_each=size)
            node = self._cluster.leader(name, partition)
            fetched = await self._one(
                await self._cluster.send(node, request, "read"), topic, partition, position
            )
            if fetched.records:
                return fetched.records
            # Nothing but markers of somebody's transactions, or the end. A new leader that does
            # not know yet how far the partition reaches says so when it is asked for that.
            end = await bound(self._cluster, name, partition, LATEST)
            if end <= fetched.end:
                if end < position:
                    await self._check_place(topic, partition, position)
                return []
            position = fetched.end

    async def _one(self, answer: object, topic: str, partition: int, position: int) -> Fetched:
        for found in answers(answer):
            if not found.code:
                return unpack(found.raw, topic, partition, position)
            error = failed(found.code)
            if isinstance(error, errors.OffsetOutOfRangeError):
                await self._check_place(topic, partition, position)
            raise error
        raise errors.KafkaError("an answer without the partition asked for")

    async def _check_place(self, topic: str, partition: int, position: int) -> None:
        """Ask whoever leads now whether a position can be read.

        Raises:
            LedgerError: it cannot.
            StaleMetadata: it can; it was somebody who leads no more that could not.
        """
        await self._cluster.refresh()
        if reason := await self.misplaced(topic, partition, position):
            raise reason
        raise errors.StaleMetadata

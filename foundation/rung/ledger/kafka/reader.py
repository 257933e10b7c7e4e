"""Reads records from any position, without waiting for more."""

from collections import OrderedDict
from typing import Final

from aiokafka import errors

from rung.events.errors import LedgerDamaged, LedgerTrimmed
from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.errors import failed
from rung.ledger.kafka.fetch import (
    AT_ONCE_MS,
    Wanted,
    answers,
    end_of,
    fetch_request,
    start_of,
    unpack,
)
from rung.ledger.port import FLEETING, Record

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
        name = self._cluster.address.topic(topic)
        return await self._cluster.persist(
            lambda: end_of(self._cluster, name, partition), f"asking where {name}/{partition} ends"
        )

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists."""
        name = self._cluster.address.topic(topic)
        return await self._cluster.persist(
            lambda: start_of(self._cluster, name, partition),
            f"asking where {name}/{partition} begins",
        )

    async def place(self, topic: str, partition: int, position: int) -> int:
        """Return where to read when a position is asked for.

        Raises:
            LedgerTrimmed: it is no longer there.
            LedgerDamaged: it is not there yet, so that records were lost.
        """
        name = self._cluster.address.topic(topic)
        start = await self.start(topic, partition)
        if position < start:
            if topic in FLEETING:
                return start
            raise LedgerTrimmed(
                f"position {position} of {name}/{partition} is no longer there, its retention "
                f"took it away: the first one is {start}",
                first=start,
            )
        end = await self.end(topic, partition)
        if position > end:
            raise LedgerDamaged(
                f"{name}/{partition} ends at {end}, before position {position}: the cluster lost "
                "records (an unclean leader election, or a topic made anew). Restore them, or "
                "begin a new ledger under another prefix"
            )
        return position

    async def _fetch(self, topic: str, partition: int, position: int, size: int) -> list[Record]:
        name = self._cluster.address.topic(topic)
        at = position
        while True:
            wanted = [Wanted(name, partition, at)]
            request = fetch_request(wanted, wait_ms=AT_ONCE_MS, bytes_max=size, bytes_each=size)
            node = self._cluster.metadata.leader(name, partition)
            answer = next(answers(await self._cluster.send(node, request, "read")), None)
            if answer is None:
                raise errors.StaleMetadata(f"node {node} says nothing of {name}/{partition}")
            if answer.code:
                error = failed(answer.code)
                if not isinstance(error, errors.OffsetOutOfRangeError):
                    raise error
                at = await self._readable(topic, partition, at)
                continue
            fetched = unpack(answer.raw, topic, partition, at)
            if fetched.records:
                return fetched.records
            if fetched.end == at:  # otherwise: nothing but markers of somebody's transactions
                end = await end_of(self._cluster, name, partition, seen=answer.end)
                if end < at:
                    await self._readable(topic, partition, at)
                elif end == at:
                    return []
            at = fetched.end

    async def _readable(self, topic: str, partition: int, position: int) -> int:
        """Ask whoever leads now where to read on, when somebody could not read a position.

        Raises:
            LedgerError: it cannot be read at all.
        """
        await self._cluster.refresh()
        return await self.place(topic, partition, position)

"""The ledger in memory: for tests, simulations, and audits of exports."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Final

from rung.events import TOPICS, partition_of, topic
from rung.events.errors import (
    LedgerDamaged,
    LedgerError,
    LedgerTrimmed,
    LedgerUnavailable,
)
from rung.ledger.channel import Channel
from rung.ledger.port import FLEETING, Draft, Record, check_trim

_RETENTION: Final = {topic.HEARTBEATS: 1000}
_BATCH: Final = 1000


class _Stream:
    """One partition of one topic."""

    def __init__(self) -> None:
        self.first = 0
        self.records: list[Record] = []
        self.channel = Channel()

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    def read(self, position: int, limit: int, *, fleeting: bool = False) -> list[Record]:
        if position > self.end:
            raise LedgerDamaged(f"a partition ends at {self.end}, before position {position}")
        if position < self.first and not fleeting:
            raise LedgerTrimmed(
                f"position {position} was removed: the first one is {self.first}", first=self.first
            )
        start = max(position - self.first, 0)
        return self.records[start : start + limit]

    def trim(self, keep: int) -> None:
        if len(self.records) > keep + keep // 4:
            self.first += len(self.records) - keep
            del self.records[:-keep]

    def drop(self, position: int) -> None:
        if position > self.first:
            del self.records[: position - self.first]
            self.first = position


class MemoryLedger:
    """A ledger that ends with its process; implements `rung.ledger.port.Ledger`.

    It has no threads, so the order of events is deterministic.
    """

    def __init__(self, *, partitions: int = 4, ledger_id: str | None = None) -> None:
        self._id = ledger_id or str(uuid.uuid4())
        self._partitions = partitions
        self._streams = {
            (name, partition): _Stream() for name in TOPICS for partition in range(partitions)
        }
        self._consumers: dict[tuple[str, str, int], int] = {}
        self._snapshots: dict[tuple[str, int], bytes] = {}
        self._closed = False

    @property
    def id(self) -> str:
        """The ledger's id, drawn when it was created."""
        return self._id

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        self._stream(topic, 0)
        return self._partitions

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append in order, all or none of them, and return their positions."""
        self._check_open()
        placed = [
            (self._stream(draft.topic, partition), partition, draft)
            for draft in drafts
            for partition in [partition_of(draft.key, self._partitions)]
        ]
        positions: list[int] = []
        for stream, partition, (name, key, value) in placed:
            positions.append(stream.end)
            stream.records.append(Record(name, partition, stream.end, key, value))
        for stream, _, draft in placed:
            if draft.topic in _RETENTION:
                stream.trim(_RETENTION[draft.topic])
            stream.channel.grow(stream.end)
        return positions

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on."""
        self._check_open()
        stream = self._stream(topic, partition)
        return stream.read(position, limit, fleeting=topic in FLEETING)

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists."""
        self._check_open()
        return self._stream(topic, partition).first

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        self._check_open()
        return self._stream(topic, partition).end

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Remove the records before a position."""
        self._check_open()
        stream = self._stream(topic, partition)
        check_trim(topic, partition, position, stream.end)
        stream.drop(position)

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on, for ever, as they are appended."""
        self._check_open()
        stream = self._stream(topic, partition)
        fleeting = topic in FLEETING
        stream.read(position, 1, fleeting=fleeting)
        while True:
            await stream.channel.wait(position)
            records = stream.read(position, _BATCH, fleeting=fleeting)
            position = records[-1].position + 1
            yield records

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        """Return the last committed position of a consumer, 0 if there is none."""
        self._check_open()
        self._stream(topic, partition)
        return self._consumers.get((consumer, topic, partition), 0)

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Commit the position at which a consumer resumes."""
        self._check_open()
        self._stream(topic, partition)
        self._consumers[consumer, topic, partition] = position

    async def append_and_commit(
        self, drafts: Sequence[Draft], consumer: str, topic: str, partition: int, position: int
    ) -> list[int]:
        """Append and commit, both or neither."""
        self._stream(topic, partition)
        positions = await self.append(drafts)
        await self.commit(consumer, topic, partition, position)
        return positions

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Return the newest snapshot saved under the name, None if there is none."""
        self._check_open()
        return self._snapshots.get((name, partition))

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Replace the snapshot of that name."""
        self._check_open()
        self._snapshots[name, partition] = value

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator["MemoryLedger"]:
        """Open a transaction on a copy; see `rung.ledger.port.Transactional`."""
        self._check_open()
        copy = MemoryLedger(partitions=self._partitions, ledger_id=self._id)
        ends = {place: stream.end for place, stream in self._streams.items()}
        for place, stream in self._streams.items():
            copy._streams[place].first = stream.first
            copy._streams[place].records = list(stream.records)
        copy._consumers = dict(self._consumers)
        copy._snapshots = dict(self._snapshots)
        yield copy
        self._check_open()
        if ends != {place: stream.end for place, stream in self._streams.items()}:
            raise LedgerError("something else was appended during a transaction")
        for place, stream in self._streams.items():
            stream.first = copy._streams[place].first
            stream.records = copy._streams[place].records
            stream.channel.grow(stream.end)
        self._consumers = copy._consumers
        self._snapshots = copy._snapshots

    async def close(self) -> None:
        """Close the ledger; followers get LedgerUnavailable."""
        self._closed = True
        for stream in self._streams.values():
            stream.channel.close(_REFUSAL)

    def _check_open(self) -> None:
        if self._closed:
            raise _REFUSAL

    def _stream(self, topic: str, partition: int) -> _Stream:
        try:
            return self._streams[topic, partition]
        except KeyError:
            raise LedgerError(
                f"there is no partition {partition} of a topic {topic!r}; there are 0 to "
                f"{self._partitions - 1} of {', '.join(TOPICS)}"
            ) from None


_REFUSAL: Final = LedgerUnavailable("this ledger is closed")

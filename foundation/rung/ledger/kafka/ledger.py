"""The ledger on a Kafka cluster, for all processes of all machines.

Positions are offsets, and positions of consumers committed offsets; snapshots, which do not fit
into messages, lie in an object store.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, Self

from rung.events import TOPICS, partition_of
from rung.events.errors import (
    EventTooLarge,
    LedgerError,
    LedgerMissing,
    LedgerUnavailable,
    ObjectError,
    ObjectMissing,
)
from rung.ledger.kafka.cluster import Cluster, connect
from rung.ledger.kafka.follower import Follower
from rung.ledger.kafka.positions import Positions
from rung.ledger.kafka.reader import Reader
from rung.ledger.kafka.settings import KafkaSettings, parse_address
from rung.ledger.kafka.topics import Identity, read_identity, record_limits
from rung.ledger.kafka.writer import BATCH_BYTES, OVERHEAD_BYTES, Place, Row, Writer
from rung.ledger.port import Draft, Record, check_trim
from rung.storage import ObjectStore

_INIT: Final = "run `rung cluster init --ledger {url}` once"


class KafkaLedger:
    """An open ledger on a cluster; implements `rung.ledger.port.Ledger`."""

    @classmethod
    async def open(
        cls,
        url: str,
        snapshots: ObjectStore | None = None,
        *,
        settings: KafkaSettings | None = None,
    ) -> Self:
        """Open the ledger at an URL such as `kafka://host:9092,other:9092/prefix`.

        Args:
            url: some of the cluster's brokers, and the prefix of the topics.
            snapshots: the store of snapshots; None where none are saved or read.
            settings: of the connections; from the environment if not given.

        Raises:
            LedgerUnavailable: the cluster does not answer.
            LedgerMissing: there is no ledger, or not all of its topics.
            LedgerError: its topics do not fit, or the login is refused.
        """
        cluster = await connect(parse_address(url), settings or KafkaSettings.from_environment())
        reader = Reader(cluster)
        try:
            found = _check(cluster, await read_identity(cluster, reader))
            limits = await record_limits(cluster)
        except BaseException:
            await reader.close()
            await cluster.close()
            raise
        return cls(cluster, reader, found, limits, snapshots)

    def __init__(
        self,
        cluster: Cluster,
        reader: Reader,
        found: Identity,
        limits: dict[str, int],
        snapshots: ObjectStore | None,
    ) -> None:
        self._cluster = cluster
        self._identity = found
        self._limits = limits
        self._snapshots = snapshots
        self._writer = Writer(cluster, min(BATCH_BYTES, *limits.values()))
        self._reader = reader
        self._follower = Follower(cluster, reader)
        self._positions = Positions(cluster)
        self._closing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """The ledger's own name, drawn when it was created."""
        return self._identity.id

    @property
    def buffered_bytes(self) -> int:
        """How much waits to be acknowledged."""
        return self._writer.buffered_bytes

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        if topic not in TOPICS:
            raise LedgerError(f"there is no topic {topic!r}; there are {', '.join(TOPICS)}")
        return self._identity.partitions

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append in order, all of them or, if it fails, a beginning in each partition."""
        self._check_open()
        rows: dict[Place, list[Row]] = {}
        places: list[tuple[Place, int]] = []
        for draft in drafts:
            place, row = self._row(draft)
            more = rows.setdefault(place, [])
            places.append((place, len(more)))
            more.append(row)
        if not rows:
            return []
        positions = await self._writer.append(rows)
        return [positions[place][index] for place, index in places]

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on; an empty list at the end."""
        self._check(topic, partition)
        return await self._reader.read(topic, partition, position, limit)

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        self._check(topic, partition)
        return await self._reader.end(topic, partition)

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists: 0 but for what retention took away."""
        self._check(topic, partition)
        return await self._reader.start(topic, partition)

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Have the brokers remove the records before a position."""
        self._check(topic, partition)
        check_trim(topic, partition, position, await self._reader.end(topic, partition))
        if position <= await self._reader.start(topic, partition):
            return
        from rung.ledger.kafka.admin import delete_records  # noqa: PLC0415 - takes a third of a second

        await delete_records(
            self._cluster, self._cluster.address.topic(topic), partition, position
        )

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on, for ever, as they are appended.

        While the cluster is away it waits.
        """
        self._check(topic, partition)
        async for records in self._follower.follow(topic, partition, position):
            yield records

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        """Return the position a consumer committed last, 0 if it never did."""
        self._check(topic, partition)
        return await self._positions.position(consumer, topic, partition)

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Remember where a consumer goes on after a restart."""
        self._check(topic, partition)
        await self._positions.commit(consumer, topic, partition, position)

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Return the newest snapshot saved under the name, None if there is none."""
        store = self._store()
        try:
            return await asyncio.to_thread(store.read, self._object(name, partition))
        except ObjectMissing:
            return None
        except ObjectError as error:
            raise LedgerUnavailable(f"reading a snapshot from {store.url}: {error}") from error

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Replace the snapshot of that name."""
        store = self._store()
        try:
            await asyncio.to_thread(store.put_bytes, self._object(name, partition), value)
        except ObjectError as error:
            raise LedgerUnavailable(f"saving a snapshot to {store.url}: {error}") from error

    async def close(self) -> None:
        """Finish pending appends and let go of the cluster; followers get LedgerUnavailable."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._follower.close(self._refusal())
        await self._writer.close()
        await self._reader.close()
        await self._cluster.close()

    def _row(self, draft: Draft) -> tuple[Place, Row]:
        name, key, value = draft
        partition = partition_of(key, self.partitions(name))
        row = (key.encode(), value)
        size = len(row[0]) + len(value)
        limit = self._limits[name]
        if size + OVERHEAD_BYTES > limit:
            raise EventTooLarge(
                f"an event of {size} bytes for {name} (key {key!r}) is larger than the topic "
                f"{self._cluster.address.topic(name)} takes ({limit} bytes): raise its "
                "max.message.bytes, and start the services again"
            )
        return (self._cluster.address.topic(name), partition), row

    def _check(self, topic: str, partition: int) -> None:
        self._check_open()
        if not 0 <= partition < self.partitions(topic):
            raise LedgerError(
                f"topic {topic!r} has no partition {partition}; it has 0 to "
                f"{self.partitions(topic) - 1}"
            )

    def _check_open(self) -> None:
        if self._closing is not None:
            raise self._refusal()

    def _refusal(self) -> LedgerUnavailable:
        return LedgerUnavailable(f"the ledger {self._cluster.address} is closed")

    def _store(self) -> ObjectStore:
        self._check_open()
        if self._snapshots is None:
            raise LedgerError(
                f"the ledger {self._cluster.address} was opened without an object store, in "
                "which snapshots lie: name one with --objects or RUNG_OBJECTS"
            )
        return self._snapshots

    def _object(self, name: str, partition: int) -> str:
        return f"snapshots/{self.id}/{name}/{partition}"


def _check(cluster: Cluster, found: Identity | None) -> Identity:
    """Return the ledger's identity, if it was created and its topics fit."""
    if found is None:
        raise LedgerMissing(
            f"there is no ledger on {cluster.address}: {_INIT.format(url=cluster.address)}"
        )
    for name in TOPICS:
        full = cluster.address.topic(name)
        count = len(cluster.topics.get(full, ()))
        if not count:
            raise LedgerMissing(
                f"the topic {full} is missing: {_INIT.format(url=cluster.address)}, which makes "
                "what is missing"
            )
        if count != found.partitions:
            raise LedgerError(
                f"the topic {full} has {count} partitions; the ledger was made with "
                f"{found.partitions}, which decides where a key lies. Take another "
                "prefix, and export and import the ledger"
            )
    return found

"""Requests for records, and what their answers hold."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from aiokafka import errors
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords

from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.errors import failed
from rung.ledger.port import Record

_EARLIEST: Final = -2
_LATEST: Final = -1
_UNCOMMITTED: Final = 0
_ANY_BYTE: Final = 1

AT_ONCE_MS: Final = 1
"""How long a broker waits for records of which there are some: not at all. With 0 there are
brokers that do not even look."""


class Wanted(NamedTuple):
    """A partition, by the topic's name on the cluster, and where to begin there."""

    name: str
    partition: int
    position: int


class Answer(NamedTuple):
    """What a broker answers about a partition."""

    name: str
    partition: int
    code: int
    """Of the error, 0 if there is none."""
    end: int
    """Where the partition ends, as far as the broker knows."""
    raw: bytes


class Fetched(NamedTuple):
    """Records of a partition, and the position behind them."""

    records: list[Record]
    size: int
    end: int


def fetch_request(
    wanted: Iterable[Wanted], *, wait_ms: int, bytes_max: int, bytes_each: int
) -> Any:
    """Return the request for records of several partitions.

    Args:
        wanted: the partitions, of one leader.
        wait_ms: how long the broker may wait until there is something.
        bytes_max: of the answer; a batch that is larger comes all the same.
        bytes_each: of one partition.
    """
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for name, partition, position in wanted:
        topics.setdefault(name, []).append((partition, position, bytes_each))
    return FetchRequest(wait_ms, _ANY_BYTE, bytes_max, _UNCOMMITTED, list(topics.items()))


def answers(answer: Any) -> Iterator[Answer]:
    """Yield what a broker answers about each partition.

    Raises:
        KafkaError: the request as a whole failed.
    """
    if code := getattr(answer, "error_code", 0):
        raise failed(code)
    for name, partitions in answer.topics:
        for partition, code, end, *_, raw in partitions:
            yield Answer(name, partition, code, end, raw or b"")


def unpack(raw: bytes, topic: str, partition: int, position: int) -> Fetched:
    """Return the records that batches hold from a position on.

    Raises:
        CorruptRecordException: a checksum does not fit.
    """
    records: list[Record] = []
    size = 0
    end = position
    batches = MemoryRecords(raw)
    while batches.has_next():
        batch = batches.next_batch()
        if not batch.validate_crc():
            raise errors.CorruptRecordException(f"checksum of a batch of {topic}/{partition}")
        if not batch.is_control_batch:
            for item in batch:
                offset = item.offset
                if offset < position:
                    continue
                value = item.value or b""
                key = (item.key or b"").decode(errors="replace")
                records.append(Record(topic, partition, offset, key, value))
                size += len(value)
        end = max(end, batch.next_offset)
    return Fetched(records, size, end)


async def start_of(cluster: Cluster, name: str, partition: int) -> int:
    """Return the first position of a partition that exists.

    Raises:
        KafkaError, OSError: no answer.
    """
    return await _bound(cluster, name, partition, _EARLIEST)


async def end_of(cluster: Cluster, name: str, partition: int, *, seen: int | None = None) -> int:
    """Return the position that a partition's next record will get.

    Two requests say so. The first is refused by a new leader that does not know yet how far the
    partition reaches; the second is right also where the first counts batches, as Tansu does.

    Args:
        cluster: to ask.
        name: of the topic on the cluster.
        partition: of the topic.
        seen: an end that a fetch has told already.

    Raises:
        KafkaError, OSError: no answer.
    """
    end = await _bound(cluster, name, partition, _LATEST)
    if seen is not None and seen >= end:
        return seen
    request = fetch_request(
        [Wanted(name, partition, end)], wait_ms=AT_ONCE_MS, bytes_max=1, bytes_each=1
    )
    node = cluster.metadata.leader(name, partition)
    for answer in answers(await cluster.send(node, request, "calls")):
        if answer.code:
            raise failed(answer.code)
        end = max(end, answer.end)
    return end


async def _bound(cluster: Cluster, name: str, partition: int, which: int) -> int:
    request = OffsetRequest(-1, _UNCOMMITTED, [(name, [(partition, which)])])
    answer = await cluster.send(cluster.metadata.leader(name, partition), request, "calls")
    for _, partitions in answer.topics:
        for _, code, *found in partitions:
            if code:
                raise failed(code)
            return int(found[-1])
    raise errors.KafkaError(f"no answer about {name}/{partition}")

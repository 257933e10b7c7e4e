"""The topics of a ledger on a cluster: made, and checked.

`<prefix>.<topic>` for each topic of the ledger, all with the same number of partitions, and
`<prefix>.ledger`, which holds who the ledger is.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import msgspec
from aiokafka import errors

from rung.events import TOPICS, topic
from rung.events.errors import LedgerError
from rung.ledger.kafka.cluster import Cluster, connect
from rung.ledger.kafka.finding import Finding, compare_settings, compare_shape
from rung.ledger.kafka.identity import IDENTITY, Identity, identity, introduce, names
from rung.ledger.kafka.limits import RECORD_BYTES_MAX
from rung.ledger.kafka.reader import Reader
from rung.ledger.kafka.settings import KafkaSettings, parse_address

FOR_EVER: Final = None
RETENTION: Final[Mapping[str, timedelta | None]] = {
    **dict.fromkeys(TOPICS, FOR_EVER),
    topic.METRICS: timedelta(days=30),
    topic.LOGS: timedelta(days=30),
    topic.HEARTBEATS: timedelta(days=1),
}
"""How long the records of each topic are kept, where nothing else is asked for."""
PARTITIONS: Final = 16
REPLICATION: Final = 3


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """What `create` found and made."""

    id: str
    partitions: int
    made: list[str]
    """Topics that were not there before."""


async def create(
    url: str,
    settings: KafkaSettings,
    *,
    partitions: int | None = None,
    replication: int | None = None,
    retention: Mapping[str, timedelta | None] | None = None,
) -> Created:
    """Make what is missing of a ledger on a cluster; what is there stays as it is.

    Args:
        url: `kafka://host:9092/prefix`.
        settings: how to reach the cluster.
        partitions: of each topic, 16 if not given; a ledger that is there keeps its number.
        replication: on how many brokers each record lies; three, or as many as there are.
        retention: by topic, None for ever; over `RETENTION`.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses, or the ledger is there with another number of partitions.
    """
    kept = _retention(retention)
    address = parse_address(url)
    cluster = await connect(address, settings, names(address))
    reader = Reader(cluster)
    try:
        known = await identity(cluster, reader)
        if known and partitions not in {None, known.partitions}:
            raise LedgerError(
                f"{address} has {known.partitions} partitions per topic, not {partitions}: their "
                "number says where a key lies, and cannot change. Take another prefix, and "
                "export and import the ledger"
            )
        count = known.partitions if known else partitions or PARTITIONS
        copies = replication or min(REPLICATION, len(cluster.brokers))
        made = await _make_topics(cluster, count, copies, kept)
        if known is None:
            await reader.close()  # it does not know the topics that were just made
            reader = Reader(cluster)
            known = await identity(cluster, reader) or await introduce(cluster, reader, count)
        return Created(id=known.id, partitions=known.partitions, made=made)
    finally:
        await reader.close()
        await cluster.close()


async def check(
    url: str,
    settings: KafkaSettings,
    *,
    replication: int | None = None,
    retention: Mapping[str, timedelta | None] | None = None,
) -> list[Finding]:
    """Compare a ledger on a cluster with what it should be; nothing is changed.

    Args:
        url: `kafka://host:9092/prefix`.
        settings: how to reach the cluster.
        replication: on how many brokers each record should lie; three, or as many as there are.
        retention: by topic, None for ever; over `RETENTION`.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses.
    """
    from rung.ledger.kafka import admin  # noqa: PLC0415 - kafka-python, not needed everywhere

    kept = _retention(retention)
    address = parse_address(url)
    cluster = await connect(address, settings, names(address))
    reader = Reader(cluster)
    try:
        known = await identity(cluster, reader)
        copies = replication or min(REPLICATION, len(cluster.brokers))
        configs = await admin.described(cluster, names(address))
        findings: list[Finding] = []
        for name in (IDENTITY, *TOPICS):
            full = address.topic(name)
            there = cluster.topics.get(full, [])
            findings += compare_shape(
                full,
                found=len(there),
                partitions=_partitions(name, known),
                replicas=[len(partition.replicas) for partition in there],
                copies=copies,
            )
            if full in configs:
                lasting = RETENTION.get(name, FOR_EVER) is FOR_EVER
                expected = _config(name, copies, kept)
                findings += compare_settings(full, expected, configs[full], lasting=lasting)
        return findings
    finally:
        await reader.close()
        await cluster.close()


def _retention(asked: Mapping[str, timedelta | None] | None) -> Mapping[str, timedelta | None]:
    for name in asked or {}:
        if name not in TOPICS:
            raise LedgerError(
                f"retention: there is no topic {name!r}; there are {', '.join(TOPICS)}"
            )
    return {**RETENTION, **(asked or {})}


def _partitions(name: str, known: Identity | None) -> int | None:
    if name == IDENTITY:
        return 1
    return known.partitions if known else None


def _config(name: str, copies: int, kept: Mapping[str, timedelta | None]) -> dict[str, str]:
    """Return the settings that a topic should have."""
    shared = {
        "max.message.bytes": str(RECORD_BYTES_MAX),
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(max(copies - 1, 1)),
        "unclean.leader.election.enable": "false",
    }
    if name == IDENTITY:
        return {**shared, "cleanup.policy": "compact"}
    limit = kept[name]
    limit_ms = -1 if limit is None else round(limit.total_seconds() * 1000)
    return {
        **shared,
        "cleanup.policy": "delete",
        "retention.bytes": "-1",
        "retention.ms": str(limit_ms),
    }


async def _make_topics(
    cluster: Cluster, count: int, copies: int, kept: Mapping[str, timedelta | None]
) -> list[str]:
    from rung.ledger.kafka import admin  # noqa: PLC0415 - kafka-python, not needed everywhere

    address = cluster.address
    wanted = {address.topic(name): name for name in (IDENTITY, *TOPICS)}
    missing = [full for full in wanted if full not in cluster.topics]
    if not missing:
        return []

    async def see() -> None:
        await cluster.refresh()
        for full in wanted:
            there = cluster.topics.get(full, [])
            if not there or any(partition.leader < 0 for partition in there):
                raise errors.LeaderNotAvailableError(full)

    await admin.make(
        cluster,
        {
            full: {
                "num_partitions": 1 if wanted[full] == IDENTITY else count,
                "replication_factor": copies,
                "configs": _config(wanted[full], copies, kept),
            }
            for full in missing
        },
    )
    await cluster.persist(see, "waiting for the topics")
    return missing

"""Topics of a ledger on a cluster: created, checked, with their limits and the ledger's identity.

`<prefix>.<topic>` for each topic of the ledger, all with the same number of partitions, and
`<prefix>.ledger` with the identity. The records of the latter have keys that never repeat, so that
compaction keeps all of them, and the first one counts: two processes that create the same ledger
at the same time agree on it.
"""

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec
import structlog
from aiokafka import errors
from aiokafka.protocol.admin import DescribeConfigsRequest

from rung.events import TOPICS, topic
from rung.events.errors import LedgerDamaged, LedgerError
from rung.ledger.kafka.cluster import Cluster, Partition, connect
from rung.ledger.kafka.errors import FAILURES, describe, error_of
from rung.ledger.kafka.reader import Reader
from rung.ledger.kafka.settings import IDENTITY, KafkaSettings, parse_address
from rung.ledger.kafka.writer import Writer

FOR_EVER: Final = None
RETENTION: Final[Mapping[str, timedelta | None]] = {
    **dict.fromkeys(TOPICS, FOR_EVER),
    topic.METRICS: timedelta(days=30),
    topic.LOGS: timedelta(days=30),
    topic.HEARTBEATS: timedelta(days=1),
}
"""Default retention of the records of each topic."""
PARTITIONS: Final = 16
REPLICATION: Final = 3
RECORD_BYTES_MAX: Final = 8 << 20
"""Largest record of the topics that `create` makes."""
_LIMIT: Final = "max.message.bytes"
_UNLIMITED: Final = -1
_TOPIC_RESOURCE: Final = 2
_FORMAT: Final = 1

_log = structlog.get_logger()


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a ledger."""

    id: str
    partitions: int
    """Of each topic; it decides the partition of each key, so it never changes."""
    version: int = _FORMAT
    created_ms: int = 0


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `create`."""

    id: str
    partitions: int
    made: list[str]
    """Topics that did not exist before."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A property of a topic that differs from what it should be, or may not be read."""

    topic: str
    """By its name on the cluster."""
    setting: str
    expected: str
    found: str
    grave: bool
    """Whether the ledger cannot be used like this, or will lose what it must keep."""

    def __str__(self) -> str:
        return f"{self.topic}: {self.setting} is {self.found}, should be {self.expected}"


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Identity)


async def create(
    url: str,
    settings: KafkaSettings,
    *,
    partitions: int | None = None,
    replication: int | None = None,
    retention: Mapping[str, timedelta | None] | None = None,
) -> Created:
    """Create what is missing of a ledger on a cluster; existing topics stay as they are.

    Args:
        url: `kafka://host:9092/prefix`.
        settings: of the connections.
        partitions: of each topic, by default 16, or those of the existing ledger.
        replication: brokers that hold each record; three, or as many as there are.
        retention: by topic, None for ever; over `RETENTION`.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses, or the ledger exists with another number of partitions.
    """
    kept = _retention(retention)
    async with _opened(url, settings) as (cluster, reader):
        known = await read_identity(cluster, reader)
        if known and partitions not in {None, known.partitions}:
            raise LedgerError(
                f"{cluster.address} has {known.partitions} partitions per topic, not "
                f"{partitions}: their number decides where a key lies, and cannot change. Take "
                "another prefix, and export and import the ledger"
            )
        count = known.partitions if known else partitions or PARTITIONS
        made = await _create_topics(cluster, count, _copies(cluster, replication), kept)
        known = known or await _introduce(cluster, reader, count)
        return Created(id=known.id, partitions=known.partitions, made=made)


async def check(
    url: str,
    settings: KafkaSettings,
    *,
    replication: int | None = None,
    retention: Mapping[str, timedelta | None] | None = None,
) -> list[Finding]:
    """Compare the topics of a ledger with what they should be; arguments as for `create`.

    Raises:
        LedgerUnavailable: the cluster does not answer.
        LedgerError: it refuses.
    """
    kept = _retention(retention)
    async with _opened(url, settings) as (cluster, reader):
        known = await read_identity(cluster, reader)
        copies = _copies(cluster, replication)
        configurations = await cluster.persist(
            partial(_configurations, cluster), "reading the topics' settings"
        )
        findings: list[Finding] = []
        for name in (IDENTITY, *TOPICS):
            full = cluster.address.topic(name)
            count = 1 if name == IDENTITY else known.partitions if known else None
            findings += _compare_shape(full, cluster.topics.get(full, ()), count, copies)
            if full in configurations:
                lasting = RETENTION.get(name, FOR_EVER) is FOR_EVER
                expected = _config(name, copies, kept)
                findings += compare_settings(full, expected, configurations[full], lasting=lasting)
        return findings


async def read_identity(cluster: Cluster, reader: Reader) -> Identity | None:
    """Return the identity of the ledger on a cluster, None if it was not created yet.

    Raises:
        LedgerDamaged: it is of another version, or its record is damaged.
    """
    name = cluster.address.topic(IDENTITY)
    if name not in cluster.topics:
        return None
    start = await reader.start(IDENTITY, 0)
    records = await reader.read(IDENTITY, 0, start, 1)
    if not records:
        return None
    try:
        found = _decoder.decode(records[0].value)
    except msgspec.DecodeError as error:
        raise LedgerDamaged(f"{name} does not hold the ledger's identity: {error}") from error
    if found.version != _FORMAT:
        raise LedgerDamaged(
            f"{cluster.address} was made by another Rung (version {found.version} of the layout; "
            f"this one knows {_FORMAT}). Install that one"
        )
    return found


async def record_limits(cluster: Cluster) -> dict[str, int]:
    """Return the size of the largest record that each topic takes, in bytes.

    Where this user may not read it, it is what `create` asks for: a broker that takes less refuses
    the record with a message, while too low a limit here would refuse what the broker takes.
    """
    reason = "this user may not read it"
    configurations: Mapping[str, Mapping[str, str] | None] = {}
    try:
        configurations = await _configurations(cluster)
    except FAILURES as error:
        reason = describe(error)
    full = {name: cluster.address.topic(name) for name in TOPICS}
    limits = {name: (configurations.get(full[name]) or {}).get(_LIMIT) for name in TOPICS}
    if unknown := [full[name] for name, limit in limits.items() if not limit]:
        _log.warning(
            f"the topics' {_LIMIT} is not known; this user needs DESCRIBE_CONFIGS on them",
            topics=unknown,
            assumed=RECORD_BYTES_MAX,
            reason=reason,
        )
    return {name: int(limit or RECORD_BYTES_MAX) for name, limit in limits.items()}


def compare_settings(
    full: str, expected: Mapping[str, str], found: Mapping[str, str] | None, *, lasting: bool
) -> Iterator[Finding]:
    """Compare the settings of a topic.

    Args:
        full: the topic, by its name on the cluster.
        expected: what they should be.
        found: the settings that the cluster tells, None if this user may not read them.
        lasting: whether the topic's records are kept for ever by default.
    """
    if found is None:
        yield Finding(
            topic=full,
            setting="configuration",
            expected="legible: grant this user DESCRIBE_CONFIGS on the topic",
            found="hidden",
            grave=False,
        )
        return
    for setting, value in expected.items():
        if found[setting] != value:
            grave = _is_grave(setting, value, found[setting], lasting=lasting)
            yield Finding(
                topic=full, setting=setting, expected=value, found=found[setting], grave=grave
            )


def _compare_shape(
    full: str, found: Sequence[Partition], partitions: int | None, copies: int
) -> Iterator[Finding]:
    """Compare the partitions of a topic and their replicas; None: any number of partitions."""
    differs = partial(Finding, topic=full)
    if not found:
        yield differs(setting="topic", expected="there", found="missing", grave=True)
        return
    count, fewest = len(found), min(len(partition.replicas) for partition in found)
    if partitions not in {None, count}:
        yield differs(setting="partitions", expected=str(partitions), found=str(count), grave=True)
    if fewest < copies:
        yield differs(setting="replication", expected=str(copies), found=str(fewest), grave=False)


def _is_grave(setting: str, expected: str, found: str, *, lasting: bool) -> bool:
    """Return whether a difference costs records, or makes the topic refuse some.

    An event that a topic refuses for its size is lost: what an agent reported never arrives.
    """
    match setting:
        case "cleanup.policy" | "unclean.leader.election.enable":
            return True
        case "max.message.bytes":
            return int(found) < int(expected)
        case "retention.ms" | "retention.bytes":
            return lasting and _is_shorter(int(found), int(expected))
        case _:
            return False


def _is_shorter(found: int, expected: int) -> bool:
    return found != _UNLIMITED and (expected == _UNLIMITED or found < expected)


@contextlib.asynccontextmanager
async def _opened(url: str, settings: KafkaSettings) -> AsyncIterator[tuple[Cluster, Reader]]:
    cluster = await connect(parse_address(url), settings)
    reader = Reader(cluster)
    try:
        yield cluster, reader
    finally:
        await reader.close()
        await cluster.close()


def _retention(
    asked: Mapping[str, timedelta | None] | None,
) -> Mapping[str, timedelta | None]:
    for name in asked or {}:
        if name not in TOPICS:
            raise LedgerError(
                f"retention: there is no topic {name!r}; there are {', '.join(TOPICS)}"
            )
    return {**RETENTION, **(asked or {})}


def _copies(cluster: Cluster, asked: int | None) -> int:
    return asked or min(REPLICATION, len(cluster.brokers))


def _config(name: str, copies: int, kept: Mapping[str, timedelta | None]) -> dict[str, str]:
    """Return the settings that a topic should have."""
    shared = {
        _LIMIT: str(RECORD_BYTES_MAX),
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(max(copies - 1, 1)),
        "unclean.leader.election.enable": "false",
    }
    if name == IDENTITY:
        return {**shared, "cleanup.policy": "compact"}
    limit = kept[name]
    limit_ms = _UNLIMITED if limit is None else round(limit.total_seconds() * 1000)
    return {
        **shared,
        "cleanup.policy": "delete",
        "retention.bytes": str(_UNLIMITED),
        "retention.ms": str(limit_ms),
    }


async def _configurations(cluster: Cluster) -> dict[str, Mapping[str, str] | None]:
    """Return the settings of the existing topics, None where this user may not read them.

    Raises:
        KafkaError, OSError: there is no answer.
    """
    names = [name for name in cluster.address.topics if name in cluster.topics]
    answer = await cluster.send(
        DescribeConfigsRequest([(_TOPIC_RESOURCE, name, None) for name in names])
    )
    found: dict[str, Mapping[str, str] | None] = {}
    for code, _, _, name, entries in answer.resources:
        error = error_of(code) if code else None
        if isinstance(error, errors.TopicAuthorizationFailedError):
            found[name] = None
        elif error is not None:
            raise error
        else:
            found[name] = {setting: value or "" for setting, value, *_ in entries}
    return found


async def _create_topics(
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

    await admin.create_topics(
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


async def _introduce(cluster: Cluster, reader: Reader, count: int) -> Identity:
    """Write the ledger's identity, and return the one that was written first."""
    drawn = Identity(id=str(uuid.uuid4()), partitions=count, created_ms=int(time.time() * 1000))
    writer = Writer(cluster)
    name = cluster.address.topic(IDENTITY)
    try:
        await writer.append({(name, 0): [(drawn.id.encode(), _encoder.encode(drawn))]})
    finally:
        await writer.close()
    found = await read_identity(cluster, reader)
    if found is None:
        raise LedgerDamaged(f"{name} is empty after a record was written to it")
    return found

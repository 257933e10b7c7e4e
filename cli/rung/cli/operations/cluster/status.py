"""What an operator wants to know of a cluster at night; computed here, printed elsewhere."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from aiokafka.protocol.metadata import MetadataRequest
from msgspec import Struct, field

from rung.cli.operations.cluster.decider_status import Decider, Knowledge, PoolStatus
from rung.cli.operations.cluster.group import SHARED, Replica, replicas_of
from rung.cli.operations.cluster.record_status import (
    SealStatus,
    UnfinishedImport,
    look_at_imports,
    look_at_seals,
)
from rung.cli.operations.cluster.relay_status import Consumer, look, look_again
from rung.cli.operations.deciders import DECIDERS, FORWARDERS
from rung.events import TOPICS, LedgerError, topic
from rung.gateway.projections.deadletters import (
    DeadLetterProjection,
    count_open,
    read_dead_letters,
)
from rung.ledger import Ledger
from rung.ledger.kafka import KafkaLedger, KafkaSettings, parse_address
from rung.ledger.kafka.cluster import Cluster, connect
from rung.ledger.kafka.errors import FAILURES
from rung.ledger.kafka.identity import names
from rung.runtime.levels import InstallationLevel
from rung.runtime.projection import Merge
from rung.runtime.projection.store import prepare
from rung.storage import ObjectError, ObjectStore

_LETTERS: Final = 5
_READ_MAX: Final = 200
"""Dead letters at once, which may be large."""
_PATIENCE_S: Final = 6.0
_MOMENT_S: Final = 1.0
"""What is due now and on record a moment later was only on its way."""
_RECENT: Final = timedelta(hours=1)
"""So long an open dead letter is news, as for the alert `RungDeadLetter`."""


class Broker(Struct, kw_only=True):
    """One broker that takes requests, or ought to."""

    id: int
    address: str | None
    """None: it holds records, and the others do not see it."""
    answers: bool


class TopicStatus(Struct, kw_only=True):
    """One topic: where its partitions end, and which of them are in trouble."""

    name: str
    events: int
    ends: list[int]
    leaderless: list[int]
    behind: list[int]
    """Partitions that do not lie on as many brokers as they should."""


class Letter(Struct, kw_only=True):
    """A dead letter."""

    time: str
    reader: str
    topic: str
    key: str
    reason: str


class _Health(Struct):
    leaderless: list[int] = field(default_factory=list[int])
    behind: list[int] = field(default_factory=list[int])


class ClusterStatus(Struct, kw_only=True):
    """All of it; `problems` is what to look at first."""

    ledger: str
    ledger_id: str = ""
    level: int = 1
    """The logic level of new experiments and pools."""
    problems: list[str] = field(default_factory=list[str])
    """The worst first; none: all is well."""
    brokers: list[Broker] = field(default_factory=list[Broker])
    topics: list[TopicStatus] = field(default_factory=list[TopicStatus])
    replicas: dict[str, list[Replica]] = field(default_factory=dict[str, list[Replica]])
    consumers: list[Consumer] = field(default_factory=list[Consumer])
    deciders: list[Decider] = field(default_factory=list[Decider])
    pools: list[PoolStatus] = field(default_factory=list[PoolStatus])
    experiments: dict[str, int] = field(default_factory=dict[str, int])
    """Those that have not ended, by state."""
    seals: SealStatus | None = None
    """None: it could not be found out."""
    unfinished_imports: list[UnfinishedImport] = field(default_factory=list[UnfinishedImport])
    """Until they are complete no service starts."""
    dead_letters: int = 0
    """Those that are open."""
    newest_letters: list[Letter] = field(default_factory=list[Letter])


async def survey(url: str, settings: KafkaSettings, store: ObjectStore | None) -> ClusterStatus:
    """Look at a cluster; what does not answer becomes a problem, and the rest is told.

    Args:
        url: of the ledger.
        settings: how to reach the cluster.
        store: where snapshots lie; without, everything is folded from its beginning.

    Raises:
        LedgerError: no broker answers, or there is no ledger.
    """
    patience = replace(settings, timeout_s=min(settings.timeout_s, _PATIENCE_S))
    status = ClusterStatus(ledger=str(parse_address(url)))
    store = await _reachable(store, status)
    cluster = await connect(parse_address(url), patience, names(parse_address(url)))
    try:
        health = await _look_at_brokers(cluster, status)
        ledger = await KafkaLedger.open(url, store, settings=patience)
        try:
            status.ledger_id = ledger.id
            for name in TOPICS:
                await _look(status, name, _look_at_topic(ledger, name, status, health))
            for service in SHARED:
                await _look(status, service, _look_at_replicas(cluster, service, status))
            await _look_at_records(ledger, status, from_snapshots=store is not None)
        finally:
            await ledger.close()
    finally:
        await cluster.close()
    _judge(status, datetime.now(UTC))
    return status


async def _reachable(store: ObjectStore | None, status: ClusterStatus) -> ObjectStore | None:
    """Return the object store if it answers; that it does not is a problem."""
    if store is None:
        return None
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await asyncio.to_thread(store.list, "snapshots/none/")
    except (ObjectError, TimeoutError) as error:
        reason = str(error) or f"no answer within {_PATIENCE_S:g} s"
        status.problems.append(f"object store {store.url}: {reason}")
        store.close()
        return None
    return store


async def _look_at_brokers(cluster: Cluster, status: ClusterStatus) -> dict[str, _Health]:
    """Ask every broker that is known, and see from one answer who leads and who is in step."""

    async def answers(node: int) -> bool:
        try:
            async with asyncio.timeout(_PATIENCE_S / 2):
                await cluster.send(MetadataRequest([]), node)
        except (*FAILURES, TimeoutError):
            return False
        return True

    known = {node: await answers(node) for node in sorted(cluster.brokers)}
    health: dict[str, _Health] = {}
    holding: set[int] = set()
    for full, partitions in cluster.topics.items():
        found = _Health()
        for number, leader, replicas, in_sync in partitions:
            holding.update(replicas)
            if leader < 0:
                found.leaderless.append(number)
            if len(in_sync) < len(replicas):
                found.behind.append(number)
        health[full.removeprefix(cluster.address.topic(""))] = found
    for node in sorted(holding | known.keys()):
        server = cluster.brokers.get(node)
        status.brokers.append(
            Broker(
                id=node,
                address=str(server) if server else None,
                answers=known.get(node, False),
            )
        )
    return health


async def _look(status: ClusterStatus, what: str, work: Coroutine[Any, Any, None]) -> None:
    """Look at something; if it does not answer, that is a problem, and no reason to stop."""
    try:
        await work
    except LedgerError as error:
        status.problems.append(f"{what}: {error}")


async def _look_at_records(
    ledger: KafkaLedger, status: ClusterStatus, *, from_snapshots: bool
) -> None:
    for name, of in FORWARDERS:
        await _look(status, name, _look_at_consumer(ledger, name, of, status))
    known = Knowledge()
    for process in DECIDERS:
        folding = known.fold(ledger, process, from_snapshots=from_snapshots)
        await _look(status, process.name, folding)
    await _look_again(ledger, status, known)
    status.deciders, status.pools = known.deciders, known.pools
    status.experiments = dict(known.experiments)
    await _look(status, "logic level", _look_at_level(ledger, status))
    await _look(status, "dead letters", look_at_letters(ledger, status))
    await _look(status, "seals", _look_at_seals(ledger, status, from_heads=from_snapshots))
    await _look(status, "imports", _look_at_imports(ledger, status))


async def _look_at_topic(
    ledger: KafkaLedger, name: str, status: ClusterStatus, health: dict[str, _Health]
) -> None:
    ends = [await ledger.end(name, number) for number in range(ledger.partitions(name))]
    found = health.get(name, _Health())
    status.topics.append(
        TopicStatus(
            name=name,
            events=sum(ends),
            ends=ends,
            leaderless=found.leaderless,
            behind=found.behind,
        )
    )


async def _look_at_replicas(cluster: Cluster, service: str, status: ClusterStatus) -> None:
    status.replicas[service] = await replicas_of(cluster, service)


async def _look_at_consumer(
    ledger: KafkaLedger, name: str, followed: str, status: ClusterStatus
) -> None:
    status.consumers.append(await look(ledger, name, followed))


async def _look_again(ledger: KafkaLedger, status: ClusterStatus, known: Knowledge) -> None:
    """Leave out what was only on its way: a cluster that works always has something due."""
    behind = [consumer for consumer in status.consumers if consumer.lag]
    if not behind and not known.due:
        return
    await asyncio.sleep(_MOMENT_S)
    for consumer in behind:
        await _look(status, consumer.name, look_again(ledger, consumer))
    await _look(status, "deciders", known.look_again(ledger))


async def look_at_letters(ledger: Ledger, status: ClusterStatus) -> None:
    """Find the dead letters that are open.

    Raises:
        LedgerError: the ledger does not answer.
    """
    projection = DeadLetterProjection()
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        prepare(db, projection, ledger.id)
        for partition in range(ledger.partitions(topic.DEADLETTER)):
            merge = Merge(projection, db, partition)
            position = await ledger.start(topic.DEADLETTER, partition)
            while records := await ledger.read(topic.DEADLETTER, partition, position, _READ_MAX):
                merge.fold(records)
                position = records[-1].position + 1
        status.dead_letters = count_open(db)
        status.newest_letters = [
            Letter(
                time=item.at,
                reader=item.reader,
                topic=item.topic,
                key=item.key,
                reason=item.reason,
            )
            for item in read_dead_letters(db, "open", limit=_LETTERS)
        ]


async def _look_at_seals(ledger: KafkaLedger, status: ClusterStatus, *, from_heads: bool) -> None:
    try:
        status.seals = await look_at_seals(ledger, from_heads=from_heads)
    except (ObjectError, ValueError) as error:
        raise LedgerError(f"the signed heads cannot be read: {error}") from error


async def _look_at_level(ledger: KafkaLedger, status: ClusterStatus) -> None:
    status.level = await InstallationLevel(ledger).read()


async def _look_at_imports(ledger: KafkaLedger, status: ClusterStatus) -> None:
    status.unfinished_imports = await look_at_imports(ledger)


def _judge(status: ClusterStatus, now: datetime) -> None:
    """Say what is wrong, the worst first."""
    wrong = [
        f"broker {broker.id} ({broker.address or 'gone'}) does not answer"
        for broker in status.brokers
        if not broker.answers
    ]
    for item in status.topics:
        if item.leaderless:
            wrong.append(f"{item.name}: nobody leads partition {_numbers(item.leaderless)}")
        if item.behind:
            wrong.append(f"{item.name}: a replica of partition {_numbers(item.behind)} is behind")
    wrong += [item.problem for item in status.unfinished_imports]
    wrong += [f"{name}: no replica runs" for name, held in status.replicas.items() if not held]
    for decider in status.deciders:
        if decider.pending:
            wrong.append(f"{decider.name}: {decider.pending:,} decisions are due")
        for key, reason in decider.broken.items():
            wrong.append(f"{decider.name}: cannot go on with {key}: {reason}")
        if decider.left_alone:
            wrong.append(
                f"{decider.name}: {decider.left_alone:,} keys are left alone, of logic level "
                f"{decider.level}: replace its replicas by the release that raised the level"
            )
    wrong += [problem for item in status.consumers if (problem := item.problem())]
    wrong += [
        f"pool {pool.name}: {pool.waiting:,} allocations wait, and it has no agent"
        for pool in status.pools
        if pool.waiting and not pool.agents
    ]
    wrong += [f"pool {pool.name}: {problem}" for pool in status.pools for problem in pool.problems]
    if status.newest_letters and _is_recent(newest := status.newest_letters[0], now):
        count = f"{status.dead_letters:,} open, the newest at {newest.time} by {newest.reader}"
        wrong.append(f"dead letters: {count}")
    if status.seals is not None and (problem := status.seals.problem(now)):
        wrong.append(problem)
    status.problems = wrong + status.problems


def _is_recent(letter: Letter, now: datetime) -> bool:
    try:
        return now - datetime.fromisoformat(letter.time) < _RECENT
    except (TypeError, ValueError):  # no time, or one of no zone
        return False


def _numbers(partitions: list[int]) -> str:
    return ", ".join(map(str, partitions))

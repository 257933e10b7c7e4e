"""Surveys a cluster: brokers, topics, replicas, and how far processors, relays and sealing are.

Processors are folded as they fold themselves, from the newest snapshot and the records behind it,
and nothing is written. So agents, slots and experiments are those of the ledger, whichever process
is down, and decisions that are due are distinguished from facts of which nothing follows.

What is due or behind is looked at twice, because a cluster that works always has something on its
way.
"""

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from aiokafka.protocol.metadata import MetadataRequest
from msgspec import Struct, field

from rung.checkpoint_gc.service import DELETER
from rung.cli.operations.cluster.replicas import SHARED, replicas_of
from rung.cli.operations.cluster.status import (
    Broker,
    ClusterStatus,
    Consumer,
    DeadLetter,
    Decider,
    PoolStatus,
    SealStatus,
    TopicStatus,
    UnfinishedImport,
)
from rung.cli.operations.components import CONSUMERS, PROCESSORS
from rung.events import TOPICS, LedgerDamaged, LedgerError, UndecodableEvent, decode, topic
from rung.events.seal import PartitionSealed
from rung.gateway.projections.deadletters import (
    DeadLetterProjection,
    count_open,
    read_dead_letters,
)
from rung.ledger import Ledger, Record
from rung.ledger.export.import_record import imports_of, unfinished
from rung.ledger.kafka import KafkaLedger, KafkaSettings, parse_address
from rung.ledger.kafka.cluster import Cluster, connect
from rung.ledger.kafka.errors import FAILURES
from rung.ledger.port import read_all
from rung.ledger.seals import SEALED, read_heads
from rung.runtime import PartitionFold, Processor
from rung.runtime.levels import InstallationLevel
from rung.runtime.processor.replay import recover, refold, scan_decisions
from rung.runtime.projection import Merge
from rung.runtime.projection.store import prepare
from rung.scheduler.state import State as Pool
from rung.searcher.state import State as Experiment
from rung.storage import ObjectError, ObjectStore

_DEAD_LETTERS: Final = 5
_LETTERS_READ: Final = 10_000
"""Of the newest records about dead letters, in each partition."""
_TIMEOUT_S: Final = 6.0
_SECOND_LOOK_S: Final = 1.0
_LOOK_BACK: Final = 100
"""Newest decisions among which the answer to the newest fact is looked for."""


async def survey(url: str, settings: KafkaSettings, store: ObjectStore | None) -> ClusterStatus:
    """Survey a cluster; a part that does not answer is listed as a problem.

    Args:
        url: of the ledger.
        settings: how to reach the cluster.
        store: of snapshots; without it, everything is folded from its beginning.

    Raises:
        LedgerError: no broker answers, or there is no ledger.
    """
    settings = replace(settings, timeout_s=min(settings.timeout_s, _TIMEOUT_S))
    status = ClusterStatus(ledger=str(parse_address(url)))
    store = await _reachable(store, status)
    cluster = await connect(parse_address(url), settings)
    try:
        unhealthy = await _look_at_brokers(cluster, status)
        ledger = await KafkaLedger.open(url, store, settings=settings)
        try:
            status.ledger_id = ledger.id
            for name in TOPICS:
                await _look(status, name, _look_at_topic(ledger, name, status, unhealthy))
            for service in SHARED:
                await _look(status, service, _look_at_replicas(cluster, service, status))
            await _look_at_records(ledger, status, from_snapshots=store is not None)
        finally:
            await ledger.close()
    finally:
        await cluster.close()
    status.judge(datetime.now(UTC))
    return status


async def _look(status: ClusterStatus, what: str, work: Coroutine[Any, Any, None]) -> None:
    """Look at something; an error of the ledger becomes a problem, and the survey goes on."""
    try:
        await work
    except LedgerError as error:
        status.problems.append(f"{what}: {error}")


async def _reachable(store: ObjectStore | None, status: ClusterStatus) -> ObjectStore | None:
    """Return the object store if it answers; otherwise list a problem."""
    if store is None:
        return None
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await asyncio.to_thread(store.list, "snapshots/none/")
    except (ObjectError, TimeoutError) as error:
        reason = str(error) or f"no answer within {_TIMEOUT_S:g} s"
        status.problems.append(f"object store {store.url}: {reason}")
        store.close()
        return None
    return store


class _Unhealthy(Struct):
    """Partitions of a topic without a leader, or with too few replicas in sync."""

    leaderless: list[int] = field(default_factory=list[int])
    behind: list[int] = field(default_factory=list[int])


async def _look_at_brokers(cluster: Cluster, status: ClusterStatus) -> dict[str, _Unhealthy]:
    """Ask each known broker, and read from the metadata who leads and who is in sync."""

    async def answers(node: int) -> bool:
        try:
            async with asyncio.timeout(_TIMEOUT_S / 2):
                await cluster.send(MetadataRequest([]), node)
        except (*FAILURES, TimeoutError):
            return False
        return True

    known = {node: await answers(node) for node in sorted(cluster.brokers)}
    unhealthy: dict[str, _Unhealthy] = {}
    holding: set[int] = set()
    for full, partitions in cluster.topics.items():
        found = _Unhealthy()
        for number, leader, replicas, in_sync in partitions:
            holding.update(replicas)
            if leader < 0:
                found.leaderless.append(number)
            if len(in_sync) < len(replicas):
                found.behind.append(number)
        unhealthy[full.removeprefix(cluster.address.topic(""))] = found
    for node in sorted(holding | known.keys()):
        server = cluster.brokers.get(node)
        status.brokers.append(
            Broker(
                id=node,
                address=str(server) if server else None,
                answers=known.get(node, False),
            )
        )
    return unhealthy


async def _look_at_topic(
    ledger: KafkaLedger, name: str, status: ClusterStatus, unhealthy: dict[str, _Unhealthy]
) -> None:
    ends = [await ledger.end(name, number) for number in range(ledger.partitions(name))]
    found = unhealthy.get(name, _Unhealthy())
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


async def _look_at_records(
    ledger: KafkaLedger, status: ClusterStatus, *, from_snapshots: bool
) -> None:
    for name, followed in CONSUMERS:
        await _look(status, name, _look_at_consumer(ledger, name, followed, status))
    progress = Progress()
    for process in PROCESSORS:
        folding = progress.fold(ledger, process, from_snapshots=from_snapshots)
        await _look(status, process.name, folding)
    await _look_again(ledger, status, progress)
    status.deciders, status.pools = progress.deciders, progress.pools
    status.experiments = dict(progress.experiments)
    await _look(status, "logic level", _look_at_level(ledger, status))
    await _look(status, "dead letters", look_at_dead_letters(ledger, status))
    await _look(status, "seals", _look_at_seals(ledger, status, from_heads=from_snapshots))
    await _look(status, "imports", _look_at_imports(ledger, status))


async def _look_again(ledger: KafkaLedger, status: ClusterStatus, progress: "Progress") -> None:
    """Look a second time at what was due or behind, a moment later."""
    behind = [consumer for consumer in status.consumers if consumer.lag]
    if not behind and not progress.due:
        return
    await asyncio.sleep(_SECOND_LOOK_S)
    for consumer in behind:
        await _look(status, consumer.name, look_again(ledger, consumer))
    await _look(status, "deciders", progress.look_again(ledger))


async def _look_at_consumer(
    ledger: KafkaLedger, name: str, followed: str, status: ClusterStatus
) -> None:
    status.consumers.append(await look_at_consumer(ledger, name, followed))


async def look_at_consumer(ledger: Ledger, name: str, followed: str) -> Consumer:
    """Return the progress of a relay or a sink on its topic.

    Raises:
        LedgerError: the ledger does not answer.
    """
    partitions = range(ledger.partitions(followed))
    ends = [await ledger.end(followed, number) for number in partitions]
    positions = [await ledger.position(name, followed, number) for number in partitions]
    lags = [max(end - position, 0) for end, position in zip(ends, positions, strict=True)]
    return Consumer(name=name, topic=followed, lag=sum(lags), lags=lags, positions=positions)


async def look_again(ledger: Ledger, consumer: Consumer) -> None:
    """Note the partitions of a consumer with a lag whose position has not changed.

    The deleter is left out: one record may take it minutes.

    Raises:
        LedgerError: the ledger does not answer.
    """
    if consumer.name == DELETER:
        return
    consumer.still = [
        number
        for number, (lag, was) in enumerate(zip(consumer.lags, consumer.positions, strict=True))
        if lag and await ledger.position(consumer.name, consumer.topic, number) == was
    ]


class _Due(Struct):
    """Decisions of a partition that were not on record at the first look."""

    decider: Decider
    topic: str
    partition: int
    position: int
    """Of the first of them, once it is on record."""
    count: int


class Progress(Struct):
    """The progress of all processors, and what their states contain."""

    deciders: list[Decider] = field(default_factory=list[Decider])
    pools: list[PoolStatus] = field(default_factory=list[PoolStatus])
    due: list[_Due] = field(default_factory=list[_Due])
    experiments: Counter[str] = field(default_factory=Counter[str])
    """Those that have not ended, by state."""

    async def fold(self, ledger: Ledger, process: Processor[Any], *, from_snapshots: bool) -> None:
        """Fold all partitions of a processor.

        Raises:
            LedgerError: the ledger does not answer.
        """
        decider = Decider(name=process.name, facts=0, since_decision=0)
        ages: list[float | None] = []
        for partition in range(ledger.partitions(process.facts)):
            fold = await recover(ledger, process, partition, from_snapshot=from_snapshots)
            ages.append(await _age(ledger, process.facts, partition, fold.facts))
            pending = await _fold(ledger, process, partition, fold, decider)
            if pending:
                self.due.append(
                    _Due(decider, process.decisions, partition, fold.decisions, pending)
                )
            self._add(fold)
        if all(age is not None for age in ages):
            decider.snapshot_s = max(age for age in ages if age is not None)
        self.deciders.append(decider)

    async def look_again(self, ledger: Ledger) -> None:
        """Count the decisions that are still due.

        A partition's decisions are appended by one process, in the order in which they are due.

        Raises:
            LedgerError: the ledger does not answer.
        """
        for item in self.due:
            appended = await ledger.end(item.topic, item.partition) - item.position
            item.decider.pending -= min(appended, item.count)
        self.due.clear()

    def _add(self, fold: PartitionFold[Any]) -> None:
        for state in fold.states():
            match state:
                case Pool():
                    self.pools.append(_pool_status(state))
                case Experiment() if state.phase not in {"new", "ended"}:
                    self.experiments[state.phase] += 1
                case _:
                    pass


def _pool_status(state: Pool) -> PoolStatus:
    offers = state.room.agents.values()
    return PoolStatus(
        name=state.pool,
        agents=len(offers),
        slots=sum(offer.size for offer in offers),
        idle=sum(len(offer.idle) for offer in offers),
        waiting=len(state.queue) + len(state.zero_slot_queue),
        problems=[
            *(refused.reason for refused in state.refused.values()),
            *(
                f"agent {agent_id} takes nothing new: {suspension.reason}"
                for agent_id, suspension in state.suspended.items()
            ),
        ],
    )


async def _fold(
    ledger: Ledger,
    process: Processor[Any],
    partition: int,
    fold: PartitionFold[Any],
    decider: Decider,
) -> int:
    """Fold a partition up to its present end; return how many decisions are due in it."""
    end = await ledger.end(process.facts, partition)
    decider.facts += end
    decider.since_snapshot += end - fold.facts
    await scan_decisions(ledger, process, fold, partition)
    decider.since_decision += end - await _newest_decided(ledger, process, partition, fold) - 1
    pending = 0
    async for _, folded in refold(ledger, process, fold, partition, until=end):
        pending += len(folded.new)
    decider.pending += pending
    decider.broken |= {key: stuck.reason for key, stuck in fold.stuck.items()}
    for key, parked in fold.parked.items():
        if parked.level:
            decider.left_alone += 1
            decider.level = max(decider.level, parked.level)
        else:
            decider.broken[key] = parked.reason
    return pending


async def _newest_decided(
    ledger: Ledger, process: Processor[Any], partition: int, fold: PartitionFold[Any]
) -> int:
    """Return the position of the newest fact of which a decision on record follows, or -1."""
    newest = -1
    start = max(fold.decisions - _LOOK_BACK, 0)
    for record in await ledger.read(process.decisions, partition, start, _LOOK_BACK):
        try:
            cause = decode(record.value).causeposition
        except UndecodableEvent:
            continue
        newest = newest if cause is None else max(newest, cause)
    return newest


async def _age(ledger: Ledger, facts: str, partition: int, position: int) -> float | None:
    """Return the age in seconds of a snapshot's last fact; 0 where there is no fact."""
    if position == 0:
        return None if await ledger.end(facts, partition) else 0.0
    records = await ledger.read(facts, partition, position - 1, 1)
    try:
        written = datetime.fromisoformat(decode(records[0].value).time)
    except (IndexError, UndecodableEvent, ValueError):
        return None
    return max((datetime.now(UTC) - written).total_seconds(), 0.0)


async def _look_at_level(ledger: KafkaLedger, status: ClusterStatus) -> None:
    status.level = await InstallationLevel(ledger).read()


async def look_at_dead_letters(ledger: Ledger, status: ClusterStatus) -> None:
    """Count the open dead letters of relays and sinks, and list the newest ones.

    Raises:
        LedgerError: the ledger does not answer.
    """
    projection = DeadLetterProjection()
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        prepare(db, projection, ledger.id)
        for partition in range(ledger.partitions(topic.DEADLETTER)):
            merge = Merge(projection, db, partition)
            end = await ledger.end(topic.DEADLETTER, partition)
            start = max(await ledger.start(topic.DEADLETTER, partition), end - _LETTERS_READ)
            async for record in read_all(ledger, topic.DEADLETTER, partition, start):
                merge.fold([record])
        status.dead_letters = count_open(db)
        status.newest_letters = [
            DeadLetter(
                time=item.at,
                reader=item.reader,
                topic=item.topic,
                key=item.key,
                reason=item.reason,
            )
            for item in read_dead_letters(db, "open", limit=_DEAD_LETTERS)
        ]


async def _look_at_seals(ledger: KafkaLedger, status: ClusterStatus, *, from_heads: bool) -> None:
    try:
        status.seals = await look_at_seals(ledger, from_heads=from_heads)
    except (ObjectError, ValueError) as error:
        raise LedgerError(f"the signed heads cannot be read: {error}") from error


async def look_at_seals(ledger: Ledger, *, from_heads: bool) -> SealStatus:
    """Return how much of a ledger is sealed; seals are not verified.

    Args:
        ledger: which.
        from_heads: whether its signed heads can be read; if not, all seals are read.

    Raises:
        LedgerError: the ledger does not answer, or seals were cut off.
    """
    sealed = await _sealed(ledger, from_heads=from_heads)
    found = SealStatus(records=0, unsealed=0)
    oldest: list[str] = []
    for name in SEALED:
        for partition in range(ledger.partitions(name)):
            start, end = await ledger.start(name, partition), await ledger.end(name, partition)
            found.records += end - start
            position = max(start, sealed.get(f"{name}/{partition}", 0))
            if position < end:
                found.unsealed += end - position
                oldest += map(_time, await ledger.read(name, partition, position, 1))
    found.since = min(oldest, default=None)
    return found


async def _sealed(ledger: Ledger, *, from_heads: bool) -> dict[str, int]:
    """Return the position up to which each partition is sealed."""
    found: dict[str, int] = {}
    for partition in range(ledger.partitions(topic.SEALS)):
        position = await ledger.start(topic.SEALS, partition)
        heads = await read_heads(ledger, partition) if from_heads else None
        if heads is not None and heads.ledger == ledger.id:
            found |= {place: head.last + 1 for place, head in heads.heads.items()}
            position = max(position, heads.position)
            end = await ledger.end(topic.SEALS, partition)
            if position > end:
                raise LedgerDamaged(
                    f"{topic.SEALS}/{partition} ends at {end}, and its signed heads are at"
                    f" {position}: seals were cut off, or the ledger was put back"
                )
        async for record in read_all(ledger, topic.SEALS, partition, position):
            seal = _seal(record)
            if seal is not None and seal.ledger == ledger.id:
                found[seal.place] = max(seal.last + 1, found.get(seal.place, 0))
    return found


def _seal(record: Record) -> PartitionSealed | None:
    try:
        data = decode(record.value).data
    except UndecodableEvent:
        return None
    return data if isinstance(data, PartitionSealed) else None


def _time(record: Record) -> str:
    try:
        return decode(record.value).time
    except UndecodableEvent:
        return datetime.fromtimestamp(0, UTC).isoformat()


async def _look_at_imports(ledger: KafkaLedger, status: ClusterStatus) -> None:
    status.unfinished_imports = await look_at_imports(ledger)


async def look_at_imports(ledger: Ledger) -> list[UnfinishedImport]:
    """Return the imports into a ledger that are not complete.

    Raises:
        LedgerError: the ledger does not answer.
    """
    return [
        UnfinishedImport(
            exported_from=item.started.exported_from,
            records=item.started.records,
            begun=item.time,
            problem=unfinished(item),
        )
        for item in await imports_of(ledger, into=ledger.id)
        if item.completed is None
    ]

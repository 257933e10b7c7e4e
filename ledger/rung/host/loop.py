"""Hosts a decider on a ledger: recover, then fold and decide as facts arrive.

Recovery is the only way to start: newest snapshot, the decisions behind it, the facts behind it.
A crash and a restart differ in nothing. A ledger that does not answer, or another writer in the
partition, makes the loop forget its state and start again.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
import structlog

from rung.events import Event, Fenced, encode, fact
from rung.events.metric import MessageRejected
from rung.host.fold import PartitionFold, Rejected, snapshot_type
from rung.host.process import Process
from rung.host.supervise import supervise
from rung.host.writer import now
from rung.ledger import Draft, Ledger, Record

S = TypeVar("S")

_READ_MAX: Final = 2_000

_log = structlog.get_logger()


async def host(ledger: Ledger, process: Process[S], *, snapshot_every: int = 10_000) -> None:
    """Run a process on every partition of its facts until cancelled.

    Args:
        ledger: where its facts lie and its decisions go.
        process: the decider.
        snapshot_every: facts between two snapshots of a partition.
    """
    assert ledger.partitions(process.facts) == ledger.partitions(process.decisions)
    async with asyncio.TaskGroup() as group:
        for partition in range(ledger.partitions(process.facts)):
            hosted = _Hosted(ledger, process, partition, snapshot_every)
            group.create_task(supervise(hosted.run, name=f"{process.name}/{partition}"))


class _Hosted:
    """One partition of one process, from its recovery to the error that ends it."""

    def __init__(
        self, ledger: Ledger, process: Process[Any], partition: int, snapshot_every: int
    ) -> None:
        self._ledger = ledger
        self._process = process
        self._partition = partition
        self._snapshot_every = snapshot_every
        self._fold: PartitionFold[Any] = PartitionFold(process)
        self._snapshotted = 0

    async def run(self) -> None:
        self._fold = await recover(self._ledger, self._process, self._partition)
        self._snapshotted = self._fold.facts
        await self._reject(
            await read_decisions(self._ledger, self._process, self._fold, self._partition)
        )
        follow = self._ledger.follow(self._process.facts, self._partition, self._fold.facts)
        async for records in follow:
            await self._take(records)
            if self._fold.facts - self._snapshotted >= self._snapshot_every:
                await self._save_snapshot()

    async def _take(self, records: Sequence[Record]) -> None:
        new: list[Event] = []
        rejected: list[Rejected] = []
        for record in records:
            folded = self._fold.fold(record)
            new += folded.new
            if folded.rejected:
                rejected.append(folded.rejected)
        if new:
            await self._append(new)
        await self._reject(rejected)

    async def _append(self, new: list[Event]) -> None:
        expected = self._fold.decisions
        drafts = [Draft(event.topic, event.key, encode(event)) for event in new]
        positions = await self._ledger.append(drafts)
        if positions != list(range(expected, expected + len(new))):
            raise Fenced(
                f"{self._process.name}: partition {self._partition} of "
                f"{self._process.decisions} has another writer: appended at "
                f"{positions[0]}, expected {expected}"
            )
        self._fold.decisions = expected + len(new)

    async def _reject(self, rejected: list[Rejected]) -> None:
        if not rejected:
            return
        for record, reason in rejected:
            _log.error(
                "message rejected",
                process=self._process.name,
                topic=record.topic,
                partition=record.partition,
                position=record.position,
                key=record.key,
                reason=reason,
            )
        await self._ledger.append(
            [dead_letter(self._ledger.id, self._process.name, item) for item in rejected]
        )

    async def _save_snapshot(self) -> None:
        snapshot = self._fold.snapshot()
        if snapshot is None:
            return
        value = msgspec.json.encode(snapshot)
        await self._ledger.save_snapshot(_snapshot_name(self._process), self._partition, value)
        self._snapshotted = snapshot.facts


def dead_letter(ledger_id: str, reader: str, rejected: Rejected) -> Draft:
    """Return the dead letter about a record; the same however often it is met."""
    record, reason = rejected
    event = fact(
        MessageRejected(
            topic=record.topic,
            partition=record.partition,
            position=record.position,
            key=record.key,
            reader=reader,
            reason=reason,
            value=record.value.decode(errors="replace"),
        ),
        source=f"/rung/{reader}",
        origin=f"{ledger_id}/{reader}/{record.topic}/{record.partition}",
        sequence=record.position,
        time=now(),
    )
    return Draft(event.topic, event.key, encode(event))


def _snapshot_name(process: Process[Any]) -> str:
    return f"process/{process.name}"


async def recover(ledger: Ledger, process: Process[S], partition: int) -> PartitionFold[S]:
    """Return the fold of a partition as its newest readable snapshot left it."""
    value = await ledger.snapshot(_snapshot_name(process), partition)
    if value is None:
        return PartitionFold(process)
    try:
        snapshot = msgspec.json.decode(value, type=snapshot_type(process))
    except msgspec.DecodeError as error:
        _log.warning("snapshot ignored", process=process.name, reason=str(error))
        return PartitionFold(process)
    if snapshot.version != process.version:
        return PartitionFold(process)
    return PartitionFold(process, snapshot)


async def read_decisions(
    ledger: Ledger, process: Process[S], fold: PartitionFold[S], partition: int
) -> list[Rejected]:
    """Bring the decisions that are on record to the fold; return those that cannot be read."""
    rejected: list[Rejected] = []
    while records := await ledger.read(process.decisions, partition, fold.decisions, _READ_MAX):
        rejected += fold.record(records)
    return rejected

"""Hosts a decider on a ledger: recover, then fold and decide as facts arrive.

Recovery is the only way to start: newest snapshot, the decisions behind it, the facts behind it.
A crash and a restart differ in nothing. A ledger that does not answer, or another writer in the
partition, makes the loop forget its state and start again.

A loop that is cancelled, because its service stops or its partition goes to another replica,
finishes the append that it is at, and saves a snapshot, so that the next one starts quickly.

Snapshots are saved beside the loop, and if they cannot be saved it goes on without: they only
spare the next start some folding, and where they lie may be away for hours.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
import structlog

from rung.events import Event, Fenced, LedgerError, encode
from rung.ledger import Draft, Ledger, Record
from rung.runtime.assignment import Share, Whole
from rung.runtime.deadletter import dead_letter, say_rejected
from rung.runtime.fold import PartitionFold, Rejected, snapshot_type
from rung.runtime.metrics import catalog
from rung.runtime.metrics.observer import Observer
from rung.runtime.process import Process
from rung.runtime.retry import supervise
from rung.runtime.shield import finish

S = TypeVar("S")

_READ_MAX: Final = 2_000
_WORTH_SAVING: Final = 500
"""So many facts behind the last snapshot are worth another one when a loop ends."""
_SAVES_WITHIN_S: Final = 1.5
_LOADS_WITHIN_S: Final = 15.0

_log = structlog.get_logger()


async def host(
    ledger: Ledger,
    process: Process[S],
    *,
    snapshot_every: int = 10_000,
    share: Share | None = None,
    observer: Observer[S] | None = None,
) -> None:
    """Run a process on the partitions of its facts until cancelled.

    Args:
        ledger: where its facts lie and its decisions go.
        process: the decider.
        snapshot_every: facts between two snapshots of a partition.
        share: says which partitions are this replica's; all are if not given.
        observer: looks on.

    Raises:
        LedgerError: one that does not pass by itself.
    """
    assert ledger.partitions(process.facts) == ledger.partitions(process.decisions)

    async def work(partition: int) -> None:
        hosted = _Hosted(ledger, process, partition, snapshot_every, observer)
        await supervise(hosted.run, name=f"{process.name}/{partition}")

    await (share or Whole(ledger)).hold(process.facts, work)


class _Hosted:
    """One partition of one process, from its recovery to the error that ends it."""

    def __init__(
        self,
        ledger: Ledger,
        process: Process[Any],
        partition: int,
        snapshot_every: int,
        observer: Observer[Any] | None = None,
    ) -> None:
        self._ledger = ledger
        self._process = process
        self._partition = partition
        self._snapshot_every = snapshot_every
        self._observer = observer
        self._fold: PartitionFold[Any] = PartitionFold(process)
        self._snapshotted = 0
        """Up to which fact a snapshot was saved, or tried to."""
        self._saving: asyncio.Task[None] | None = None
        self._settled = False
        """All that was decided is on record, so the fold may become a snapshot."""
        self._place: Final = {"process": process.name, "partition": partition}
        self._facts = catalog.FACTS_DECIDED.of(process.name)
        self._decisions = catalog.DECISIONS.of(process.name)
        self._seconds = catalog.DECIDE_SECONDS.of(process.name)

    async def run(self) -> None:
        self._settled = False
        await self._start()
        self._settled = True
        if self._observer is not None:
            self._observer.begin(self._partition, self._fold)
        try:
            async for records in self._ledger.follow(
                self._process.facts, self._partition, self._fold.facts
            ):
                await finish(self._take(records))
                if self._fold.facts - self._snapshotted >= self._snapshot_every:
                    self._begin_saving()
        except asyncio.CancelledError:
            await self._leave()
            raise
        finally:
            if self._observer is not None:
                self._observer.end(self._partition)
            if self._saving is not None:
                self._saving.cancel()
                await asyncio.gather(self._saving, return_exceptions=True)

    async def _start(self) -> None:
        """Recover what is on record, and say what of it cannot be read."""
        self._fold = await recover(self._ledger, self._process, self._partition)
        rejected = await self._read_decisions()
        if self._fold.contradicted:
            _log.warning("snapshot ignored: it lacks decisions", **self._place)
            self._fold = PartitionFold(self._process)
            rejected = await self._read_decisions()
        self._snapshotted = self._fold.facts
        await self._reject(rejected)
        _log.info("partition folded", facts=self._fold.facts, **self._place)

    async def _read_decisions(self) -> list[Rejected]:
        return await read_decisions(self._ledger, self._process, self._fold, self._partition)

    async def _leave(self) -> None:
        """Spare whoever comes next the folding."""
        if self._settled and self._fold.facts - self._snapshotted >= _WORTH_SAVING:
            self._begin_saving()
        if self._saving is not None:
            _, late = await asyncio.wait([self._saving], timeout=_SAVES_WITHIN_S)
            if late:
                _log.warning("left without a snapshot", **self._place)

    async def _take(self, records: Sequence[Record]) -> None:
        self._settled = False
        new: list[Event] = []
        rejected: list[Rejected] = []
        started = time.perf_counter()
        for record in records:
            folded = self._fold.fold(record)
            new += folded.new
            if folded.rejected:
                rejected.append(folded.rejected)
        self._seconds.observe((time.perf_counter() - started) / len(records))
        self._facts.inc(len(records))
        if new:
            await self._append(new)
        await self._reject(rejected)
        self._settled = True
        if self._observer is not None:
            self._observer.see(records, new)

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
        self._decisions.inc(len(new))

    async def _reject(self, rejected: list[Rejected]) -> None:
        if not rejected:
            return
        say_rejected(self._process.name, rejected)
        await self._ledger.append(
            [dead_letter(self._ledger.id, self._process.name, item) for item in rejected]
        )

    def _begin_saving(self) -> None:
        """Have a snapshot saved, unless the one before is still being saved."""
        if self._saving is not None and not self._saving.done():
            return
        snapshot = self._fold.snapshot()
        if snapshot is not None:
            self._snapshotted = snapshot.facts
            self._saving = asyncio.create_task(self._save(msgspec.json.encode(snapshot)))

    async def _save(self, value: bytes) -> None:
        name = _snapshot_name(self._process)
        try:
            await self._ledger.save_snapshot(name, self._partition, value)
        except LedgerError as error:
            _log.warning("no snapshot saved", reason=str(error), **self._place)


def _snapshot_name(process: Process[Any]) -> str:
    return f"process/{process.name}"


async def recover(ledger: Ledger, process: Process[S], partition: int) -> PartitionFold[S]:
    """Return the fold of a partition as its newest readable snapshot left it."""
    value = await _snapshot(ledger, process, partition)
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


async def _snapshot(ledger: Ledger, process: Process[Any], partition: int) -> bytes | None:
    """Return the newest snapshot; where it cannot be had, folding from the beginning does too."""
    try:
        async with asyncio.timeout(_LOADS_WITHIN_S):
            return await ledger.snapshot(_snapshot_name(process), partition)
    except (LedgerError, TimeoutError) as error:
        _log.warning(
            "no snapshot loaded: folding from the beginning",
            process=process.name,
            partition=partition,
            reason=str(error) or f"no answer within {_LOADS_WITHIN_S:g} s",
        )
        return None


async def read_decisions(
    ledger: Ledger, process: Process[S], fold: PartitionFold[S], partition: int
) -> list[Rejected]:
    """Bring the decisions that are on record to the fold; return those that cannot be read."""
    rejected: list[Rejected] = []
    while records := await ledger.read(process.decisions, partition, fold.decisions, _READ_MAX):
        rejected += fold.record(records)
    return rejected

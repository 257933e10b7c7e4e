"""Runs a processor on a ledger: recover, then fold and decide as facts arrive.

Recovery is the only way to start: newest snapshot, the decisions behind it, the facts behind it.
A crash and a restart differ in nothing. A ledger that does not answer, or another writer in the
partition, makes the loop forget its state and start again. So it may fold what is `staged`, and
append decisions behind it: if that never becomes durable, neither do these, and it starts again.

A loop that is cancelled, because its service stops or its partition is revoked, finishes its
append and saves a snapshot, so that the next one starts quickly.

Snapshots are saved beside the loop. If they cannot be saved it goes on without: they only shorten
the next start.

A fact that a processor raises on leaves half a state behind. It is brought again from the newest
snapshot and what is on record after it, for all such keys at once, before the next snapshot is
saved; or for one key, when an operator has it go on before that. A key that this release leaves
alone is tried again at each start.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import structlog

from rung.events import Event, Fenced, LedgerError, LedgerUnavailable
from rung.ledger import Draft, Ledger, Record, staged
from rung.runtime.assignment.assignment import AllPartitions, Assignment
from rung.runtime.deadletter import log_rejected
from rung.runtime.metrics import catalog
from rung.runtime.metrics.observer import Observer
from rung.runtime.processor.fold import PartitionFold, Rejected
from rung.runtime.processor.image import Image, Parked, Torn
from rung.runtime.processor.processor import Processor, S
from rung.runtime.processor.replay import mend, resume, scan_decisions, take_decisions
from rung.runtime.processor.snapshot import Snapshots
from rung.runtime.retry import supervise
from rung.runtime.shield import finish

APPEND_MAX: Final = 1_000
"""Decisions that are encoded and appended at once."""
_WORTH_SAVING: Final = 500
"""With so many facts behind the last snapshot, a loop that ends saves another one."""
_SAVES_WITHIN_S: Final = 1.5

_log = structlog.get_logger()


async def host(
    ledger: Ledger,
    processor: Processor[S],
    *,
    snapshot_every: int = 10_000,
    assignment: Assignment | None = None,
    observer: Observer[S] | None = None,
) -> None:
    """Run a processor on the assigned partitions of its facts, by default all, until cancelled.

    `snapshot_every` is the number of facts between two snapshots of a partition.

    Raises:
        LedgerError: one that does not pass by itself.
    """
    assert ledger.partitions(processor.facts) == ledger.partitions(processor.decisions)

    async def work(partition: int) -> None:
        async def run() -> None:
            seen = staged(ledger)
            await _Hosted(seen, processor, partition, snapshot_every, observer).run()

        await supervise(run, name=f"{processor.name}/{partition}")

    with observer.measured() if observer is not None else contextlib.nullcontext():
        await (assignment or AllPartitions(ledger)).run(processor.facts, work)


class _Hosted:
    """One partition of one processor, from its recovery to the error that ends it."""

    def __init__(
        self,
        ledger: Ledger,
        processor: Processor[Any],
        partition: int,
        snapshot_every: int,
        observer: Observer[Any] | None = None,
    ) -> None:
        self._ledger = ledger
        self._processor = processor
        self._partition = partition
        self._snapshot_every = snapshot_every
        self._observer = observer
        self._snapshots: Snapshots[Any] = Snapshots(ledger, processor, partition)
        self._fold: PartitionFold[Any] = PartitionFold(processor)
        self._snapshotted = 0
        """Up to which fact a snapshot was saved, or tried to."""
        self._saving: asyncio.Task[None] | None = None
        self._on_record = asyncio.Lock()
        """Held while the fold is ahead of what is on record."""
        self._broken = False
        """The fold is ahead of what is on record, and will be dropped."""
        self._observer_failed = False
        self._place: Final = {"process": processor.name, "partition": partition}
        self._facts = catalog.FACTS_DECIDED.labels(processor.name)
        self._decisions = catalog.DECISIONS.labels(processor.name)
        self._seconds = catalog.DECIDE_SECONDS.labels(processor.name)

    async def run(self) -> None:
        self._broken = True
        await self._start()
        self._broken = False
        if self._observer is not None:
            self._observer.begin(self._partition, self._fold)
        measured = contextlib.ExitStack()
        measured.enter_context(catalog.KEYS_LEFT_ALONE.read_from(self._left_alone))
        try:
            async for records in self._ledger.follow(
                self._processor.facts, self._partition, self._fold.facts
            ):
                await finish(self._take(records))
                if self._fold.facts - self._snapshotted >= self._snapshot_every:
                    self._begin_saving()
        except asyncio.CancelledError:
            await self._leave()
            raise
        finally:
            measured.close()
            if self._observer is not None:
                self._observer.end(self._partition)
            if self._saving is not None:
                self._saving.cancel()
                await asyncio.gather(self._saving, return_exceptions=True)

    def _left_alone(self) -> dict[tuple[str, ...], float]:
        return {(self._processor.name, str(self._partition)): len(self._fold.parked)}

    async def _start(self) -> None:
        """Recover what is on record, and report what of it cannot be read."""
        image = await self._snapshots.load()
        rejected = await self._recover(image)
        if self._fold.contradicted:
            _log.warning("snapshot ignored: it lacks decisions", **self._place)
            rejected = await self._recover(Image())
        self._snapshotted = self._fold.facts
        self._report(rejected)
        _log.info("partition folded", facts=self._fold.facts, **self._place)

    async def _recover(self, image: Image[Any]) -> list[Rejected]:
        self._fold = PartitionFold(self._processor, image)
        return await scan_decisions(self._ledger, self._processor, self._fold, self._partition)

    async def _leave(self) -> None:
        """Save a snapshot for the next start."""
        if not self._broken and self._fold.facts - self._snapshotted >= _WORTH_SAVING:
            self._begin_saving()
        if self._saving is not None:
            _, late = await asyncio.wait([self._saving], timeout=_SAVES_WITHIN_S)
            if late:
                _log.warning("left without a snapshot", **self._place)

    async def _take(self, records: Sequence[Record]) -> None:
        decided: list[Event] = []
        async with self._ahead():
            rejected = await take_decisions(
                self._ledger, self._processor, self._fold, self._partition, records[-1].position
            )
            started = time.perf_counter()
            new: list[Event] = []
            for record in records:
                if self._fold.resumes(record) is not None:
                    await self._append(new)
                    decided += new
                    new = await self._resume(record, rejected)
                    continue
                folded = self._fold.fold(record)
                new += folded.new
                if folded.rejected:
                    rejected.append(folded.rejected)
            self._seconds.observe((time.perf_counter() - started) / len(records))
            self._facts.inc(len(records))
            await self._append(new)
            decided += new
        self._report(rejected)
        self._show(records, decided)

    async def _resume(self, record: Record, rejected: list[Rejected]) -> list[Event]:
        """Have a key go on as an operator asks; return what is decided."""
        if record.key in self._fold.torn:
            await self._mend()
        new: list[Event] = []
        async for _, folded in resume(self._ledger, self._fold, record):
            new += folded.new
            if folded.rejected:
                rejected.append(folded.rejected)
        _log.info("key resumed", key=record.key, decisions=len(new), **self._place)
        return new

    def _show(self, records: Sequence[Record], new: Sequence[Event]) -> None:
        """Call the observer; the loop goes on whatever that raises."""
        if self._observer is None:
            return
        try:
            self._observer.see(records, new)
        except Exception:  # noqa: BLE001 - it concerns metrics alone
            if not self._observer_failed:
                _log.exception("not all is measured: the observer failed", **self._place)
            self._observer_failed = True

    @contextlib.asynccontextmanager
    async def _ahead(self) -> AsyncIterator[None]:
        """Let the fold be ahead of what is on record while the context lasts."""
        async with self._on_record:
            self._broken = True
            yield
            self._broken = False

    @contextlib.asynccontextmanager
    async def _settled(self) -> AsyncIterator[None]:
        """Keep the fold at what is on record while the context lasts."""
        async with self._on_record:
            if self._broken:
                raise LedgerUnavailable("the partition is about to be folded again")
            yield

    @contextlib.asynccontextmanager
    async def _whole(self) -> AsyncIterator[None]:
        """Keep the fold at what is on record, with no torn keys, while the context lasts."""
        async with self._settled():
            await self._mend()
            yield

    async def _mend(self) -> None:
        """Bring torn keys again, while the fold is at what is on record."""
        if self._fold.torn:
            self._adopt(await self._mended(self._fold.torn.copy()))

    async def _mended(self, torn: dict[str, Torn]) -> dict[str, Parked[Any]]:
        return await mend(self._ledger, self._processor, torn, self._partition, self._snapshots)

    def _adopt(self, found: dict[str, Parked[Any]]) -> None:
        for key, it in found.items():
            self._fold.adopt(key, it)

    async def _append(self, new: list[Event]) -> None:
        """Append decisions, in pieces: one fact may cause hundreds of thousands.

        A crash between two pieces leaves what one within an append may leave: the decisions of the
        last fact on record are completed at the next start.
        """
        for start in range(0, len(new), APPEND_MAX):
            await self._append_piece(new[start : start + APPEND_MAX])

    async def _append_piece(self, new: Sequence[Event]) -> None:
        expected = self._fold.decisions
        drafts = [Draft.of(event) for event in new]
        positions = await self._ledger.append(drafts)
        if positions != list(range(expected, expected + len(new))):
            raise Fenced(
                f"{self._processor.name}: partition {self._partition} of "
                f"{self._processor.decisions} has another writer: appended at "
                f"{positions[0]}, expected {expected}"
            )
        self._fold.recorded.appended(len(new))
        self._decisions.inc(len(new))

    def _report(self, rejected: list[Rejected]) -> None:
        """Log what was rejected, and what is left alone."""
        levels = [item.level for item in rejected if item.level]
        if levels:
            self._warn_of_levels(max(levels), len(levels))
        decided = [item for item in rejected if item.record.key not in self._fold.parked]
        log_rejected(self._processor.name, decided)
        catalog.DEAD_LETTERS.labels(self._processor.name).inc(len(decided))
        for record, reason, level in rejected:
            if record.key in self._fold.parked and not level:
                _log.error(
                    "key left alone: what is on record cannot be folded",
                    key=record.key,
                    topic=record.topic,
                    position=record.position,
                    reason=reason,
                    **self._place,
                )

    def _warn_of_levels(self, level: int, keys: int) -> None:
        known = self._processor.level
        _log.warning("keys left alone", keys=keys, logic_level=level, known=known, **self._place)

    def _begin_saving(self) -> None:
        """Begin to save a snapshot, unless the one before is still being saved."""
        if self._saving is not None and not self._saving.done():
            return
        if self._fold.settled:
            self._snapshotted = self._fold.facts
            self._saving = asyncio.create_task(self._save())

    async def _save(self) -> None:
        try:
            if self._fold.torn:
                async with self._settled():
                    torn = self._fold.torn.copy()
                found = await self._mended(torn)
                async with self._settled():
                    self._adopt(found)
            await self._snapshots.save(self._fold, self._whole)
        except LedgerError as error:
            _log.warning("no snapshot saved", reason=str(error), **self._place)

"""Runs a processor on a ledger: recover, then fold and decide as facts arrive.

Recovery is the only way to start: newest snapshot, the decisions behind it, the facts behind it.
A crash and a restart differ in nothing. A ledger that does not answer, or another writer in the
partition, makes the loop forget its state and start again. So it may fold what is `staged`, and
append decisions behind it: if that never becomes durable, neither do these, and it starts again.

A loop that is cancelled, because its service stops or its partition is revoked, finishes its
append and saves a snapshot, so that the next one starts quickly.

Snapshots are saved beside the loop. If they cannot be saved it goes on without: they only shorten
the next start.

A key that was quarantined is retried at each start, and when an operator asks for it: from the
newest snapshot, beside the loop, until it has caught up. A key of a logic level that this release
does not support waits in the same way for a replica of a newer release, but is no dead letter.
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
from rung.runtime.deadletter import DeadLetters, Request, dead_letter, log_rejected
from rung.runtime.health.loops import CURRENT_LOOP
from rung.runtime.metrics import catalog
from rung.runtime.metrics.observer import Observer
from rung.runtime.processor.fold import Folded, Image, KeyFold, PartitionFold, Rejected
from rung.runtime.processor.processor import Processor, S
from rung.runtime.processor.snapshot import Snapshots
from rung.runtime.retry import Outage, keep_running, of_ledger, supervise
from rung.runtime.shield import finish

_READ_MAX: Final = 2_000
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
        self._dead_letters = DeadLetters(ledger, processor.name, processor.facts, partition)
        self._dead_decisions = DeadLetters(ledger, processor.name, processor.decisions, partition)
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
        retrying = asyncio.create_task(self._retry())
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
            others = [task for task in (retrying, self._saving) if task is not None]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    def _left_alone(self) -> dict[tuple[str, ...], float]:
        count = sum(bool(parked.level) for parked in self._fold.parked.values())
        return {(self._processor.name, str(self._partition)): count}

    async def _start(self) -> None:
        """Recover what is on record, and report what of it cannot be read."""
        await self._dead_letters.open()
        await self._dead_decisions.open()
        image = await self._snapshots.load()
        rejected = await self._recover(image)
        if self._fold.contradicted:
            _log.warning("snapshot ignored: it lacks decisions", **self._place)
            rejected = await self._recover(Image())
        self._snapshotted = self._fold.facts
        await self._park(rejected)
        await self._reject(rejected)
        _log.info("partition folded", facts=self._fold.facts, **self._place)

    async def _recover(self, image: Image[Any]) -> list[Rejected]:
        self._fold = PartitionFold(self._processor, image, dropped=self._dead_letters.dropped)
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
        async with self._ahead():
            rejected = await take_decisions(
                self._ledger, self._processor, self._fold, self._partition, records[-1].position
            )
            started = time.perf_counter()
            new: list[Event] = []
            for record in records:
                folded = self._fold.fold(record)
                new += folded.new
                if folded.rejected:
                    rejected.append(folded.rejected)
            self._seconds.observe((time.perf_counter() - started) / len(records))
            self._facts.inc(len(records))
            if new:
                await self._append(new)
            await self._park(rejected)
        await self._reject(rejected)
        await self._settle()
        self._show(records, new)

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
        self._fold.appended(len(new))
        self._decisions.inc(len(new))

    async def _park(self, rejected: list[Rejected]) -> None:
        """Let the keys of rejected facts go on from the newest snapshot."""
        for record, reason, _ in broken(rejected):
            parked = await self._snapshots.parked(record.key)
            parked.reason = reason
            self._fold.park(record.key, parked)

    async def _reject(self, rejected: list[Rejected]) -> None:
        levels = {item.level for item in rejected if item.level}
        if levels:
            left_alone = sum(bool(item.level) for item in rejected)
            self._warn_of_levels(max(levels), left_alone)
        rejected = broken(rejected)
        if not rejected:
            return
        log_rejected(self._processor.name, rejected)
        await self._ledger.append(
            [dead_letter(self._ledger.id, self._processor.name, item) for item in rejected]
        )

    def _warn_of_levels(self, level: int, keys: int) -> None:
        known = self._processor.level
        _log.warning("keys left alone", keys=keys, logic_level=level, known=known, **self._place)

    async def _retry(self) -> None:
        """Retry quarantined keys: all at the start, then those that an operator asks for."""
        CURRENT_LOOP.set(None)  # no part of the loop's health
        keys = list(self._fold.parked)

        async def answer() -> None:
            for key in keys:
                await self._try(key)
            keys.clear()
            await self._settle()
            async for requests in self._dead_letters.requests():
                await self._answer(requests)

        outage = Outage("not tried again yet", **self._place)
        await keep_running(answer, outage.note, patience_s=of_ledger)

    async def _answer(self, requests: Sequence[Request]) -> None:
        """Carry out and answer an operator's requests about dead letters."""
        for key in dict.fromkeys(request.key for request in requests):
            rejected = await self._try(key)
            if rejected is not None:
                asked = [request for request in requests if request.key == key]
                await self._answer_rejected(rejected, asked)
        await self._settle()

    async def _answer_rejected(self, rejected: Rejected, asked: Sequence[Request]) -> None:
        """Answer with the message that still blocks a key, and those that no longer do."""
        name, record = self._processor.name, rejected.record
        again = [
            dead_letter(self._ledger.id, name, it, asked=asked[-1].asked)
            for it in broken([rejected])
        ]
        passed = {
            request.position: request.key
            for request in asked
            if record.topic == self._processor.facts and request.position < record.position
        }
        await self._dead_letters.answer(again, passed)

    async def _settle(self) -> None:
        """Settle dead letters whose keys are folded beyond them."""
        for dead in (self._dead_letters, self._dead_decisions):
            if not dead.rejected:
                continue
            async with self._on_record:
                end = self._fold.facts if dead is self._dead_letters else self._fold.decisions
                taken = {
                    position: key
                    for position, key in dead.rejected.items()
                    if position < end and key not in self._fold.quarantined
                }
            await dead.answer([], taken)

    async def _try(self, key: str) -> Rejected | None:
        """Fold a quarantined key up to the others and adopt it; return what prevents that."""
        parked = self._fold.parked.get(key)
        if parked is None:
            return None
        known = {} if parked.known is None else {key: self._snapshots.copy(parked.known)}
        fold = PartitionFold(
            self._processor,
            Image(parked.facts, parked.decisions, known),
            dropped=self._dead_letters.dropped,
            only=key,
        )
        if key in fold.quarantined:  # its level is not supported
            return None
        new: list[Event] = []
        rejected = await self._catch_up(fold, new)
        async with self._on_record:
            rejected += await self._catch_up(fold, new)
            if rejected:
                reason = rejected[0].reason
                _log.warning("key not folded yet", key=key, reason=reason, **self._place)
                return rejected[0]
            if new:
                await self._append(new)
            found = fold.known(key)  # None where all facts of the key were dropped
            self._fold.adopt(key, found or KeyFold(self._processor.initial(key)))
        _log.info("key folded again", key=key, decisions=len(new), **self._place)
        return None

    async def _catch_up(self, fold: PartitionFold[Any], new: list[Event]) -> list[Rejected]:
        """Fold one key up to the partition's position; return what could not be folded."""
        rejected = await scan_decisions(
            self._ledger, self._processor, fold, self._partition, until=self._fold.decisions
        )
        async for _, folded in refold(
            self._ledger, self._processor, fold, self._partition, until=self._fold.facts
        ):
            new += folded.new
            if folded.rejected is not None:
                rejected.append(folded.rejected)
        return rejected

    def _begin_saving(self) -> None:
        """Begin to save a snapshot, unless the one before is still being saved."""
        if self._saving is not None and not self._saving.done():
            return
        if self._fold.settled:
            self._snapshotted = self._fold.facts
            self._saving = asyncio.create_task(self._save())

    async def _save(self) -> None:
        try:
            await self._snapshots.save(self._fold, self._settled)
        except LedgerError as error:
            _log.warning("no snapshot saved", reason=str(error), **self._place)


def broken(rejected: list[Rejected]) -> list[Rejected]:
    """Return what no replica can fold, and not only those of this release."""
    return [item for item in rejected if not item.level]


async def recover(
    ledger: Ledger, processor: Processor[S], partition: int, *, from_snapshot: bool = True
) -> PartitionFold[S]:
    """Return the fold of a partition at its newest readable snapshot, or at its beginning."""
    letters = DeadLetters(ledger, processor.name, processor.facts, partition)
    await letters.open()
    image = await Snapshots(ledger, processor, partition).load() if from_snapshot else Image[S]()
    return PartitionFold(processor, image, dropped=letters.dropped)


async def scan_decisions(
    ledger: Ledger,
    processor: Processor[S],
    fold: PartitionFold[S],
    partition: int,
    *,
    until: int | None = None,
) -> list[Rejected]:
    """Scan the decisions on record; return those that cannot be read."""
    rejected: list[Rejected] = []
    limit = _READ_MAX
    while until is None or (limit := min(_READ_MAX, until - fold.decisions)) > 0:
        records = await ledger.read(processor.decisions, partition, fold.decisions, limit)
        if not records:
            break
        rejected += fold.scan(records)
    return rejected


async def take_decisions(
    ledger: Ledger,
    processor: Processor[S],
    fold: PartitionFold[S],
    partition: int,
    position: int | None,
) -> list[Rejected]:
    """Take the decisions on record on facts up to a position, or all if None."""
    rejected: list[Rejected] = []
    while fold.untaken if position is None else fold.lacks(position):
        limit = min(_READ_MAX, fold.untaken)
        records = await ledger.read(processor.decisions, partition, fold.unread, limit)
        if not records:
            break
        rejected += fold.take(records)
    return rejected


async def refold(  # noqa: PLR0913 - a fold, and how far
    ledger: Ledger,
    processor: Processor[S],
    fold: PartitionFold[S],
    partition: int,
    *,
    until: int,
    compare: bool = False,
) -> AsyncIterator[tuple[Record, Folded]]:
    """Fold the facts before `until`, with their decisions on record; yield each result.

    The decisions must have been scanned. Memory is bounded. Decisions that cannot be read are
    yielded as well. `compare` is that of `PartitionFold.fold`.
    """
    while fold.facts < until:
        limit = min(_READ_MAX, until - fold.facts)
        records = await ledger.read(processor.facts, partition, fold.facts, limit)
        if not records:
            return
        for rejected in await take_decisions(
            ledger, processor, fold, partition, records[-1].position
        ):
            yield rejected.record, Folded([], [], None, rejected)
        for record in records:
            yield record, fold.fold(record, compare=compare)

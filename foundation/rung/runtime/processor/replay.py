"""Folds a partition of a processor again from what is on record: at a start, and in an audit."""

from collections.abc import AsyncIterator
from typing import Final

from rung.ledger import Ledger, Record
from rung.runtime.processor.fold import Folded, PartitionFold, Rejected
from rung.runtime.processor.image import Image, Parked
from rung.runtime.processor.processor import Processor, S
from rung.runtime.processor.snapshot import Snapshots

_READ_MAX: Final = 2_000


async def recover(
    ledger: Ledger, processor: Processor[S], partition: int, *, from_snapshot: bool = True
) -> PartitionFold[S]:
    """Return the fold of a partition at its newest readable snapshot, or at its beginning."""
    image = await Snapshots(ledger, processor, partition).load() if from_snapshot else Image[S]()
    return PartitionFold(processor, image)


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
    while fold.recorded.untaken if position is None else fold.recorded.lacks(position):
        limit = min(_READ_MAX, fold.recorded.untaken)
        records = await ledger.read(processor.decisions, partition, fold.recorded.unread, limit)
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
            if fold.resumes(record) is None:
                yield record, fold.fold(record, compare=compare)
                continue
            async for pair in resume(ledger, fold, record, compare=compare):
                yield pair


async def resume(
    ledger: Ledger, fold: PartitionFold[S], record: Record, *, compare: bool = False
) -> AsyncIterator[tuple[Record, Folded]]:
    """Carry out an operator's request; yield the results of the facts that waited, then its own.

    They are read again from the ledger, from the rejected one on, a batch at a time.
    """
    position = fold.resumes(record)
    assert position is not None, record
    fold.resume(record)
    while position < record.position:
        limit = min(_READ_MAX, record.position - position)
        records = await ledger.read(record.topic, record.partition, position, limit)
        position = records[-1].position + 1
        own = [each for each in records if each.key == record.key]
        for pair in fold.fold_waiting(own, compare=compare):
            yield pair
    yield record, fold.end_waiting(record)


async def mend(  # noqa: PLR0913 - a fold, and how far it is on record
    ledger: Ledger,
    processor: Processor[S],
    fold: PartitionFold[S],
    partition: int,
    snapshots: Snapshots[S],
    *,
    facts: int,
    decisions: int,
) -> dict[str, Parked[S]]:
    """Return what is on record of the keys of a fold that are torn, to be adopted by it.

    All of them are folded at once, from the newest snapshot on, up to these positions; what the
    fold decided must be on record.

    Raises:
        LedgerError: the ledger does not answer.
    """
    parked = [key for key in fold.torn if key in fold.parked]
    stuck = [key for key in fold.torn if key not in fold.parked]
    image = await snapshots.newest(frozenset(parked + stuck))
    found = {key: image.of(key) for key in parked}
    if not stuck:
        return found
    again = PartitionFold(processor, image.only(stuck), only=frozenset(stuck))
    await scan_decisions(ledger, processor, again, partition, until=decisions)
    if again.contradicted:
        again = PartitionFold(processor, only=frozenset(stuck))
        await scan_decisions(ledger, processor, again, partition, until=decisions)
    async for _ in refold(ledger, processor, again, partition, until=facts):
        pass
    return found | {key: Parked(known=again.known(key)) for key in stuck}

"""Folds a partition of a processor again from what is on record: at a start, and in an audit."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

from rung.ledger import Ledger, Record
from rung.runtime.processor.fold import Folded, PartitionFold, Rejected
from rung.runtime.processor.image import Image, Parked, Place, Torn
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


async def mend(
    ledger: Ledger,
    processor: Processor[S],
    torn: dict[str, Torn],
    partition: int,
    snapshots: Snapshots[S],
) -> dict[str, Parked[S]]:
    """Return what is on record of torn keys, to be adopted by their fold.

    They are folded from the newest snapshot on. Only stretches are read in which records of such
    keys may lie: from a key's first fact since that snapshot to its rejection.

    Raises:
        LedgerError: the ledger does not answer.
    """
    parked = [key for key, it in torn.items() if not it.rejection]
    stuck = {key: it for key, it in torn.items() if it.rejection}
    image = await snapshots.newest(torn.keys())
    found = {key: image.of(key) for key in parked}
    for keys, begin, end in _stretches(image, stuck):
        again = PartitionFold(processor, image.only(keys, begin), only=frozenset(keys))
        await scan_decisions(ledger, processor, again, partition, until=end.decisions)
        if again.contradicted:
            again = PartitionFold(processor, only=frozenset(keys))
            await scan_decisions(ledger, processor, again, partition, until=end.decisions)
        async for _ in refold(ledger, processor, again, partition, until=end.facts):
            pass
        found |= {key: Parked(known=again.known(key)) for key in keys}
    return found


def _stretches(image: Image[S], torn: dict[str, Torn]) -> Iterator[tuple[list[str], Place, Place]]:
    """Yield which torn keys to fold together, from where to where on.

    Where the snapshot is older than the one that a key changed since, from its beginning on.
    """
    oldest = Place(image.facts, image.decisions)
    places = sorted(
        (it.begin if image.next_of(key) >= it.since else oldest, it.end, key)
        for key, it in torn.items()
    )
    keys: list[str] = []
    first = last = oldest
    for begin, end, key in places:
        if keys and begin.facts >= last.facts:
            yield keys, first, last
            keys = []
        if not keys:
            first, last = begin, end
        keys.append(key)
        first = Place(first.facts, min(first.decisions, begin.decisions))
        last = max(last, end)
    if keys:
        yield keys, first, last

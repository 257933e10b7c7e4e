"""Reader of an archive: a ledger, for reading, made of the segments in a store."""

import asyncio
import bisect
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final, NamedTuple, Self

from rung.events import TOPICS, topic
from rung.events.errors import LedgerDamaged, LedgerError, LedgerTrimmed, ObjectMissing
from rung.events.topic import DECISIONS, FACTS_OF
from rung.ledger import Draft, Record
from rung.ledger.archive.index import Index, holes, pieces, read_index, resolve_ledger
from rung.ledger.archive.segment import Opened, Place, Segment, open_segment
from rung.ledger.archive.signed import read_heads
from rung.ledger.seals import HEADS
from rung.storage import ObjectStore

_KEPT: Final = 4
"""Segments kept unpacked: of facts, two topics of decisions on them, and one more."""
_BATCH: Final = 1000
DECIDED: Final = frozenset((*DECISIONS, *FACTS_OF, topic.SEALS))
"""Topics of which no record may be missing."""


class _Pieces(NamedTuple):
    """The segments to read of a partition, and where to begin in each."""

    starts: list[int]
    segments: list[Segment]

    @property
    def start(self) -> int:
        return self.segments[0].first if self.segments else 0

    @property
    def end(self) -> int:
        return self.segments[-1].last + 1 if self.segments else 0


_NOTHING: Final = _Pieces([], [])


class ArchiveLedger:
    """An archive as of its opening; implements `rung.ledger.port.Ledger` for readers.

    A segment is fetched and checked by its digests when it is read.
    """

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        ledger_id: str | None = None,
        *,
        without: Collection[Segment] = (),
        partly: bool = False,
    ) -> Self:
        """Open the archive of a ledger.

        Args:
            store: of the archive; the caller closes it.
            ledger_id: of the ledger; by default the only one in the store.
            without: segments not to use.
            partly: read up to the first hole, instead of refusing.

        Raises:
            LedgerDamaged: positions are missing.
            LedgerError: there is no such archive, or there are several.
            ObjectError: the store cannot be read.
        """

        def look() -> Index:
            return read_index(store, resolve_ledger(store, ledger_id))

        index = (await asyncio.to_thread(look)).without(without)
        return cls(store, index, partly=partly)

    def __init__(self, store: ObjectStore, index: Index, *, partly: bool = False) -> None:
        self._store = store
        self._id = index.ledger_id
        self._partitions = index.partitions
        self._pieces = {
            (name, partition): _arrange(index, name, partition, partly=partly)
            for name, partition in index.places()
        }
        self._kept: OrderedDict[Segment, list[Record]] = OrderedDict()

    @property
    def id(self) -> str:
        """The name of the ledger that was archived."""
        return self._id

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        if topic not in TOPICS:
            raise LedgerError(f"there is no topic {topic!r}; there are {', '.join(TOPICS)}")
        return self._partitions

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Refuse."""
        raise self._refusal(f"{len(drafts)} events cannot be appended")

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on, fewer at a segment's end."""
        found = self._of(topic, partition)
        if position > found.end:
            raise LedgerDamaged(
                f"the archive of {topic}/{partition} ends at {found.end}, not at {position}"
            )
        if position < found.start:
            raise LedgerTrimmed(
                f"the archive of {topic}/{partition} begins at {found.start}, not at {position}",
                first=found.start,
            )
        if position == found.end or limit < 1:
            return []
        index = bisect.bisect(found.starts, position) - 1
        if position > found.segments[index].last:  # in a hole of a topic without decisions
            index += 1
        records = await self._records(found.segments[index])
        at = bisect.bisect_left(records, position, key=_position)
        return records[at : at + limit]

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Refuse."""
        raise self._refusal(f"{topic}/{partition} cannot be trimmed to {position}")

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that is there."""
        return self._of(topic, partition).start

    async def end(self, topic: str, partition: int) -> int:
        """Return the position behind the last one."""
        return self._of(topic, partition).end

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on; then wait for ever."""
        while records := await self.read(topic, partition, position, _BATCH):
            position = records[-1].position + 1
            yield records
        await asyncio.Event().wait()

    async def position(self, consumer: str, topic: str, partition: int) -> int:  # noqa: ARG002 - the port's
        """Return 0: positions of consumers are not archived."""
        self._of(topic, partition)
        return 0

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Refuse."""
        raise self._refusal(f"{consumer} cannot be at {position} of {topic}/{partition}")

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Return the signed heads of the seals; other snapshots are not archived."""
        if name != HEADS:
            return None
        return await asyncio.to_thread(read_heads, self._store, self._id, partition)

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:  # noqa: ARG002 - the port's
        """Refuse."""
        raise self._refusal(f"the snapshot {name}/{partition} cannot be saved")

    async def close(self) -> None:
        """Drop the cached segments; the store stays open."""
        self._kept.clear()

    def _of(self, topic: str, partition: int) -> _Pieces:
        if not 0 <= partition < self.partitions(topic):
            raise LedgerError(
                f"topic {topic!r} has no partition {partition}; it has 0 to {self._partitions - 1}"
            )
        return self._pieces.get((topic, partition), _NOTHING)

    async def _records(self, segment: Segment) -> list[Record]:
        records = self._kept.get(segment)
        if records is None:
            records = await asyncio.to_thread(read_segment, self._store, segment)
            self._kept[segment] = records
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(segment)
        return records

    def _refusal(self, what: str) -> LedgerError:
        return LedgerError(f"an archive is read-only: {what} ({self._store.url}, {self._id})")


def fetch_segment(store: ObjectStore, segment: Segment) -> Opened:
    """Return a segment, checked by its digests.

    Raises:
        LedgerDamaged: it is damaged or missing.
        ObjectError: the store cannot be read.
    """
    try:
        data = store.read(segment.name)
    except ObjectMissing as error:
        raise LedgerDamaged(f"the segment {segment} is missing") from error
    return open_segment(segment, data)


def read_segment(store: ObjectStore, segment: Segment) -> list[Record]:
    """Return the records of a segment; raises as `fetch_segment`."""
    return fetch_segment(store, segment).records()


def _arrange(index: Index, name: str, partition: int, *, partly: bool) -> _Pieces:
    """Return the segments to read of a partition.

    Raises:
        LedgerDamaged: positions are missing that must not be, unless `partly`.
    """
    segments = index.of(name, partition)
    found = pieces(segments)
    missing = [hole for hole in holes(segments) if name in DECIDED]
    if missing and not partly:
        place = Place(index.ledger_id, name, partition, index.partitions)
        raise LedgerDamaged(
            f"the archive lacks positions {missing[0].first} to {missing[0].last} of {place}; "
            "`rung audit --from-archive` says what else is wrong with it"
        )
    if missing:
        found = [piece for piece in found if piece[0] < missing[0].first]
    return _Pieces([start for start, _ in found], [segment for _, segment in found])


def _position(record: Record) -> int:
    return record.position

"""Copier: appends the new records of a partition to the archive, behind its last segment."""

import asyncio
import math
from functools import partial
from typing import Final, NamedTuple

import structlog
from msgspec import Struct

from rung.events.errors import LedgerDamaged, LedgerTrimmed
from rung.ledger import Ledger
from rung.ledger.archive.index import find_all, find_later, find_tip, tip_of
from rung.ledger.archive.reader import read_segment
from rung.ledger.archive.segment import Builder, Place, Segment
from rung.ledger.archive.signed import put_end, sign_end
from rung.ledger.seals import SealKey
from rung.storage import ObjectStore

MIB: Final = 1 << 20
_READ_MAX: Final = 1000
_LOOK_AGAIN: Final = 100
"""After so many looks the whole list of a partition is read again, as others may write it."""

_log = structlog.get_logger()


class ArchiveSettings(Struct, frozen=True, kw_only=True):
    """Settings of the writer of an archive.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    every_s: float = 300.0
    """Seconds between two looks for new records, so their age when they are archived."""
    segment_bytes: int = 8 * MIB
    """Size of a full segment, unpacked; packed it is about a tenth."""
    parallel: int = 2
    """How many segments are made at a time; each takes memory."""
    retry_s: float = 60.0
    """Most seconds between two attempts while the store refuses."""

    def __post_init__(self) -> None:
        for name in ("every_s", "retry_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}: give seconds, such as 60")
        if self.segment_bytes < 1:
            raise ValueError(
                f"segment_bytes is {self.segment_bytes}: give a size, such as {8 * MIB}"
            )
        if not 1 <= self.parallel <= 64:
            raise ValueError(f"parallel is {self.parallel}: give a number from 1 to 64")


class Archived(NamedTuple):
    """The result of copying a partition."""

    topic: str
    partition: int
    records: int
    segments: int
    end: int
    """The position behind the last archived record."""
    behind: int
    """The number of records behind that in the ledger."""


class Copier:
    """Copies one partition into the archive."""

    def __init__(  # noqa: PLR0913 - shared by all partitions
        self,
        ledger: Ledger,
        store: ObjectStore,
        place: tuple[str, int],
        *,
        segment_bytes: int,
        room: asyncio.Semaphore,
        key: SealKey | None = None,
    ) -> None:
        """Prepare to copy a partition.

        Args:
            ledger: copied from.
            store: copied to.
            place: topic and partition.
            segment_bytes: size of a full segment.
            room: bounds the segments in memory.
            key: signs the partition's end in the archive.
        """
        self._ledger = ledger
        self._store = store
        self._limit = segment_bytes
        self._room = room
        self._key = key
        self._signed: Segment | None = None
        name, partition = place
        self._place = Place(ledger.id, name, partition, ledger.partitions(name))
        self._tip: Segment | None = None
        self._kept_from = 0
        """The first position that the ledger still has."""
        self._looks = 0

    async def copy(self, end: int) -> Archived:
        """Archive the missing records before a position.

        Raises:
            LedgerDamaged: the archive holds more than the ledger.
        """
        await self._find()
        records = segments = 0
        while self._next < end:
            async with self._room:
                count = await self._copy(end)
            if not count:
                break
            records += count
            segments += 1
        if self._key is not None and self._tip not in {None, self._signed}:
            assert self._tip is not None
            await asyncio.to_thread(put_end, self._store, sign_end(self._tip, self._key))
            self._signed = self._tip
        return await self._sum_up(records, segments, end)

    async def compare(self, *, everything: bool) -> None:
        """Compare `everything` in the archive, or its last segment, with the ledger.

        Raises:
            LedgerDamaged: a record differs, or a segment is damaged.
        """
        segments = await asyncio.to_thread(find_all, self._store, self._place)
        tip = tip_of(segments)
        for segment in segments if everything else [tip] if tip else []:
            await self._compare(segment)

    async def _compare(self, segment: Segment) -> None:
        name, number = self._place.topic, self._place.partition
        archived = await asyncio.to_thread(read_segment, self._store, segment)
        start = await self._ledger.start(name, number)
        end = await self._ledger.end(name, number)
        archived = [record for record in archived if start <= record.position < end]
        while archived:
            position = archived[0].position
            found = await self._ledger.read(name, number, position, len(archived))
            for record, other in zip(archived, found, strict=False):
                if record != other:
                    raise LedgerDamaged(
                        f"{self._place} {record.position} differs between the ledger and the "
                        f"archive {self._store.url}: one of them was altered. `rung verify` says "
                        "which"
                    )
            if not found:
                raise LedgerDamaged(f"{self._place} {position} is gone, and is in the archive")
            archived = archived[len(found) :]

    async def _copy(self, end: int) -> int:
        """Store one segment; return its number of records."""
        builder = await self._fill(end)
        if builder.count:
            segment, data = builder.finish()
            await asyncio.to_thread(self._store.put_bytes, segment.name, data)
            # Another process may have stored a longer one, and others behind it.
            later = await asyncio.to_thread(self._later)
            self._tip = tip_of(it for it in (segment, later) if it is not None)
        return builder.count

    @property
    def _next(self) -> int:
        return self._kept_from if self._tip is None else max(self._tip.last + 1, self._kept_from)

    async def _find(self) -> None:
        """Find the last segment in the store."""
        find = partial(find_tip, self._store, self._place) if self._stale() else self._later
        self._tip = await asyncio.to_thread(find)

    def _stale(self) -> bool:
        self._looks += 1
        return self._looks % _LOOK_AGAIN == 1

    def _later(self) -> Segment | None:
        """Return the last segment, also of other processes."""
        return find_later(self._store, self._place, self._tip)

    async def _fill(self, end: int) -> Builder:
        """Build the next segment; it is shorter where the ledger lacks records."""
        previous = None if self._tip is None else self._tip.digest
        builder = Builder(self._place, previous, size_bytes=self._limit)
        await self._skip()
        position = self._next
        name, number = self._place.topic, self._place.partition
        while position < end and not builder.full:
            limit = min(_READ_MAX, end - position)
            try:
                found = await self._ledger.read(name, number, position, limit)
            except LedgerTrimmed:
                break  # meanwhile; the next look skips it
            if not found:
                break
            taken = await asyncio.to_thread(builder.add, found)
            position = found[taken - 1].position + 1
        return builder

    async def _skip(self) -> None:
        """Continue behind records that the ledger no longer has."""
        name, number = self._place.topic, self._place.partition
        start = await self._ledger.start(name, number)
        if start > self._next:
            _log.error(
                "archive has a hole: the ledger no longer keeps these records",
                topic=name,
                partition=number,
                first=self._next,
                last=start - 1,
            )
            self._kept_from = start

    async def _sum_up(self, records: int, segments: int, end: int) -> Archived:
        place = self._place
        if self._next > end:
            end = await self._ledger.end(place.topic, place.partition)
        if self._next > end:
            raise LedgerDamaged(
                f"the archive {self._store.url} holds {place} up to {self._next - 1}, but the "
                f"ledger {place.ledger} ends at {end}: it lost records, or was put back to an "
                "earlier copy. Restore it from the archive: "
                "docs/operations/restore-from-archive.md"
            )
        behind = end - self._next
        return Archived(place.topic, place.partition, records, segments, self._next, behind)

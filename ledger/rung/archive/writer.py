"""Writes an archive: what is new in a ledger, over and over, as segments.

Theory of operation. Facts and the decisions on them are archived together: ask where the
decisions end, then where the facts end, then store the facts, then the decisions. So no decision
is ever in an archive without its fact, at whatever moment the writer is killed.

Where to go on is what the store says, and nothing else. Objects appear whole or not at all, and
names hold positions and digests, so:

* killed at any moment, the next one goes on behind the last segment stored;
* two writers at once, where a share was wrong for a while, may both store a segment that begins
  at the same position. If they cut alike, it is the same object. If not, there are two, both of
  them true; whoever writes next goes on behind the one that reaches furthest. Neither needs the
  store to refuse a name that is taken, which not every S3 does.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import structlog

from rung.archive.segment import Builder, Place, Segment
from rung.archive.settings import ArchiveSettings
from rung.archive.shelf import GROUPS, find_later, find_tip, tip_of
from rung.events.errors import LedgerDamaged, LedgerError, LedgerTrimmed, ObjectError
from rung.host import measure
from rung.host.share import Share, Whole
from rung.host.vital import VITALS
from rung.ledger import Ledger
from rung.objects import ObjectStore

_READ_MAX: Final = 1000
_LOOK_AGAIN: Final = 100
"""After so many looks the whole list of a partition is read again, for what others wrote."""
_WAIT_S_MIN: Final = 1.0

_log = structlog.get_logger()


class Archived(NamedTuple):
    """What was done in a partition of a topic, and how far it is."""

    topic: str
    partition: int
    records: int
    segments: int
    end: int
    """The position behind the last one in the archive."""
    behind: int
    """How many records the ledger holds behind that."""


Watch = Callable[[Archived], None]


async def archive(
    ledger: Ledger,
    store: ObjectStore,
    *,
    share: Share | None = None,
    settings: ArchiveSettings | None = None,
    watch: Watch | None = None,
) -> None:
    """Keep the archive of a ledger up to date until cancelled.

    A store that refuses, or does not answer, is asked again, for ever; so is the ledger.

    Args:
        ledger: all of it but heartbeats is archived.
        store: where to; segments lie below `archive/`.
        share: of which partitions; all of them if not given.
        settings: sizes and times; their defaults if not given.
        watch: told about each look at a partition of a topic.

    Raises:
        LedgerError: the ledger cannot be used, and will not be by waiting.
    """
    settings = settings or ArchiveSettings()
    share = share or Whole(ledger)
    archiver = _Archiver(ledger, store, settings, watch)
    with measure.ARCHIVE_LAG_RECORDS.read_from(archiver.lag):
        async with asyncio.TaskGroup() as group:
            for facts in GROUPS:
                group.create_task(share.hold(facts, partial(archiver.keep, facts)))


async def archive_now(
    ledger: Ledger, store: ObjectStore, settings: ArchiveSettings | None = None
) -> list[Archived]:
    """Archive what a ledger holds at this moment; return what was done, by partition.

    Raises:
        ObjectError: the store refused, or does not answer.
        LedgerError: the ledger cannot be read, or the archive is ahead of it.
    """
    settings = settings or ArchiveSettings()
    done: list[Archived] = []
    archiver = _Archiver(ledger, store, settings, done.append)
    for facts in GROUPS:
        for partition in range(ledger.partitions(facts)):
            await archiver.group(facts, partition).look()
    return done


class _Archiver:
    """What the work on all partitions shares."""

    def __init__(
        self,
        ledger: Ledger,
        store: ObjectStore,
        settings: ArchiveSettings,
        watch: Watch | None,
    ) -> None:
        self.ledger: Final = ledger
        self.store: Final = store
        self.settings: Final = settings
        self.room: Final = asyncio.Semaphore(settings.parallel)
        self._watch: Final = watch or _ignore
        self._behind: dict[tuple[str, int], int] = {}

    def group(self, facts: str, partition: int) -> "_Group":
        """Return the work on a partition of a topic and on the decisions on it."""
        return _Group(self, facts, partition)

    async def keep(self, facts: str, partition: int) -> None:
        """Look for what is new now and then, for ever."""
        try:
            with VITALS.pulse(f"archive-{facts}/{partition}", follows=False):
                await self._keep(self.group(facts, partition))
        finally:  # others archive it from now on, and say how far they are
            for name in _order(facts):
                self._behind.pop((name, partition), None)

    def lag(self) -> dict[tuple[str, ...], float]:
        """Return how many records of this replica's partitions are not in the archive yet."""
        return {(): sum(self._behind.values())}

    def tell(self, archived: Archived) -> None:
        """Say how far the archive of a partition is."""
        self._behind[archived.topic, archived.partition] = archived.behind
        measure.ARCHIVE_SEGMENTS.of().inc(archived.segments)
        self._watch(archived)

    async def _keep(self, group: "_Group") -> None:
        wait_s = min(_WAIT_S_MIN, self.settings.retry_s)
        while True:
            try:
                await group.look()
            except (ObjectError, LedgerError) as error:
                if isinstance(error, LedgerError) and not error.retriable:
                    raise
                _log.error(
                    "archive behind",
                    topic=group.facts,
                    partition=group.partition,
                    reason=str(error),
                    wait_s=wait_s,
                )
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, self.settings.retry_s)
            else:
                wait_s = min(_WAIT_S_MIN, self.settings.retry_s)
                await asyncio.sleep(self.settings.every_s)


class _Group:
    """A partition of facts, and the same one of the decisions on them."""

    def __init__(self, archiver: _Archiver, facts: str, partition: int) -> None:
        self.facts: Final = facts
        self.partition: Final = partition
        self._ledger = archiver.ledger
        self._streams = {name: _Stream(archiver, name, partition) for name in _order(facts)}

    async def look(self) -> None:
        """Store what the ledger holds now and the archive does not, facts first."""
        ends = {
            name: await self._ledger.end(name, self.partition)
            for name in reversed(_order(self.facts))
        }
        for name, stream in self._streams.items():
            await stream.copy(ends[name])


class _Stream:
    """A partition of a topic on its way into the archive."""

    def __init__(self, archiver: _Archiver, name: str, partition: int) -> None:
        ledger = archiver.ledger
        self._ledger = ledger
        self._store = archiver.store
        self._limit = archiver.settings.segment_bytes
        self._room = archiver.room
        self._report = archiver.tell
        self._place = Place(ledger.id, name, partition, ledger.partitions(name))
        self._tip: Segment | None = None
        self._looks = 0

    async def copy(self, end: int) -> None:
        """Store the records up to a position that the archive does not hold."""
        await self._find()
        records = segments = 0
        while self._next < end:
            async with self._room:
                count = await self._copy(end)
            if not count:
                break
            records += count
            segments += 1
        await self._tell(records, segments, end)

    async def _copy(self, end: int) -> int:
        """Store one segment; return how many records it holds."""
        builder = await self._fill(end)
        if builder.count:
            segment, data = builder.finish()
            await asyncio.to_thread(self._store.put_bytes, segment.name, data)
            # Others may have stored one that reaches further, and gone on from there.
            later = await asyncio.to_thread(self._later)
            self._tip = tip_of(it for it in (segment, later) if it is not None)
        return builder.count

    @property
    def _next(self) -> int:
        return 0 if self._tip is None else self._tip.last + 1

    async def _find(self) -> None:
        """Learn from the store where the archive ends."""
        find = partial(find_tip, self._store, self._place) if self._stale() else self._later
        self._tip = await asyncio.to_thread(find)

    def _stale(self) -> bool:
        self._looks += 1
        return self._looks % _LOOK_AGAIN == 1

    def _later(self) -> Segment | None:
        """Return the tip that others, or an object of ours that is there now, have made."""
        return find_later(self._store, self._place, self._tip)

    async def _fill(self, end: int) -> Builder:
        """Return a segment of what follows the tip; shorter where the ledger lacks records."""
        previous = None if self._tip is None else self._tip.digest
        builder = Builder(self._place, previous, size_bytes=self._limit)
        position = self._next
        name, number = self._place.topic, self._place.partition
        while position < end and not builder.full:
            try:
                found = await self._ledger.read(
                    name, number, position, min(_READ_MAX, end - position)
                )
            except LedgerTrimmed as trimmed:
                _log.error(
                    "archive has a hole: the ledger no longer keeps these records",
                    topic=name,
                    partition=number,
                    first=position,
                    last=trimmed.first - 1,
                )
                if builder.count:
                    break
                position = trimmed.first
                continue
            if not found:
                break
            taken = await asyncio.to_thread(builder.add, found)
            position = found[taken - 1].position + 1
        return builder

    async def _tell(self, records: int, segments: int, end: int) -> None:
        """Say how far the archive is.

        Raises:
            LedgerDamaged: further than the ledger.
        """
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
        self._report(
            Archived(place.topic, place.partition, records, segments, self._next, end - self._next)
        )


def _order(facts: str) -> tuple[str, ...]:
    return (facts, *GROUPS[facts])


def _ignore(_: Archived) -> None:
    """Nobody watches."""

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
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from rung.backoff import Backoff
from rung.events import topic
from rung.events.errors import LedgerDamaged, LedgerError
from rung.ledger import Ledger
from rung.ledger.archive.copier import Archived, ArchiveSettings, Copier
from rung.ledger.archive.index import GROUPS
from rung.ledger.archive.signed import put_heads
from rung.ledger.seals import Heads, SealKey, read_heads
from rung.runtime.metrics import catalog
from rung.runtime.sink.batch_sink import Look, Looks, PeriodicSink
from rung.storage import ObjectStore

_WAIT_S_MIN: Final = 1.0

_log = structlog.get_logger()

Watch = Callable[[Archived], None]


def archiving(
    store: ObjectStore,
    settings: ArchiveSettings | None = None,
    *,
    watch: Watch | None = None,
    key: SealKey | None = None,
) -> PeriodicSink:
    """Return what keeps the archive of a ledger up to date.

    A store that refuses, or does not answer, is asked again, for ever; so is the ledger.

    Args:
        store: where to; segments lie below `archive/`.
        settings: sizes and times; their defaults if not given.
        watch: told about each look at a partition of a topic.
        key: of the installation; it signs where each partition ends in the archive.
    """
    settings = settings or ArchiveSettings()

    @contextlib.contextmanager
    def opened(ledger: Ledger) -> Iterator[Looks]:
        archiver = _Archiver(ledger, store, settings, watch, key)
        with catalog.ARCHIVE_LAG_RECORDS.read_from(archiver.lag):
            yield archiver.looks

    backoff = Backoff(min(_WAIT_S_MIN, settings.retry_s), settings.retry_s)
    return PeriodicSink("archive", tuple(GROUPS), opened, settings.every_s, backoff)


async def archive_now(
    ledger: Ledger,
    store: ObjectStore,
    settings: ArchiveSettings | None = None,
    *,
    key: SealKey | None = None,
) -> list[Archived]:
    """Archive what a ledger holds at this moment; return what was done, by partition.

    What the archive holds already is held against the ledger first.

    Args:
        ledger: all of it but heartbeats is archived.
        store: where to.
        settings: sizes; their defaults if not given.
        key: of the installation; it signs where each partition ends in the archive.

    Raises:
        ObjectError: the store refused, or does not answer.
        LedgerError: the ledger cannot be read, the archive is ahead of it, or they differ.
    """
    settings = settings or ArchiveSettings()
    done: list[Archived] = []
    archiver = _Archiver(ledger, store, settings, done.append, key)
    groups = [
        archiver.group(facts, partition)
        for facts in GROUPS
        for partition in range(ledger.partitions(facts))
    ]
    for group in groups:
        await group.compare(everything=True)
    for group in groups:
        await group.look()
    return done


class _Archiver:
    """What the work on all partitions shares."""

    def __init__(
        self,
        ledger: Ledger,
        store: ObjectStore,
        settings: ArchiveSettings,
        watch: Watch | None,
        key: SealKey | None,
    ) -> None:
        self.ledger: Final = ledger
        self._key: Final = key
        self._store: Final = store
        self._settings: Final = settings
        self._room: Final = asyncio.Semaphore(settings.parallel)
        self._watch: Final = watch or _ignore
        self._behind: dict[tuple[str, int], int] = {}

    def group(self, facts: str, partition: int) -> "_Group":
        """Return the work on a partition of a topic and on the decisions on it."""
        return _Group(self, facts, partition)

    def stream(self, name: str, partition: int) -> Copier:
        """Return the work on a partition of one topic."""
        return Copier(
            self.ledger,
            self._store,
            (name, partition),
            segment_bytes=self._settings.segment_bytes,
            room=self._room,
            key=self._key,
        )

    async def heads(self, partition: int) -> Heads | None:
        """Return the signed heads of a partition of `seals`, if there are any."""
        try:
            return await read_heads(self.ledger, partition)
        except (ValueError, LedgerError) as error:
            _log.error("signed heads not archived", partition=partition, reason=str(error))
            return None

    async def put_heads(self, heads: Heads) -> None:
        """Store signed heads."""
        await asyncio.to_thread(put_heads, self._store, heads)

    @contextlib.contextmanager
    def looks(self, facts: str, partition: int) -> Iterator[Look]:
        """Give what takes from a group what is new."""
        group = self.group(facts, partition)
        compared = False

        async def look() -> None:
            nonlocal compared
            if not compared:
                await self._compare(group)
                compared = True
            await group.look()

        try:
            yield look
        finally:  # others archive it from now on, and say how far they are
            for name in _order(facts):
                self._behind.pop((name, partition), None)

    def lag(self) -> dict[tuple[str, ...], float]:
        """Return how many records of this replica's partitions are not in the archive yet."""
        return {(): sum(self._behind.values())}

    def tell(self, archived: Archived) -> None:
        """Say how far the archive of a partition is."""
        self._behind[archived.topic, archived.partition] = archived.behind
        catalog.ARCHIVE_SEGMENTS.inc(archived.segments)
        self._watch(archived)

    async def _compare(self, group: "_Group") -> None:
        """Hold the end of what the archive has against the ledger; training goes on either way."""
        try:
            await group.compare(everything=False)
        except LedgerDamaged as error:
            _log.error("archive and ledger differ", reason=str(error))


class _Group:
    """A partition of facts, and the same one of the decisions on them."""

    def __init__(self, archiver: _Archiver, facts: str, partition: int) -> None:
        self.facts: Final = facts
        self.partition: Final = partition
        self._archiver = archiver
        self._ledger = archiver.ledger
        self._tell = archiver.tell
        self._streams = {name: archiver.stream(name, partition) for name in _order(facts)}

    async def look(self) -> None:
        """Store what the ledger holds now and the archive does not, facts first."""
        seals = self.facts == topic.SEALS
        heads = await self._archiver.heads(self.partition) if seals else None
        ends = {
            name: await self._ledger.end(name, self.partition)
            for name in reversed(_order(self.facts))
        }
        for name, stream in self._streams.items():
            self._tell(await stream.copy(ends[name]))
        if heads is not None and heads.position <= ends[self.facts]:
            await self._archiver.put_heads(heads)

    async def compare(self, *, everything: bool) -> None:
        """Hold what the archive has against the ledger.

        Raises:
            LedgerDamaged: they differ.
        """
        for stream in self._streams.values():
            await stream.compare(everything=everything)


def _order(facts: str) -> tuple[str, ...]:
    return (facts, *GROUPS[facts])


def _ignore(_: Archived) -> None:
    """Watch for nobody."""

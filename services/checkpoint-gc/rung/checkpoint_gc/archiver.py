"""Archiver: copies what is new in a ledger to an object store, in segments.

Theory of operation. Facts and the decisions on them are archived together: look where the
decisions end, then where the facts end, then store the facts, then the decisions. So no decision
is ever in an archive without its fact, at whatever moment the archiver is killed.

The position to go on from is read from the store alone. Objects appear as a whole or not at all,
and names hold positions and digests, so:

* after a kill at any moment, the next archiver goes on behind the last segment stored;
* two archivers at once, during a rebalance, may both store a segment that begins at the same
  position. If they cut alike, it is the same object. If not, there are two, both of them right;
  the next one goes on behind the one that reaches furthest. So the store need not refuse to
  overwrite, which not every S3 does.
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
    """Return what keeps the archive of a ledger up to date; it retries for ever.

    Args:
        store: where to; segments lie below `archive/`.
        settings: sizes and times; their defaults if not given.
        watch: called after each look at a partition of a topic.
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

    What the archive holds already is compared with the ledger first.

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
        _Group(archiver, facts, partition)
        for facts in GROUPS
        for partition in range(ledger.partitions(facts))
    ]
    for group in groups:
        await group.compare(everything=True)
    for group in groups:
        await group.look()
    return done


class _Archiver:
    """The work on all partitions of a ledger."""

    def __init__(
        self,
        ledger: Ledger,
        store: ObjectStore,
        settings: ArchiveSettings,
        watch: Watch | None,
        key: SealKey | None,
    ) -> None:
        self.ledger: Final = ledger
        self.store: Final = store
        self._settings: Final = settings
        self._key: Final = key
        self._room: Final = asyncio.Semaphore(settings.parallel)
        self._watch: Final = watch
        self._behind: dict[tuple[str, int], int] = {}

    def stream(self, name: str, partition: int) -> Copier:
        """Return the work on a partition of one topic."""
        return Copier(
            self.ledger,
            self.store,
            (name, partition),
            segment_bytes=self._settings.segment_bytes,
            room=self._room,
            key=self._key,
        )

    @contextlib.contextmanager
    def looks(self, facts: str, partition: int) -> Iterator[Look]:
        """Give what archives what is new in a group."""
        group = _Group(self, facts, partition)
        compared = False

        async def look() -> None:
            nonlocal compared
            if not compared:
                try:
                    await group.compare(everything=False)
                except LedgerDamaged as error:  # training goes on either way
                    _log.error("archive and ledger differ", reason=str(error))
                compared = True
            await group.look()

        try:
            yield look
        finally:  # another replica archives it from now on, and reports its lag
            for name in group.topics:
                self._behind.pop((name, partition), None)

    def lag(self) -> dict[tuple[str, ...], float]:
        """Return how many records of this replica's partitions are not in the archive yet."""
        return {(): sum(self._behind.values())}

    def note(self, archived: Archived) -> None:
        """Take note of how far the archive of a partition is."""
        self._behind[archived.topic, archived.partition] = archived.behind
        catalog.ARCHIVE_SEGMENTS.inc(archived.segments)
        if self._watch is not None:
            self._watch(archived)


class _Group:
    """A partition of facts, and the same one of the decisions on them."""

    def __init__(self, archiver: _Archiver, facts: str, partition: int) -> None:
        self.topics: Final = (facts, *GROUPS[facts])
        self._partition: Final = partition
        self._archiver: Final = archiver
        self._streams: Final = {name: archiver.stream(name, partition) for name in self.topics}

    async def look(self) -> None:
        """Store what the ledger holds now and the archive does not, facts first."""
        heads = await self._heads() if topic.SEALS in self.topics else None
        ends = {
            name: await self._archiver.ledger.end(name, self._partition)
            for name in reversed(self.topics)
        }
        for name, stream in self._streams.items():
            self._archiver.note(await stream.copy(ends[name]))
        if heads is not None and heads.position <= ends[topic.SEALS]:
            await asyncio.to_thread(put_heads, self._archiver.store, heads)

    async def compare(self, *, everything: bool) -> None:
        """Hold what the archive has against the ledger.

        Raises:
            LedgerDamaged: they differ.
        """
        for stream in self._streams.values():
            await stream.compare(everything=everything)

    async def _heads(self) -> Heads | None:
        """Return the signed heads of a partition of `seals`, if there are any."""
        try:
            return await read_heads(self._archiver.ledger, self._partition)
        except (ValueError, LedgerError) as error:
            _log.error("signed heads not archived", partition=self._partition, reason=str(error))
            return None

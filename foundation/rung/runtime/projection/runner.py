"""Runs projections: each partition is followed, and folded batch by batch in a thread.

Every replica folds all partitions into files of its own. While a projection catches up with what
the ledger held at the start, it answers from what is folded so far, and `behind` says how far.
Where there is an object store for it, replicas publish copies of their files, and one without a
file starts from the newest of them (`copies`).
"""

import asyncio
import contextlib
import fcntl
import functools
import random
import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import structlog

from rung.events import LedgerError
from rung.events.errors import ObjectError
from rung.ledger import Ledger, Record
from rung.ledger.sqlite.errors import explain
from rung.runtime.deadletter import log_rejected
from rung.runtime.health.checks import HEALTH
from rung.runtime.metrics import catalog
from rung.runtime.processor.fold import Rejected
from rung.runtime.projection.copies import WORTH_RECORDS, Copies
from rung.runtime.projection.merge import Merge, digest_of, positions_of
from rung.runtime.projection.projection import Projection
from rung.runtime.projection.store import Store, StoreDamaged
from rung.runtime.retry import supervise
from rung.storage import ObjectStore

_READ_MAX: Final = 2_000
_HELD_AT_ONCE: Final = 100
"""More decisions than these are decoded in the thread, not on the event loop."""
_ENDS_WITHIN_S: Final = 5.0
_PUBLISHED_EVERY_S: Final = 600.0

Place = tuple[str, int]
"""A topic and a partition of it."""

_log = structlog.get_logger()


class Behind(NamedTuple):
    """How far projections are that have not caught up yet."""

    folded: int
    records: int
    """That the ledger held when their loops began."""

    def __str__(self) -> str:
        records = "record" if self.records == 1 else "records"
        return f"catching up: {self.folded:,} of {self.records:,} {records}"


class Projections:
    """The projections of one replica, kept up to date with the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        projections: Iterable[Projection],
        *,
        reader: str,
        folder: Path | None = None,
        objects: ObjectStore | None = None,
    ) -> None:
        """Take what is folded; nothing is opened yet.

        Args:
            ledger: followed; nothing is appended to it.
            projections: what is folded.
            reader: their name in logs and metrics.
            folder: where the files lie; in a temporary folder if not given.
            objects: where replicas publish copies of their files; none if not given.
        """
        self._folder = folder
        self._reader = reader
        self._copies = None if objects is None else Copies(objects, ledger.id)
        self._tick = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None] | None = None
        self._checks = contextlib.ExitStack()
        self.stores: Final[dict[str, Store]] = {}
        """By the name of the projection."""
        self._loops: list[_Loop] = []
        for it in projections:
            store = self.stores[it.name] = Store(it, ledger.id, folder, self._copies)
            partitions = range(ledger.partitions(it.facts))
            loops = [_Loop(ledger, it, store, n, reader, self._changed) for n in partitions]
            store.rebuilt = functools.partial(_wake, loops)
            self._loops += loops

    async def start(self, *, wait_s: float) -> None:
        """Open the files and fold the ledger in the background.

        Args:
            wait_s: how long to wait at most until what the ledger holds now is folded.

        Raises:
            LedgerError: the ledger cannot be followed.
        """
        self._failure = asyncio.get_running_loop().create_future()
        if self._folder is not None:
            self._checks.callback((await asyncio.to_thread(_hold, self._folder)).close)
        for store in self.stores.values():
            await store.open()
        self._checks.enter_context(HEALTH.check("projections", self._look))
        for loop in self._loops:
            self._begin(supervise(loop.run, name=loop.name))
        if self._copies is not None:
            name = f"{self._reader}-copies"
            self._begin(supervise(self._publish_always, name=name, follows=False))
        waiting = asyncio.create_task(self._caught_up())
        try:
            await asyncio.wait(
                [waiting, self._failure], timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if self._failure.done():
            await self._failure

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the projections, which ends as they do; `start` comes first."""
        self._begin(work)

    async def publish(self, *, worth: int = WORTH_RECORDS) -> None:
        """Publish copies of the files that have so many more records than the newest copies.

        Nothing happens while they catch up. What fails is logged.
        """
        for name, store in self.stores.items():
            if self.behind() is not None:
                return
            try:
                await store.publish(worth)
            except (LedgerError, ObjectError, OSError, sqlite3.Error) as error:
                _log.warning("projection not published", projection=name, reason=str(error))

    async def _publish_always(self) -> None:
        while True:  # replicas that start together do not publish together
            await asyncio.sleep(_PUBLISHED_EVERY_S * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            await self.publish()

    async def failed(self) -> None:
        """Wait for ever, or for the error that ends a projection, or what is run beside them.

        Raises:
            LedgerError: one that does not pass by itself.
        """
        assert self._failure is not None, "not started"
        await asyncio.shield(self._failure)

    async def close(self) -> None:
        """Stop following, and close the files."""
        with self._checks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._failure is not None and not self._failure.done():
                self._failure.cancel()
            for store in self.stores.values():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ENDS_WITHIN_S):
                        await store.close()

    def behind(self) -> Behind | None:
        """Return how far the projections are, None once they have caught up with the start.

        A record that several of them fold counts once, and as folded once all of them have it.
        """
        if all(loop.caught_up for loop in self._loops):
            return None
        folded: dict[Place, int] = {}
        goals: dict[Place, int] = {}
        for loop in self._loops:
            for place, goal in loop.goals.items():
                done = min(loop.positions.get(place[0], 0), goal)
                folded[place] = min(folded.get(place, done), done)
                goals[place] = max(goals.get(place, 0), goal)
        return Behind(sum(folded.values()), sum(goals.values()))

    @property
    def whole(self) -> bool:
        """Whether the files have had all that the ledger held since they were opened or rebuilt.

        They stay whole where a loop starts again, on a full disk say: what they lack came later.
        """
        return all(loop.whole for loop in self._loops)

    async def reached(self, positions: Mapping[Place, int], *, wait_s: float) -> bool:
        """Wait until records are folded; return whether they are.

        Args:
            positions: of the last record in each place; places that none follows do not count.
            wait_s: how long to wait at most.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._has(positions):
                    await self._tick.wait()
        return self._has(positions)

    def _has(self, positions: Mapping[Place, int]) -> bool:
        return all(
            loop.positions.get(name, 0) > position
            for (name, partition), position in positions.items()
            for loop in self._loops
            if loop.partition == partition and name in loop.topics
        )

    async def _caught_up(self) -> None:
        while self.behind() is not None:
            await self._tick.wait()

    async def _look(self) -> str | None:
        behind = self.behind()
        return None if behind is None else str(behind)

    def _changed(self) -> None:
        tick, self._tick = self._tick, asyncio.Event()
        tick.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("projections stopped", error=str(error))
            assert self._failure is not None
            if not self._failure.done():
                self._failure.set_exception(error)


class _Loop:
    """One partition of one projection."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts that it joins
        self,
        ledger: Ledger,
        projection: Projection,
        store: Store,
        partition: int,
        reader: str,
        changed: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._projection = projection
        self._store = store
        self._reader = reader
        self._changed = changed
        self.name: Final = f"{reader}-{projection.name}/{partition}"
        self.partition: Final = partition
        self.topics: Final = projection.topics
        self.goals: dict[Place, int] = {}
        """Where the ledger ended when the loop began."""
        self._ends: dict[str, int] = {}
        """Topic → up to where it is known to have records, so that others are not looked for."""
        self._generation = -1
        """Of the file that the rest is about."""
        self._positions: dict[str, int] = {}
        self._caught_up = False
        self._whole = -1
        """The newest generation of the file that has been caught up with."""
        self._grew = asyncio.Event()

    @property
    def positions(self) -> dict[str, int]:
        """Topic → the position behind the last record folded and committed."""
        return self._positions if self._is_current else {}

    @property
    def caught_up(self) -> bool:
        """Whether what the ledger held when the loop began is folded."""
        return self._caught_up and self._is_current

    @property
    def whole(self) -> bool:
        """Whether that was so since the file is there."""
        return self._whole == self._store.generation

    @property
    def _is_current(self) -> bool:
        """Whether the file is still the one that the loop began with.

        All partitions are in one file: where one of them finds it damaged, all begin again.
        """
        return self._generation == self._store.generation

    def wake(self) -> None:
        """Let the loop look again whether there is something to do."""
        self._grew.set()

    async def run(self) -> None:
        """Fold what is there and what comes, until the file is rebuilt; then run again.

        Raises:
            LedgerError: run again to go on, if it is one that passes.
        """
        self._caught_up, self._positions = False, {}
        generation = self._generation = self._store.generation
        try:
            await self._check()
            merge = await self._store.write(
                lambda: Merge(self._projection, self._store.db, self.partition)
            )
            self._positions = dict(merge.positions)
            await self._follow(merge)
        except StoreDamaged as error:
            await self._store.rebuild(generation, str(error))
            raise

    async def _check(self) -> None:
        """Find out whether what was folded is what the ledger holds; learn where it ends.

        Raises:
            StoreDamaged: it is not: the ledger was restored from a backup.
        """
        folded = await self._store.write(lambda: positions_of(self._store.db, self.partition))
        for name in self.topics:
            end = await self._ledger.end(name, self.partition)
            self.goals[name, self.partition] = self._ends[name] = end
            position, digest = folded.get(name, (0, 0))
            last: Sequence[Record] = []
            if 0 < position <= end:
                start = await self._ledger.start(name, self.partition)
                if position <= start:
                    continue  # what was folded is no longer kept
                last = await self._ledger.read(name, self.partition, position - 1, 1)
            if position > 0 and (not last or digest_of(last[0]) != digest):
                raise StoreDamaged(f"{name}/{self.partition} holds other records than were folded")

    async def _follow(self, merge: Merge) -> None:
        await self._catch_up(merge)
        self._caught_up, self._whole = True, self._generation
        self._changed()
        watchers = [
            asyncio.create_task(self._watch(name, position))
            for name, position in merge.positions.items()
        ]
        try:
            while True:
                self._grew.clear()
                while await self._advance(merge):
                    pass
                if not self._is_current:
                    return
                await self._grew.wait()
                for watcher in watchers:
                    if watcher.done():
                        watcher.result()
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    async def _catch_up(self, merge: Merge) -> None:
        """Fold what the ledger held at the start; what comes meanwhile may never end."""
        while any(merge.positions[name] < end for (name, _), end in self.goals.items()):
            if not await self._advance(merge):
                return

    async def _watch(self, name: str, position: int) -> None:
        try:
            async for records in self._ledger.follow(name, self.partition, position):
                self._ends[name] = records[-1].position + 1
                self._grew.set()
        finally:
            self._grew.set()

    async def _advance(self, merge: Merge) -> bool:
        """Fold what is there now, or a part of it; return whether there may be more."""
        if not self._is_current:
            return False
        facts_topic = self._projection.facts
        orphans = merge.holds
        # A decision held back shows that its fact is there, whatever is known.
        facts = await self._read(facts_topic, merge.positions[facts_topic], surely=orphans)
        last = facts[-1].position if facts else merge.positions[facts_topic] - 1
        # What precedes a fact may be on record without being known of here: that is looked for.
        brought = [
            await self._bring(merge, name, last, surely=bool(facts))
            for name in self._projection.decisions
        ]
        if facts or any(brought) or orphans:
            self._note(await self._store.write(merge.fold, facts))
        if not facts and orphans and not any(brought):
            self._note(await self._store.write(merge.fold_orphans))
        streamed = [await self._take_stream(merge, name) for name in self._projection.streams]
        if self._positions != merge.positions:
            self._positions = dict(merge.positions)
            self._changed()
        return bool(facts) or any(brought) or any(streamed)

    async def _read(self, name: str, position: int, *, surely: bool = False) -> Sequence[Record]:
        """Return records of a topic; none, without looking, where none are known of."""
        if position >= self._ends[name] and not surely:
            return ()
        return await self._ledger.read(name, self.partition, position, _READ_MAX)

    async def _take_stream(self, merge: Merge, name: str) -> bool:
        """Fold a part of a topic that is folded by itself; return whether there may be more."""
        records = await self._read(name, merge.positions[name])
        if records:
            self._note(await self._store.write(merge.fold_stream, records))
        return bool(records)

    async def _bring(self, merge: Merge, name: str, last_fact: int, *, surely: bool) -> bool:
        """Bring the decisions that the facts up to `last_fact` may follow from."""
        brought = False
        while merge.last_cause(name) <= last_fact:
            records = await self._read(name, merge.read_up_to(name), surely=surely)
            if not records:
                break
            if len(records) <= _HELD_AT_ONCE:
                merge.hold(records)
            else:
                await self._store.write(merge.hold, records)
            brought = True
        return brought

    def _note(self, rejected: Sequence[Rejected]) -> None:
        """Log and count what could not be folded; the file has it."""
        if rejected:
            log_rejected(self._reader, rejected)
            catalog.DEAD_LETTERS.labels(self._reader).inc(len(rejected))


def _wake(loops: Iterable[_Loop]) -> None:
    for loop in loops:
        loop.wake()


def _hold(folder: Path) -> IO[str]:
    """Keep other processes away from the files; return the lock.

    Raises:
        LedgerError: another one has them, or they cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        lock = (folder / "lock").open("a")
    except OSError as error:
        raise explain(error, folder) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        detail = f"another process has the projections in {folder}: give each a folder of its own"
        raise LedgerError(detail) from error
    return lock


async def project(ledger: Ledger, it: Projection) -> None:
    """Run a projection alone, in a temporary file, until cancelled.

    Raises:
        LedgerError: one that does not pass by itself.
    """
    projections = Projections(ledger, [it], reader=it.name)
    try:
        await projections.start(wait_s=0.0)
        await projections.failed()
    finally:
        await projections.close()

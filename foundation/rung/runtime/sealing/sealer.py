"""Seals a ledger: signed digests of what was appended, about two seconds later.

Theory of operation. `Sealer.step` reads the topic `seals` to its end, then for each partition that
this replica holds the records behind its newest seal, appends a seal for each range, and saves the
signed heads. Only the seals on record say where to go on, so a sealer that is killed at any
moment is followed by one that does the same; a seal that another replica appended meanwhile comes
first in the ledger, and counts.

A partition of which all is sealed is *settled*: it is followed from there on, and not asked for
its end until something is appended. So a ledger to which nothing is appended is asked nothing.
The anchor gets the heads beside the sealing: one that hangs delays nothing but itself.

Digests are computed in a thread, some hundred records at a time, so that the event loop is never
held up for longer than a fraction of a millisecond.

What cannot be sealed, because records or seals are missing, is logged and left as it is: training
goes on, and `rung verify` says what is wrong.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, NamedTuple

import structlog
from msgspec import Struct

from rung.events import LedgerError, LedgerTrimmed, topic
from rung.ledger import Draft, Ledger
from rung.ledger.seals import (
    SEALED,
    Chains,
    Head,
    RangeHasher,
    SealKey,
    draft_of,
    load_chains,
    make_seal,
    read_heads,
    save_heads,
    seals_partition,
)
from rung.ledger.seals.chain import catch_up
from rung.runtime.assignment.assignment import AllPartitions, Assignment
from rung.runtime.fact_writer import now
from rung.runtime.health.loops import unmonitored
from rung.runtime.metrics import catalog
from rung.runtime.retry import supervise
from rung.runtime.sealing.anchor import Anchor
from rung.runtime.shield import finish

RANGE_RECORDS_MAX = 10_000
RANGE_BYTES_MAX: Final = 8 << 20
RANGE_GROUPS_MAX: Final = 256
"""A range ends at the batch of records that reaches one of these, which bounds its seal."""
READ = 500
"""So many records are read and digested at a time."""
_COMPLAIN_S: Final = 60.0

Place = tuple[str, int]

_log = structlog.get_logger()


class SealSettings(Struct, frozen=True, kw_only=True):
    """How often a ledger is sealed; none of it changes what is verified.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    every_s: float = 2.0
    """Seconds between two seals of a partition: the age up to which records are not sealed yet."""
    heads_every_s: float = 2.0
    """Seconds between two times that the signed heads are saved."""
    anchor_every_s: float = 60.0
    """Seconds between two times that an anchor gets the heads."""
    busy_share: float = 0.03
    """The part of the time, above 0 and up to 1, in which it works where much is appended: so the
    appends of the same process keep their speed. Beyond that share, seals come later."""

    def __post_init__(self) -> None:
        for name in ("every_s", "heads_every_s", "anchor_every_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}: give seconds, such as 2")
        if not 0 < self.busy_share <= 1:
            raise ValueError(f"busy_share is {self.busy_share}: give a part, such as 0.03")


class _Made(NamedTuple):
    """A seal that is about to be appended."""

    place: Place
    draft: Draft
    records: int


class _Watch:
    """What is known of a partition that this replica holds: whether all of it is sealed."""

    def __init__(self) -> None:
        self._position: int | None = None
        self._known = asyncio.Event()

    @property
    def settled(self) -> bool:
        """Whether nothing was left to seal, and nothing was appended since."""
        return self._position is not None

    def settle(self, position: int) -> None:
        """Note up to where everything is sealed."""
        self._position = position
        self._known.set()

    def unsettle(self) -> None:
        """Note that there is something to look at."""
        self._position = None
        self._known.clear()

    async def position(self) -> int:
        """Return up to where everything is sealed, once it is."""
        while self._position is None:
            await self._known.wait()
        return self._position


class Sealer:
    """Seals the partitions of a ledger that this replica holds."""

    def __init__(
        self,
        ledger: Ledger,
        key: SealKey,
        *,
        settings: SealSettings | None = None,
        anchor: Anchor | None = None,
    ) -> None:
        """Prepare it; nothing is read yet.

        Args:
            ledger: which to seal.
            key: of the installation.
            settings: how often; their defaults if not given.
            anchor: what gets the signed heads as well.
        """
        self._ledger = ledger
        self._key = key
        self._settings = settings or SealSettings()
        self._anchor = anchor
        self._chains: dict[int, Chains] = {}
        self._held: set[Place] = set()
        self._watches: dict[Place, _Watch] = {}
        """Of the partitions that are followed, so that an append is noticed."""
        self._grown = asyncio.Event()
        self._sealed = asyncio.Event()
        """Whether there may be heads that the anchor does not have."""
        self._saved: dict[int, int] = {}
        self._saved_s = -math.inf
        self._anchored: dict[int, int] = {}
        self._complained: dict[str, float] = {}
        self._stepping = asyncio.Lock()

    async def run(self, assignment: Assignment | None = None) -> None:
        """Seal until cancelled.

        Args:
            assignment: of which partitions; all of them if not given.

        Raises:
            LedgerError: the ledger cannot be used, and will not be by waiting.
        """
        assignment = assignment or AllPartitions(self._ledger)
        async with asyncio.TaskGroup() as group:
            for name in (*SEALED, topic.SEALS):
                group.create_task(self._hold(assignment, name))
            group.create_task(supervise(self._keep, name="sealer", follows=False))
            group.create_task(self._keep_anchored())

    async def start(self) -> None:
        """Read the seals on record, and save heads where there are none yet."""
        for partition in range(self._ledger.partitions(topic.SEALS)):
            chains = await self._chains_of(partition)
            if chains is not None and not chains.position:
                await save_heads(self._ledger, chains.signed(self._key))

    @property
    def idle(self) -> bool:
        """Whether all that this replica holds is sealed, and waits for appends."""
        return all(map(self._is_settled, self._held)) and not self._unsaved()

    def hold_all(self) -> None:
        """Seal all partitions from now on, whatever the assignment is."""
        self._held = {
            (name, partition)
            for name in (*SEALED, topic.SEALS)
            for partition in range(self._ledger.partitions(name))
        }

    async def prepare(self) -> list[Draft]:
        """Return the seals of what is new, one range of each partition, without appending them."""
        for partition in range(self._ledger.partitions(topic.SEALS)):
            await self._chains_of(partition)
        return [seal.draft async for seal in self._new()]

    async def finish(self) -> None:
        """Seal all that the ledger holds now, save the heads, and anchor them."""
        self.hold_all()
        while await self.step():
            pass
        self._saved_s = -math.inf
        await self.step()
        await self._give_anchor()

    async def step(self) -> int:
        """Seal what is new, one range of each partition; return how many records that was."""
        async with self._stepping:
            return await self._step()

    async def _step(self) -> int:
        for partition in range(self._ledger.partitions(topic.SEALS)):
            await self._chains_of(partition)
        made = [seal async for seal in self._new()]
        if made:
            await self._ledger.append([seal.draft for seal in made])
            for partition in {seals_partition(self._ledger, *seal.place) for seal in made}:
                await self._chains_of(partition)
        await self._save_heads()
        for partition in self._heads():
            if (chains := self._chains.get(partition)) is not None:
                self._settle((topic.SEALS, partition), chains.position)
        self._sealed.set()
        return sum(seal.records for seal in made)

    async def _hold(self, assignment: Assignment, name: str) -> None:
        async def work(partition: int) -> None:
            place = (name, partition)
            self._held.add(place)
            self._watches[place] = watch = _Watch()
            self._grown.set()
            try:
                with unmonitored():
                    await self._watch(place, watch)
            finally:
                self._held.discard(place)
                del self._watches[place]

        await assignment.run(name, work)

    async def _watch(self, place: Place, watch: _Watch) -> None:
        """Unsettle a partition whenever something is appended behind where it was settled."""
        while True:
            batches = self._ledger.follow(*place, await watch.position())
            try:
                await anext(batches)
            except LedgerError as error:  # the next step meets it, too, and deals with it
                _log.debug("not followed", place=place, reason=str(error))
            finally:
                if isinstance(batches, AsyncGenerator):
                    await batches.aclose()
            watch.unsettle()
            self._grown.set()

    def _settle(self, place: Place, position: int) -> None:
        if (watch := self._watches.get(place)) is not None:
            watch.settle(position)

    def _is_settled(self, place: Place) -> bool:
        watch = self._watches.get(place)
        return watch is not None and watch.settled

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        await self.start()
        while True:
            began = clock()
            sealed = await finish(self.step())
            took = clock() - began
            idle = took / self._settings.busy_share - took if sealed > READ else 0.0
            rest = self._settings.every_s - took if sealed < RANGE_RECORDS_MAX else 0.0
            while self.idle:
                self._grown.clear()
                await self._grown.wait()
            await asyncio.sleep(max(idle, rest, 0.05))

    async def _new(self) -> AsyncIterator[_Made]:
        for place in sorted(self._held):
            if place[0] == topic.SEALS or self._is_settled(place):
                continue
            chains = self._chains.get(seals_partition(self._ledger, *place))
            if chains is None:
                continue
            head = chains.heads.get(f"{place[0]}/{place[1]}")
            hasher = await self._hash(place, head)
            if hasher is not None and hasher.count:
                seal = make_seal(self._ledger.id, place, hasher.finish(), head, self._key)
                catalog.SEALED_RECORDS.labels(place[0]).inc(hasher.count)
                yield _Made(place, draft_of(seal, now()), hasher.count)

    async def _hash(self, place: Place, head: Head | None) -> RangeHasher | None:
        """Return the digest of a range behind a seal, None where it cannot be read."""
        position = head.last + 1 if head else 0
        end = await self._ledger.end(*place)
        if end <= position:
            if end == position:
                self._settle(place, position)
            else:
                self._complain(
                    f"{place[0]}/{place[1]} ends at {end}, but is sealed up to {position - 1}: "
                    "records were cut off"
                )
            return None
        if head is None:
            position = await self._ledger.start(*place)
            if end - position > RANGE_RECORDS_MAX:
                _log.info("sealing a partition from its beginning", place=place, records=end)
        hasher = RangeHasher(*place)
        try:
            while position < end and not _full(hasher):
                limit = min(READ, end - position)
                records = await self._ledger.read(*place, position, limit)
                if not records:
                    break
                await asyncio.to_thread(hasher.add, records)
                position = records[-1].position + 1
        except LedgerTrimmed as error:  # retention was faster than the sealer
            self._complain(f"{error}; it was removed before it was sealed")
            return await self._hash_from(place, error.first)
        except LedgerError as error:
            if error.retriable:
                raise
            self._complain(str(error))
        return hasher

    async def _hash_from(self, place: Place, position: int) -> RangeHasher:
        hasher = RangeHasher(*place)
        hasher.add(await self._ledger.read(*place, position, READ))
        return hasher

    async def _chains_of(self, partition: int) -> Chains | None:
        """Return the chains of a partition of `seals` as they are now, None if it was cut."""
        chains = self._chains.get(partition)
        try:
            if chains is None:
                chains = await load_chains(self._ledger, partition, self._key.trusted)
                self._chains[partition] = chains
                self._saved[partition] = chains.position
                if chains.position and await self._lacks_heads(partition):
                    _log.error(
                        "the signed heads of the seals were missing, and are made again",
                        means="only an anchor shows whether seals were cut off with them",
                        partition=partition,
                    )
                    self._saved[partition] = 0
            else:
                await catch_up(self._ledger, chains, partition)
        except LedgerError as error:
            if error.retriable:
                raise
            self._chains.pop(partition, None)
            self._complain(f"not sealed: {error}")
            return None
        return chains

    async def _lacks_heads(self, partition: int) -> bool:
        try:
            return await read_heads(self._ledger, partition) is None
        except ValueError:
            return True

    async def _save_heads(self) -> None:
        moment = asyncio.get_running_loop().time()
        if moment - self._saved_s < self._settings.heads_every_s:
            return
        self._saved_s = moment
        changed = self._unsaved()
        await asyncio.gather(
            *(save_heads(self._ledger, chains.signed(self._key)) for _, chains in changed)
        )
        self._saved |= {partition: chains.position for partition, chains in changed}

    def _unsaved(self) -> list[tuple[int, Chains]]:
        """Return the chains of which the ledger does not keep the newest heads."""
        return [
            (partition, chains)
            for partition in self._heads()
            if (chains := self._chains.get(partition)) is not None
            and chains.position > self._saved.get(partition, 0)
        ]

    async def _keep_anchored(self) -> None:
        """Give the anchor the newest heads every so often, as long as there are newer ones."""
        while self._anchor is not None:
            await self._sealed.wait()
            self._sealed.clear()
            if not await self._give_anchor():
                self._sealed.set()
            await asyncio.sleep(self._settings.anchor_every_s)

    async def _give_anchor(self) -> bool:
        """Give the anchor the heads that it does not have; return whether it has them all."""
        if self._anchor is None:
            return True
        changed = [
            chains.signed(self._key)
            for partition in self._heads()
            if (chains := self._chains.get(partition)) is not None
            and chains.position > self._anchored.get(partition, 0)
        ]
        if changed:
            if not await self._anchor.put(changed):
                return False
            self._anchored |= {heads.partition: heads.position for heads in changed}
        return True

    def _heads(self) -> list[int]:
        """Return of which partitions of `seals` this replica saves the heads."""
        return sorted(partition for name, partition in self._held if name == topic.SEALS)

    def _complain(self, text: str) -> None:
        moment = asyncio.get_running_loop().time()
        if moment - self._complained.get(text, -math.inf) > _COMPLAIN_S:
            self._complained[text] = moment
            _log.error("not sealed", reason=text, see="rung verify")


@contextlib.asynccontextmanager
async def sealing(sealer: Sealer) -> AsyncIterator[None]:
    """Seal a ledger of one machine while the body runs, and what is left once it has ended.

    Whatever writes to the ledger belongs into the body.
    """
    await sealer.start()
    running = asyncio.create_task(sealer.run())
    running.add_done_callback(_say_ended)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        try:
            await sealer.finish()
        except LedgerError as error:
            _log.error("the last records are not sealed", reason=str(error))


def _full(hasher: RangeHasher) -> bool:
    return (
        hasher.count >= RANGE_RECORDS_MAX
        or hasher.size_bytes >= RANGE_BYTES_MAX
        or hasher.groups >= RANGE_GROUPS_MAX
    )


def _say_ended(running: asyncio.Task[None]) -> None:
    if not running.cancelled() and (error := running.exception()) is not None:
        _log.error("nothing is sealed any more: start Rung again", reason=repr(error))

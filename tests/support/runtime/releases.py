"""Two releases side by side: one that knows level 1 alone, and a next one that marks level 2.

A `Replica` runs the searcher and the scheduler of one release on the partitions that it is given.
`Load` has searches and pools busy all the while; new ones get the installation's level, as a
gateway writes it.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final

from msgspec import structs

from rung.events import Event, Payload, decode, topic
from rung.events.allocation import AllocationDropped
from rung.events.deadletter import FactRejected, MessageRejected
from rung.events.experiment import ExperimentEnded
from rung.events.installation import PoolUpgraded
from rung.events.trial import RunRequested, TrialClosed, TrialRequested
from rung.ledger import Ledger
from rung.runtime import Assignment, ChangingAssignment, FactWriter, Processor, audit, host
from rung.runtime.levels import InstallationLevel
from rung.scheduler.processor import Scheduler
from rung.scheduler.state import State as PoolState
from rung.searcher.processor import Searcher
from rung.searcher.state import State as SearchState
from support.instant_trials import Trials
from support.scheduler.scenario import requested, withdrawn
from support.searcher.scenario import config

SEARCH: Final = config("random", max_trials=4, max_time=4, max_concurrent_trials=2)
POOLS: Final = ("default", "west", "gpu", "cheap", "night")
MARK: Final = " (level 2)"
_SEED: Final = 1 << 40
_TURNS_S: Final = 30.0


class OldSearcher(Searcher):
    """The searcher of the old release."""

    level = 1


class OldScheduler(Scheduler):
    """The scheduler of the old release."""

    level = 1


class NextSearcher(Searcher):
    """The searcher of the next release."""

    level = 2

    def decide(self, state: SearchState, fact: Any) -> list[Payload]:
        """Decide as before, and mark it where the experiment is at the new level."""
        made = super().decide(state, fact)
        return [_marked(data) for data in made] if state.level >= 2 else made


class NextScheduler(Scheduler):
    """The scheduler of the next release."""

    level = 2

    def decide(self, state: PoolState, fact: Any) -> list[Payload]:
        """Decide as before, and mark it where the pool is at the new level."""
        made = super().decide(state, fact)
        return [_marked(data) for data in made] if state.level >= 2 else made


RELEASES: Final[dict[int, tuple[Processor[Any], ...]]] = {
    1: (OldSearcher(), OldScheduler()),
    2: (NextSearcher(), NextScheduler()),
}
"""Newest level that a release knows → its processors."""


def _marked(data: Payload) -> Payload:
    match data:
        case TrialRequested():
            return structs.replace(data, seed=data.seed + _SEED)
        case RunRequested():
            return structs.replace(data, priority=data.priority + 50)
        case TrialClosed() | ExperimentEnded() | AllocationDropped():
            return structs.replace(data, reason=data.reason + MARK)
        case _:
            return data


def level_of_decision(data: Payload) -> int | None:
    """Return the level at which a decision was made, None where none can be told."""
    match data:
        case TrialRequested():
            return 2 if data.seed >= _SEED else 1
        case RunRequested():
            return 2 if data.priority > 50 else 1
        case TrialClosed() | ExperimentEnded() | AllocationDropped():
            return 2 if data.reason.endswith(MARK) else 1
        case _:
            return None


class Replica:
    """One replica of the deciders of a release."""

    def __init__(
        self, ledger: Ledger, level: int, assignments: Mapping[str, Assignment] | None = None
    ) -> None:
        """Start it.

        Args:
            ledger: what it reads and writes.
            level: the newest that it knows.
            assignments: of each processor; `hold` changes them if not given.
        """
        self._assignment = ChangingAssignment()
        given = assignments or dict.fromkeys(("searcher", "scheduler"), self._assignment)
        self._tasks = [
            asyncio.create_task(host(ledger, it, assignment=given[it.name], snapshot_every=25))
            for it in RELEASES[level]
        ]

    async def hold(self, *partitions: int) -> None:
        """Work on these partitions, and on no others."""
        held = frozenset(partitions)
        await self._assignment.change({topic.EXPERIMENTS: held, topic.POOLS: held})

    async def end(self) -> None:
        """Go down in good order."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError), result


class Load:
    """Searches that begin and end, and pools in which requests come and are withdrawn."""

    def __init__(self, ledger: Ledger) -> None:
        self.trials = Trials(ledger)
        self.levels: dict[str, int] = {}
        """Experiment → the level that it was submitted at."""
        self._ledger = ledger
        self._writer = FactWriter(ledger, source="/rung/test", origin="test/load")
        self._installation = InstallationLevel(ledger)
        self._upgraded: set[tuple[str, int]] = set()
        self._number = itertools.count(1)
        self._goes_on = True

    async def run(self) -> None:
        """Submit one after the other until told to stop, then wait until all have ended."""
        answering = asyncio.create_task(self.trials.run())
        try:
            while self._goes_on:
                await self._turn()
            await asyncio.wait_for(self.trials.ended(), _TURNS_S)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    def stop(self) -> None:
        """Submit nothing more; `run` returns when all has ended."""
        self._goes_on = False

    async def submit(self, name: str, level: int) -> None:
        """Submit a search."""
        self.levels[name] = level
        await self.trials.submit(name, SEARCH, level=level)

    async def _turn(self) -> None:
        number, level = next(self._number), await self._installation.read()
        answered = len(self.trials.answered)
        await self.submit(f"search{number:02}", level)
        pool = POOLS[number % len(POOLS)]
        if level > 1 and (pool, level) not in self._upgraded:
            self._upgraded.add((pool, level))
            await self._writer.write(PoolUpgraded(pool=pool, level=level))
        name = f"search{number:02}.0.1"
        for data in (requested(name), withdrawn(name)):
            await self._writer.write(structs.replace(data, pool=pool))
        await self.trials.reached(answered + 3)


async def within(work: Awaitable[None]) -> None:
    """Wait for something, not for ever."""
    await asyncio.wait_for(work, _TURNS_S)


async def assert_clean(ledger: Ledger, level: int, *, complete: bool = False) -> None:
    """Whatever is on record is what a release decides."""
    for processor in RELEASES[level]:
        verdict = await audit(ledger, processor)
        assert verdict.same, (verdict.differences[:3], verdict.unreadable[:3])
        assert verdict.decisions
        assert not (complete and verdict.pending)


async def assert_of_one_level(ledger: Ledger, levels: dict[str, int]) -> None:
    """All decisions of a fact were made at the level that its key had then."""
    seen = set()
    for decisions, facts in ((topic.SEARCHES, topic.EXPERIMENTS), (topic.PLACEMENTS, topic.POOLS)):
        raised = {
            event.key: position
            for position, event in await _events(ledger, facts)
            if isinstance(event.data, PoolUpgraded)
        }
        for _, event in await _events(ledger, decisions):
            level = level_of_decision(event.data)
            if level is None:
                continue
            assert event.causeposition is not None
            beyond = event.causeposition > raised.get(event.key, 1 << 40)
            expected = levels.get(event.key, 2 if beyond else 1)
            assert level == expected, event
            seen.add((decisions, level))
    assert len(seen) == 4, "both levels were decided by searcher and scheduler"


async def letters(ledger: Ledger) -> list[Event]:
    """Return all dead letters, and what processors rejected."""
    names = (topic.DEADLETTER, topic.SEARCHES, topic.PLACEMENTS)
    events = [event for name in names for _, event in await _events(ledger, name)]
    return [it for it in events if isinstance(it.data, MessageRejected | FactRejected)]


async def _events(ledger: Ledger, name: str) -> Iterable[tuple[int, Event]]:
    found = []
    for partition in range(ledger.partitions(name)):
        position = 0
        while records := await ledger.read(name, partition, position, 2_000):
            position = records[-1].position + 1
            found += [(record.position, decode(record.value)) for record in records]
    return found

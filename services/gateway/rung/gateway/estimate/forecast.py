"""Forecast of a resource pool: when each of its searches will have ended.

What is left of the searches is simulated on the pool's slots, run by run. Runs take as long as
those of their search took so far. At a rung, as many trials go on as the method expects; which
ones cannot be known, so several such courses are simulated, and the result is their mean. Slots
are given as the policy `priority` does: by priority, then by arrival. Agents and the placement of
runs on them are not simulated, nor are other policies.

Pure: the same searches in, the same forecast out.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from statistics import fmean
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

COURSES: Final = 8
"""So many are simulated at most."""
RUNS_MAX: Final = 1_000
"""So many runs are simulated in all, more or less; of larger searches several as one."""
_GOLDEN: Final = 0.6180339887498949


class Bracket(Struct):
    """What is left of a bracket.

    Attributes:
        lengths: of its rungs.
        rests: whether runs end at each rung; else they go on there, or end.
        to_come: how many trials it is still to create.
        results: how many trials reached each rung.
        due: how many of these are yet to go on.
        concurrent: so many of its runs at most are open; 0: as many as the search may have.
        open: how many are, in a course.
        going_on: from a rung and the number of a result to how many trials go on because of it.
    """

    lengths: Sequence[float]
    rests: bool
    to_come: float
    results: list[int]
    due: list[float]
    going_on: Callable[[int, int], float]
    concurrent: int = 0
    open: int = 0


class Run(Struct):
    """A run that was requested and is not over, or one that is simulated.

    Attributes:
        bracket: of its trial.
        rung: the one that it trains for.
        seconds: until it reaches that rung, from when it holds its slots.
        unit_s: seconds a unit.
        holds: whether it holds its slots.
        requested: when it was, of those that are open.
        stands_for: so many runs, one after another.
    """

    bracket: int
    rung: int
    seconds: float
    unit_s: float
    holds: bool = False
    requested: float = 0.0
    stands_for: int = 1


class Search(Struct):
    """What is left of a search.

    Attributes:
        priority: the lower the more important.
        slots: of each run.
        concurrent: so many runs at most are open.
        start_s: from the grant of slots to the first unit.
        unit_s: seconds a unit.
        leave_s: from the last unit until the slots are another's.
        stop_s: the same for a run that is stopped at a rung, and trains on until then.
        brackets: all of them.
        runs: the open ones.
    """

    priority: int
    slots: int
    concurrent: int
    start_s: float
    unit_s: float
    leave_s: float
    stop_s: float
    brackets: list[Bracket]
    runs: list[Run] = field(default_factory=list[Run])

    @property
    def expected_runs(self) -> float:
        """About how many runs are left."""
        more = sum(sum(bracket.due) + bracket.to_come for bracket in self.brackets)
        return len(self.runs) + more


def forecast(searches: Mapping[str, Search], slots: int) -> dict[str, float]:
    """Return the seconds until each search has ended, by id; those that never will are left out.

    Args:
        searches: all that are active in the pool, in the order of submission.
        slots: of the pool.
    """
    able = {name: each for name, each in searches.items() if 0 < each.slots <= slots}
    if not able:
        return {}
    runs = sum(each.expected_runs for each in able.values())
    courses = max(min(COURSES, int(RUNS_MAX / max(runs, 1))), 1)
    grain = max(int(runs / RUNS_MAX), 1)
    found = [
        _Course(able, slots, (number + 0.5) / courses, grain).ends() for number in range(courses)
    ]
    return {name: fmean(ends[name] for ends in found) for name in able}


class _Open(Struct):
    """A run in a course: `until` is when it reaches its rung, or leaves."""

    search: str
    run: Run
    until: float = 0.0
    leaves: bool = False
    gone: bool = False


class _Course:
    """One way in which the searches may go on."""

    def __init__(
        self, searches: Mapping[str, Search], slots: int, phase: float, grain: int
    ) -> None:
        self._searches = {name: _copy(each, phase) for name, each in searches.items()}
        self._free = slots
        self._grain = grain
        self._now = 0.0
        self._order = count()
        self._events: list[tuple[float, int, _Open]] = []
        self._queue: list[tuple[int, int, _Open]] = []
        self._holding: dict[int, _Open] = {}
        self._open = dict.fromkeys(searches, 0)
        self._ends: dict[str, float] = {}

    def ends(self) -> dict[str, float]:
        """Return when each search ends."""
        begun = [_Open(name, run) for name, each in self._searches.items() for run in each.runs]
        for opened in sorted(begun, key=lambda each: each.run.requested):
            self._count(opened, 1)
            if opened.run.holds:
                self._hold(opened, opened.run.seconds)
            else:
                self._wait(opened)
        for name in self._searches:
            self._fill(name)
            if not self._open[name]:
                self._ends[name] = 0.0
        self._grant()
        while self._events:
            self._now, _, opened = heappop(self._events)
            if opened.gone:
                continue
            if opened.leaves:
                self._leave(opened)
            else:
                self._reach(opened)
        return self._ends

    def _wait(self, opened: _Open) -> None:
        priority = self._searches[opened.search].priority
        heappush(self._queue, (priority, next(self._order), opened))

    def _hold(self, opened: _Open, seconds: float) -> None:
        search = self._searches[opened.search]
        self._free -= search.slots
        self._holding[id(opened)] = opened
        self._after(opened, seconds)

    def _after(self, opened: _Open, seconds: float) -> None:
        opened.until = self._now + seconds
        heappush(self._events, (opened.until, next(self._order), opened))

    def _grant(self) -> None:
        while self._queue:
            _, _, opened = self._queue[0]
            needed = self._searches[opened.search].slots
            if needed > self._free and not self._make_room(opened, needed):
                return
            heappop(self._queue)
            self._hold(opened, opened.run.seconds)

    def _make_room(self, head: _Open, needed: int) -> bool:
        """Let runs of less importance wait; return whether there is room then."""
        priority = self._searches[head.search].priority
        lesser = [
            each
            for each in self._holding.values()
            if self._searches[each.search].priority > priority and not each.leaves
        ]
        there = self._free + sum(self._searches[each.search].slots for each in lesser)
        if there < needed:
            return False
        lesser.sort(key=lambda each: self._searches[each.search].priority)
        while self._free < needed:
            opened = lesser.pop()
            search = self._searches[opened.search]
            opened.gone = True
            del self._holding[id(opened)]
            self._free += search.slots
            left = max(opened.until - self._now, 0.0) + search.start_s
            self._wait(_Open(opened.search, replace(opened.run, seconds=left)))
        return True

    def _reach(self, opened: _Open) -> None:
        """Let a run reach its rung."""
        run, search = opened.run, self._searches[opened.search]
        bracket, rung = search.brackets[run.bracket], run.rung
        leave_s = search.leave_s
        if rung < len(bracket.lengths) - 1:
            first = bracket.results[rung] + 1
            bracket.results[rung] += run.stands_for
            numbers = range(first, first + run.stands_for)
            bracket.due[rung] += sum(bracket.going_on(rung, each) for each in numbers)
            if not bracket.rests and bracket.due[rung] >= run.stands_for:
                bracket.due[rung] -= run.stands_for
                units = bracket.lengths[rung + 1] - bracket.lengths[rung]
                run.rung += 1
                self._after(opened, units * run.unit_s * run.stands_for)
                return
            if not bracket.rests:
                leave_s = search.stop_s
        else:
            bracket.results[rung] += run.stands_for
        opened.leaves = True
        self._after(opened, leave_s * run.stands_for)

    def _leave(self, opened: _Open) -> None:
        """Let a run end."""
        name = opened.search
        del self._holding[id(opened)]
        self._free += self._searches[name].slots
        self._count(opened, -1)
        self._fill(name)
        self._grant()
        if not self._open[name]:
            self._ends[name] = self._now

    def _fill(self, name: str) -> None:
        """Request what a search trains next: trials that go on, then new ones."""
        search = self._searches[name]
        for number, bracket in enumerate(search.brackets):
            for rung in reversed(range(len(bracket.due) if bracket.rests else 0)):
                while bracket.due[rung] >= 1 and self._may_open(name, bracket):
                    stand = self._stand_for(bracket.due[rung])
                    bracket.due[rung] -= stand
                    self._request(name, search, number, rung + 1, stand)
        for number, bracket in enumerate(search.brackets):
            while bracket.to_come >= 1 and self._may_open(name, bracket):
                stand = self._stand_for(bracket.to_come)
                bracket.to_come -= stand
                self._request(name, search, number, 0, stand)
        if not self._open[name]:
            self._last(name, search)

    def _may_open(self, name: str, bracket: Bracket) -> bool:
        within = not bracket.concurrent or bracket.open < bracket.concurrent
        return within and self._open[name] < self._searches[name].concurrent

    def _count(self, opened: _Open, more: int) -> None:
        self._open[opened.search] += more
        self._searches[opened.search].brackets[opened.run.bracket].open += more

    def _stand_for(self, wanted: float) -> int:
        return max(min(self._grain, int(wanted)), 1)

    def _last(self, name: str, search: Search) -> None:
        """Have one trial go on where none reached the last rung, as promotion does."""
        for number, bracket in enumerate(search.brackets):
            if bracket.rests and any(bracket.results) and not bracket.results[-1]:
                highest = max(k for k, results in enumerate(bracket.results) if results)
                self._request(name, search, number, highest + 1, 1)

    def _request(self, name: str, search: Search, bracket: int, rung: int, stand: int) -> None:
        lengths = search.brackets[bracket].lengths
        units = lengths[rung] - (lengths[rung - 1] if rung else 0)
        seconds = (search.start_s + units * search.unit_s) * stand
        opened = _Open(name, Run(bracket, rung, seconds, search.unit_s, stands_for=stand))
        self._count(opened, 1)
        self._wait(opened)


def _copy(search: Search, phase: float) -> Search:
    """Return a search of its own for a course.

    Where runs go on at rungs, the phase decides which ones do.
    """
    brackets = [
        replace(
            bracket,
            results=list(bracket.results),
            due=list(bracket.due)
            if bracket.rests
            else [(phase + _GOLDEN * rung) % 1.0 for rung in range(len(bracket.due))],
        )
        for bracket in search.brackets
    ]
    return replace(search, brackets=brackets, runs=[replace(run) for run in search.runs])

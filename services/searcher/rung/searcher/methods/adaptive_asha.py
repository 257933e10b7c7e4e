"""The method `adaptive_asha`: several brackets of ASHA side by side, as in Determined.

How soon to give trials up is itself a bet; a tournament of brackets hedges it. The idea is
Hyperband's (Li et al., JMLR 2018), run asynchronously (Li et al., MLSys 2020, section 3.3); the
numbers are Determined's:

* rungs at most: the least of max_rungs, floor(log_d max_time) + 1 and floor(log_d max_trials) + 1;
* brackets: `aggressive` has one, with all rungs; `standard` has those with (rungs-1) div 2 + 1 to
  all rungs; `conservative` those with 1 to all; `bracket_rungs` overrides them. Most rungs first;
* trials of a bracket with k rungs: the share d**(k-1) / k of max_trials, rounded down, at least
  one; what is left goes to the first;
* concurrency: split evenly, what is left one each from the first on, at least one each. (The
  machine holds the sum below `max_concurrent_trials` even where there are more brackets.)

Determined's logarithms are floating-point, so that it finds log_3 243 a little below 5 and one
rung less than there are; here they are exact. Brackets that would take the search above
max_trials are left out.
"""

from fractions import Fraction
from typing import assert_never

from msgspec import Struct

from rung.config.rungs import DIVISOR, adaptive_rungs
from rung.events.experiment import BracketPlan
from rung.searcher.methods.actions import Leaving, Move, Stop
from rung.searcher.methods.asha import Asha, plan_bracket
from rung.searcher.search_settings import Mode, Search
from rung.searcher.trial import Trial


class AdaptiveAsha(Struct, tag="adaptive_asha"):
    """A tournament of brackets; each knows its own trials."""

    members: list[Asha]

    def brackets(self) -> list[BracketPlan]:
        """Return all brackets."""
        return [plan for member in self.members for plan in member.brackets()]

    def opened(self, trial: Trial) -> None:
        """Tell the trial's bracket."""
        self.members[trial.bracket].opened(trial)

    def promoted(self, trial: Trial) -> None:
        """Tell the trial's bracket."""
        self.members[trial.bracket].promoted(trial)

    def stopped(self, trial: Trial) -> None:
        """Tell the trial's bracket."""
        self.members[trial.bracket].stopped(trial)

    def reported(self, trial: Trial, first: int) -> None:
        """Tell the trial's bracket."""
        self.members[trial.bracket].reported(trial, first)

    def trained(self, trial: Trial) -> None:
        """Tell the trial's bracket."""
        self.members[trial.bracket].trained(trial)

    def left(self, trial: Trial, why: Leaving) -> None:
        """Tell the trial's bracket."""
        self.members[trial.bracket].left(trial, why)

    def stops(self) -> list[Stop]:
        """Return what the brackets give up."""
        return [stop for member in self.members for stop in member.stops()]

    def moves(self, free: int) -> list[Move]:
        """Return what the brackets want, the first bracket's wishes first."""
        moves: list[Move] = []
        for member in self.members:
            moves += member.moves(free - len(moves))
        return moves


def plan_adaptive_asha(search: Search) -> AdaptiveAsha:
    """Return the method as configured."""
    max_trials, divisor = search.need("max_trials"), search.divisor or DIVISOR
    rungs = bracket_rungs(search)
    trials = bracket_trials(rungs, divisor, max_trials)
    concurrent = bracket_concurrency(len(trials), search.concurrent)
    chosen = enumerate(zip(rungs, trials, concurrent, strict=False))
    return AdaptiveAsha([plan_bracket(search, i, k, n, slots) for i, (k, n, slots) in chosen])


def bracket_rungs(search: Search) -> list[int]:
    """Return how many rungs each bracket has, most first."""
    if search.bracket_rungs:
        return sorted(search.bracket_rungs, reverse=True)
    max_time, max_trials = search.need("max_time"), search.need("max_trials")
    most = adaptive_rungs(max_time, max_trials, search.divisor or DIVISOR, search.max_rungs)
    return list(range(most, _fewest(search.mode or "standard", most) - 1, -1))


def _fewest(mode: Mode, most: int) -> int:
    match mode:
        case "aggressive":
            return most
        case "standard":
            return (most - 1) // 2 + 1
        case "conservative":
            return 1
        case _:
            assert_never(mode)


def bracket_trials(rungs: list[int], divisor: float, max_trials: int) -> list[int]:
    """Return how many trials each bracket starts; there may be fewer brackets than asked for."""
    weights = [Fraction(divisor) ** (k - 1) / k for k in rungs]
    total = sum(weights)
    trials = [max(int(weight * max_trials / total), 1) for weight in weights][:max_trials]
    while sum(trials) > max_trials:
        trials.pop()
    trials[0] += max_trials - sum(trials)
    return trials


def bracket_concurrency(brackets: int, concurrent: int) -> list[int]:
    """Return how many trials each bracket may train at once, 0: all."""
    if not concurrent:
        return [0] * brackets
    share, rest = divmod(max(concurrent, brackets), brackets)
    return [share + (i < rest) for i in range(brackets)]

"""The method `hyperband`: brackets of synchronous successive halving.

Li, Jamieson, DeSalvo, Rostamizadeh and Talwalkar, "Hyperband: A Novel Bandit-Based Approach to
Hyperparameter Optimization", JMLR 18 (2018), algorithm 1, with R = max_time and eta = divisor:
s_max = floor(log_eta R) and B = (s_max + 1) R; bracket s = s_max … 0 starts
n = ceil(B/R * eta**s / (s+1)) trials at R / eta**s each, and keeps the best floor(n_i / eta) of
every rung for eta times the length. (The paper's table 1, for R = 81, prints n = 27, 9, 6 for
s = 3, 2, 1 where its formula yields 34, 15, 8; the formula holds here.) Lengths are rounded down.

What it decides depends on the results alone, never on the order in which they arrive: a rung is
judged when the last of its results is in, ties are broken by the trial's index, and trials are
numbered bracket by bracket. Brackets overlap in time as far as there is room; promotions go
before new trials.

A trial that fails for good counts as the worst of the rung that it was due for; one that ends by
itself counts with its last value. Where such a trial is among the best, it keeps its place with
that value in the next rung, without training: so no rung is ever short of a result.
Hyperparameters that a script refuses are not replaced.
"""

import math
from fractions import Fraction
from itertools import islice
from typing import Final

from msgspec import Struct, field

from rung.config.rungs import rung_lengths, rungs_within
from rung.events.experiment import BracketPlan
from rung.searcher.methods.actions import Leaving, Move, Open, Promote, Stop
from rung.searcher.methods.rungs import Rung
from rung.searcher.search_settings import Search
from rung.searcher.trial import WORST, Trial

_RUNGS_MAX: Final = 1_000
"""Far more than a search that the experiment file may ask for has."""


class Bracket(Struct):
    """One bracket.

    Attributes:
        lengths: of its rungs, shortest first.
        sizes: how many trials each rung compares.
        rungs: the results.
        started: how many trials were created.
        gone: trials that left and keep their cost in every later rung.
        ready: promotions that wait for room.
        judged: trials to be given up.
    """

    lengths: list[int]
    sizes: list[int]
    rungs: list[Rung]
    started: int = 0
    gone: list[int] = field(default_factory=list[int])
    ready: dict[int, Promote] = field(default_factory=dict[int, Promote])
    judged: dict[int, Stop] = field(default_factory=dict[int, Stop])

    def enter(self, rung: int, cost: float, index: int) -> None:
        """Add a result; once the rung is complete, judge it."""
        self.rungs[rung].add(cost, index)
        complete = len(self.rungs[rung].entries) == self.sizes[rung]
        if complete and rung < len(self.rungs) - 1:
            self._judge(rung)

    def _judge(self, rung: int) -> None:
        length, keep = self.lengths[rung], self.sizes[rung + 1]
        gone = frozenset(self.gone)
        carried: list[tuple[float, int]] = []
        for place, (cost, index) in enumerate(self.rungs[rung].entries):
            reason = self.rungs[rung].evidence(place, length, keep)
            if index in gone:
                carried += [(cost, index)] if place < keep else []
            elif place < keep:
                self.ready[index] = Promote(index, rung + 1, self.lengths[rung + 1], reason)
            else:
                self.judged[index] = Stop(index, rung, reason)
        for cost, index in carried:
            self.enter(rung + 1, cost, index)


class Hyperband(Struct, tag="hyperband"):
    """All brackets, the one with the most trials first."""

    members: list[Bracket]

    def brackets(self) -> list[BracketPlan]:
        """Return all brackets."""
        return [
            BracketPlan(bracket=i, lengths=member.lengths, trials=member.sizes[0])
            for i, member in enumerate(self.members)
        ]

    def opened(self, trial: Trial) -> None:
        """Count a trial."""
        self.members[trial.bracket].started += 1

    def promoted(self, trial: Trial) -> None:
        """Forget a promotion that was carried out."""
        self.members[trial.bracket].ready.pop(trial.index, None)

    def stopped(self, trial: Trial) -> None:
        """Forget a judgement that was carried out."""
        self.members[trial.bracket].judged.pop(trial.index, None)

    def reported(self, trial: Trial, first: int) -> None:
        """Change nothing: a result counts when its run is over."""

    def trained(self, trial: Trial) -> None:
        """Enter the trial's result in its rung."""
        cost = trial.results[trial.rung]
        self.members[trial.bracket].enter(trial.rung, cost, trial.index)

    def left(self, trial: Trial, why: Leaving) -> None:
        """Enter the last value, or the worst, in the rung that the trial was due for."""
        if why == "stopped":
            return
        member = self.members[trial.bracket]
        member.gone.append(trial.index)
        member.enter(trial.rung, trial.cost if why == "ended" else WORST, trial.index)

    def stops(self) -> list[Stop]:
        """Return the trials that a complete rung leaves behind."""
        return [stop for member in self.members for stop in member.judged.values()]

    def moves(self, free: int) -> list[Move]:
        """Return promotions, then new trials, both in the order of the brackets."""
        moves: list[Move] = []
        for member in self.members:
            moves += islice(member.ready.values(), max(free - len(moves), 0))
        for i, member in enumerate(self.members):
            wanted = max(min(member.sizes[0] - member.started, free - len(moves)), 0)
            moves += [Open(i, member.lengths[0])] * wanted
        return moves


def plan_hyperband(search: Search) -> Hyperband:
    """Return the method as configured."""
    max_time, eta = search.need("max_time"), search.divisor or 3.0
    most = rungs_within(max_time, eta, _RUNGS_MAX)
    return Hyperband([_plan_bracket(most, rungs, eta, max_time) for rungs in range(most, 0, -1)])


def _plan_bracket(most: int, rungs: int, eta: float, max_time: int) -> Bracket:
    sizes = [math.ceil(most * Fraction(eta) ** (rungs - 1) / rungs)]
    for _ in range(rungs - 1):
        sizes.append(max(int(sizes[-1] / Fraction(eta)), 1))
    lengths = rung_lengths(rungs, eta, max_time)
    return Bracket(lengths=lengths, sizes=sizes, rungs=[Rung() for _ in sizes])

"""The method `hyperband`: brackets of synchronous successive halving.

Li, Jamieson, DeSalvo, Rostamizadeh and Talwalkar, "Hyperband: A Novel Bandit-Based Approach to
Hyperparameter Optimization", JMLR 18 (2018), algorithm 1, with R = max_time and eta = divisor:
s_max = floor(log_eta R) and B = (s_max + 1) R; bracket s = s_max … 0 starts
n = ceil(B/R * eta**s / (s+1)) trials at R / eta**s each, and keeps the best floor(n_i / eta) of
every rung for eta times the length. (The paper's table 1, for R = 81, prints n = 27, 9, 6 for
s = 3, 2, 1 where its formula yields 34, 15, 8; the formula holds here.) Lengths are rounded down.

Its decisions depend on the results alone, not on the order in which they arrive: a rung is judged
when it has all of its results, ties are broken by the trial's index, and trials are numbered
bracket by bracket. Brackets overlap in time as far as there are slots; promotions precede new
trials.

A trial that fails for good counts as the worst of the rung that it was due for; one that ends by
itself counts with its last value. Where such a trial is among the best, it keeps its place with
that value in the next rung, without training, so that no rung lacks a result. A trial that its
user killed counts as failed; one that waited for the rest of its rung, as ended by itself. Trials
whose hyperparameters are refused are not replaced.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain, islice
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct, field

from rung.events.experiment import BracketPlan
from rung.methods.method import (
    TRIALS_MAX,
    WORST,
    Chance,
    Continue,
    Create,
    Divisor,
    Examples,
    Leaving,
    ManyTrials,
    Method,
    Move,
    Stop,
    Trial,
)
from rung.methods.rungs import RUNGS_MAX, Rung, rung_lengths, rungs_within
from rung.methods.space import Leaf

_RUNGS_MAX: Final = 1_000
"""Far more than a search that the experiment file may ask for has."""


class Bracket(Struct):
    """One bracket.

    Attributes:
        lengths: of its rungs, shortest first.
        sizes: how many trials each rung compares.
        rungs: the results.
        started: how many trials were created.
        gone: trials that ended early and keep their cost in every later rung.
        ready: promotions that wait for slots.
        judged: trials to be stopped.
    """

    lengths: list[int]
    sizes: list[int]
    rungs: list[Rung]
    started: int = 0
    gone: list[int] = field(default_factory=list[int])
    ready: dict[int, Continue] = field(default_factory=dict[int, Continue])
    judged: dict[int, Stop] = field(default_factory=dict[int, Stop])

    def enter(self, rung: int, cost: float, index: int) -> None:
        """Add a result; once the rung is complete, judge it."""
        self.rungs[rung].add(cost, index)
        complete = self.rungs[rung].count == self.sizes[rung]
        if complete and rung < len(self.rungs) - 1:
            self._judge(rung)

    def _judge(self, rung: int) -> None:
        length, keep = self.lengths[rung], self.sizes[rung + 1]
        gone = frozenset(self.gone)
        carried: list[tuple[float, int]] = []
        for place, (cost, index) in enumerate(self.rungs[rung]):
            reason = self.rungs[rung].evidence(place, length, keep)
            if index in gone:
                carried += [(cost, index)] if place < keep else []
            elif place < keep:
                self.ready[index] = Continue(index, rung + 1, self.lengths[rung + 1], reason)
            else:
                self.judged[index] = Stop(index, rung, reason)
        for cost, index in carried:
            self.enter(rung + 1, cost, index)


class Hyperband(Method, tag="hyperband"):
    """All brackets, the one with the most trials first."""

    members: list[Bracket]

    def brackets(self) -> list[BracketPlan]:
        """Return all brackets."""
        return [
            BracketPlan(bracket=i, lengths=member.lengths, trials=member.sizes[0])
            for i, member in enumerate(self.members)
        ]

    def created(self, trial: Trial) -> None:
        """Count a trial."""
        self.members[trial.bracket].started += 1

    def continued(self, trial: Trial) -> None:
        """Forget a promotion that was carried out."""
        self.members[trial.bracket].ready.pop(trial.index, None)

    def stopped(self, trial: Trial) -> None:
        """Forget a judgement that was carried out."""
        self.members[trial.bracket].judged.pop(trial.index, None)

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

    def killed(self, trial: Trial, *, resting: bool) -> None:
        """Enter the worst value in the rung that the trial trained, or was ready, for.

        The value that it has in an incomplete rung is kept.
        """
        member = self.members[trial.bracket]
        if resting and trial.index not in member.ready:
            member.gone.append(trial.index)
        else:
            self.continued(trial)
            self.left(trial, "errored")

    def stops(self) -> Iterator[Stop]:
        """Yield the trials that a complete rung leaves behind."""
        return chain.from_iterable(member.judged.values() for member in self.members)

    def moves(self, chance: Chance, free: int) -> Iterator[Move]:  # noqa: ARG002 - the searcher draws
        """Yield promotions, then new trials, both in the order of the brackets."""
        return islice(self._wanted(), free)

    def _wanted(self) -> Iterator[Move]:
        for member in self.members:
            yield from member.ready.values()
        for i, member in enumerate(self.members):
            for _ in range(member.sizes[0] - member.started):
                yield Create(None, member.lengths[0], i)


class Options(ManyTrials, tag="hyperband", kw_only=True):
    """Hyperband as published: Li et al., JMLR 2018, algorithm 1, with R = max_time."""

    NEEDS_TIME = True
    ORDER_FREE = True
    STATES = (Hyperband,)
    EXAMPLES: ClassVar[Examples] = {
        "hyperband": {"max_time": 9, "divisor": 3, "max_concurrent_trials": 5}
    }

    divisor: Annotated[
        Divisor,
        Meta(
            description="The paper's eta: one trial in this many goes on from each rung to the"
            " next."
        ),
    ] = 3.0

    def plan(self, space: Sequence[Leaf]) -> Method:  # noqa: ARG002 - any space can be drawn from
        """Return all brackets."""
        eta, time = self.divisor, self.time()
        most = rungs_within(time, eta, _RUNGS_MAX)
        return Hyperband([_plan_bracket(most, rungs, eta, time) for rungs in range(most, 0, -1)])

    def trials(self, points: int) -> int:  # noqa: ARG002 - drawn, not enumerated
        """Return the trials of all brackets."""
        return trials_of(self.max_time or 1, self.divisor, limit=TRIALS_MAX) or 0

    def going_on(self, plan: BracketPlan, rung: int, result: int) -> float:
        """Return the size of the next rung for the last result of a rung, 0 for any other."""
        sizes = _sizes(plan.trials, len(plan.lengths), self.divisor)
        return sizes[rung + 1] if result == sizes[rung] else 0

    def problem(self) -> str | None:
        """Return what makes the search absurdly large, if it is."""
        if not self.max_time:
            return None
        if rungs_within(self.max_time, self.divisor, RUNGS_MAX + 1) > RUNGS_MAX:
            return (
                f"max_time and divisor together make more than {RUNGS_MAX} rungs; raise divisor"
                " (the paper has 3 or 4)"
            )
        if trials_of(self.max_time, self.divisor, limit=TRIALS_MAX) is None:
            return (
                f"max_time and divisor together start more than {TRIALS_MAX:,} trials; count in a"
                " larger time_metric (epochs instead of batches) or raise divisor"
            )
        return None


def _plan_bracket(most: int, rungs: int, eta: float, max_time: int) -> Bracket:
    sizes = _sizes(math.ceil(most * Fraction(eta) ** (rungs - 1) / rungs), rungs, eta)
    lengths = rung_lengths(rungs, eta, max_time)
    return Bracket(lengths=lengths, sizes=sizes, rungs=[Rung() for _ in sizes])


def _sizes(trials: int, rungs: int, eta: float) -> list[int]:
    """Return how many trials each rung of a bracket compares."""
    sizes = [trials]
    for _ in range(rungs - 1):
        sizes.append(max(int(sizes[-1] / Fraction(eta)), 1))
    return sizes


def trials_of(max_time: int, divisor: float, *, limit: int) -> int | None:
    """Return about how many trials all brackets start, None if it is above the limit."""
    brackets = 1
    reach = divisor
    while reach <= max_time:
        brackets += 1
        reach *= divisor
        if brackets > limit or reach / divisor > limit:
            return None
    total = 0
    for rounds in range(brackets):
        total += math.ceil(brackets * divisor**rounds / (rounds + 1))
        if total > limit:
            return None
    return total

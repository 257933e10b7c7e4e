"""The method `adaptive_asha`: several brackets of ASHA side by side, as in Determined.

How early to stop trials is unknown beforehand; a tournament of brackets tries several answers. The
idea is Hyperband's (Li et al., JMLR 2018), run asynchronously (Li et al., MLSys 2020, section
3.3); the numbers are Determined's:

* rungs at most: the least of max_rungs, floor(log_d max_time) + 1 and floor(log_d max_trials) + 1;
* brackets: `aggressive` has one, with all rungs; `standard` has those with (rungs-1) div 2 + 1 to
  all rungs; `conservative` those with 1 to all; `bracket_rungs` overrides them. Most rungs first;
* trials of a bracket with k rungs: the share d**(k-1) / k of max_trials, rounded down, at least
  one; what is left goes to the first;
* concurrency: split evenly, what is left one each from the first on, at least one each. (The
  searcher keeps the sum below `max_concurrent_trials` even where there are more brackets.) Where
  the file gives 0, each bracket gets as many as the last one has trials, and at least `divisor`.

Determined's logarithms are floating-point, so that it finds log_3 243 a little below 5 and one
rung less than there are; here they are exact. Brackets that would take the search above
max_trials are left out.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import Annotated, ClassVar, Final, Literal, assert_never

from msgspec import Meta, field

from rung.events.experiment import BracketPlan
from rung.methods.asha import Asha, AshaOptions
from rung.methods.method import Chance, Examples, Leaving, Method, Move, Stop, Trial
from rung.methods.rungs import RUNGS_MAX, rungs_within
from rung.methods.space import Leaf

Mode = Literal["aggressive", "standard", "conservative"]

RUNGS: Final = 5


class AdaptiveAsha(Method, tag="adaptive_asha"):
    """A tournament of brackets, each with its own trials."""

    members: list[Asha]

    def brackets(self) -> list[BracketPlan]:
        """Return all brackets."""
        return [plan for member in self.members for plan in member.brackets()]

    def created(self, trial: Trial) -> None:
        """Fold into the trial's bracket."""
        self.members[trial.bracket].created(trial)

    def continued(self, trial: Trial) -> None:
        """Fold into the trial's bracket."""
        self.members[trial.bracket].continued(trial)

    def stopped(self, trial: Trial) -> None:
        """Fold into the trial's bracket."""
        self.members[trial.bracket].stopped(trial)

    def reported(self, trial: Trial, first: int) -> None:
        """Fold into the trial's bracket."""
        self.members[trial.bracket].reported(trial, first)

    def trained(self, trial: Trial) -> None:
        """Fold into the trial's bracket."""
        self.members[trial.bracket].trained(trial)

    def left(self, trial: Trial, why: Leaving) -> None:
        """Fold into the trial's bracket."""
        self.members[trial.bracket].left(trial, why)

    def killed(self, trial: Trial, *, resting: bool) -> None:
        """Fold into the trial's bracket."""
        self.members[trial.bracket].killed(trial, resting=resting)

    def extend(self, trials: int | None, max_time: int | None) -> None:
        """Share the further trials out among the brackets, as the first ones were."""
        first = self.members[0]
        more = (trials or 0) - sum(member.trials for member in self.members)
        if more <= 0:
            return
        rungs = [len(member.lengths) for member in self.members]
        shares = bracket_trials(rungs, first.divisor, more)
        for member, share in zip(self.members, shares, strict=False):
            member.extend(member.trials + share, max_time)

    def stops(self) -> Iterator[Stop]:
        """Yield the trials that the brackets stop."""
        return chain.from_iterable(member.stops() for member in self.members)

    def moves(self, chance: Chance, free: int) -> Iterator[Move]:
        """Yield the brackets' moves, the first bracket's first."""
        for member in self.members:
            for move in member.moves(chance, free):
                yield move
                free -= 1
            if free <= 0:
                return


_BracketRungs = Annotated[int, Meta(ge=1, le=RUNGS_MAX)]


class Options(AshaOptions, tag="adaptive_asha", kw_only=True):
    """ASHA with several brackets, which start at rungs of different lengths."""

    MAX_LENGTH = "any"
    STATES = (AdaptiveAsha,)
    EXAMPLES: ClassVar[Examples] = {
        "adaptive_asha": {
            "mode": "standard",
            "divisor": 3,
            "max_rungs": 3,
            "bracket_rungs": [],
            "max_trials": 12,
            "max_time": 9,
            "max_concurrent_trials": 4,
        }
    }

    mode: Annotated[
        Mode,
        Meta(
            description="How eagerly trials are stopped: aggressive uses one bracket, standard"
            " about half of the possible ones, conservative all."
        ),
    ] = "standard"
    max_rungs: Annotated[
        int,
        Meta(ge=1, le=RUNGS_MAX, description="How many rungs the largest bracket has at most."),
    ] = RUNGS
    bracket_rungs: Annotated[
        list[_BracketRungs],
        Meta(
            max_length=RUNGS_MAX, description="Rungs of each bracket, in place of mode's choice."
        ),
    ] = field(default_factory=list[int])

    def plan(self, space: Sequence[Leaf]) -> Method:  # noqa: ARG002 - any space can be drawn from
        """Return the brackets."""
        rungs = self.all_rungs()
        trials = bracket_trials(rungs, self.divisor, self.max_trials)
        concurrent = self.concurrent_in(len(trials))
        chosen = enumerate(zip(rungs, trials, concurrent, strict=False))
        return AdaptiveAsha([self.bracket(i, k, n, slots) for i, (k, n, slots) in chosen])

    def concurrent_unless_given(self) -> int:
        """Return the trials of the last bracket, at least `divisor`, for each bracket."""
        trials = bracket_trials(self.all_rungs(), self.divisor, self.max_trials)
        return max(trials[-1], int(self.divisor)) * len(trials)

    def concurrent_in(self, brackets: int) -> list[int]:
        """Return the even shares of `max_concurrent_trials`."""
        return bracket_concurrency(brackets, self.concurrent)

    def all_rungs(self) -> list[int]:
        """Return how many rungs each bracket has, most first."""
        if self.bracket_rungs:
            return sorted(self.bracket_rungs, reverse=True)
        most = self.most_rungs()
        return list(range(most, _fewest(self.mode, most) - 1, -1))

    def most_rungs(self) -> int:
        """Return how many rungs the largest bracket has."""
        if self.bracket_rungs:
            return max(self.bracket_rungs)
        within = rungs_within(self.time(), self.divisor, self.max_rungs)
        return rungs_within(self.max_trials, self.divisor, within)


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

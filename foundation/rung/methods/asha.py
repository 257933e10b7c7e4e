"""The method `async_halving` (ASHA): keep the better part of the trials at every rung.

Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht and Talwalkar, "A System for Massively
Parallel Hyperparameter Tuning", MLSys 2020. Rung k of K lies at max_time / divisor**(K-1-k).

* `PromotionAsha` is algorithm 2. A trial trains to its rung and rests. When a place is free, the
  highest rung with a resting trial among its best floor(n / divisor) promotes it; otherwise a
  new trial starts in the bottom rung. The paper's search has no end; here it ends after `trials`
  trials, and at least one is to reach the top: when nothing else is left to do and no result lies
  above the highest rung in use, its best trial is promoted all the same. Trials that still rest at
  the end are stopped.
* `StoppingAsha` is the variant of Determined and of the paper's section on stopping: every trial
  trains towards max_time, and is stopped at a rung unless it is among the best
  max(floor(n / divisor), 1) of the results there so far. One report may reach several rungs; they
  are judged from the lowest, up to the first that stops the trial. Each end starts a new trial. A
  stopped trial is never continued.

Both compare in the order of arrival, so that no trial waits for another. What they decide depends
on that order; `hyperband` does not depend on it.

A trial that fails for good counts as the worst in the rung it was due for; one that ends by
itself counts there with its last value. A trial whose hyperparameters are refused counts
nowhere and is replaced, up to `trials` times in a bracket; after that it counts as failed. A trial
that its user killed keeps its place in the rungs that it reached, counts in no further one, and is
not replaced.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain, islice
from typing import Annotated, ClassVar, Final

from msgspec import Meta, field

from rung.events.experiment import BracketPlan
from rung.methods.method import (
    CONCURRENT_DEFAULT,
    WORST,
    Chance,
    Concurrent,
    Continue,
    Create,
    Divisor,
    Examples,
    Leaving,
    ManyTrials,
    MaxTrials,
    Method,
    Move,
    Stop,
    Trial,
)
from rung.methods.rungs import RUNGS_MAX, Entry, Rung, rung_lengths
from rung.methods.space import Leaf

DIVISOR: Final = 4.0


class _Asha(Method):
    """One bracket.

    Attributes:
        bracket: its number.
        lengths: of its rungs, shortest first.
        divisor: one in so many continues.
        trials: how many to start, replacements not counted.
        concurrent: how many may train at once; 0: all.
        rungs: the results.
        started: how many trials were created.
        replaced: how many of them are replacements.
        training: how many train or are about to.
    """

    bracket: int
    lengths: list[int]
    divisor: float
    trials: int
    concurrent: int
    rungs: list[Rung]
    started: int = 0
    replaced: int = 0
    training: int = 0

    def brackets(self) -> list[BracketPlan]:
        """Return this bracket."""
        return [BracketPlan(bracket=self.bracket, lengths=self.lengths, trials=self.trials)]

    def created(self, trial: Trial) -> None:  # noqa: ARG002 - all new trials are alike
        """Count a trial."""
        self.started += 1
        self.training += 1

    def extend(self, trials: int | None, max_time: int | None) -> None:  # noqa: ARG002 - the rungs stay
        """Start more trials."""
        self.trials = trials or self.trials

    def _free(self, free: int) -> int:
        return min(free, self.concurrent - self.training) if self.concurrent else free

    def _creates(self, length: int, free: int) -> Iterator[Create]:
        wanted = min(free, self.trials + self.replaced - self.started)
        return (Create(None, length, self.bracket) for _ in range(wanted))

    def _leave(self, trial: Trial, why: Leaving, due: int) -> None:
        """Fold that a trial left on its way to the rung `due`."""
        self.training -= 1
        if why == "stopped":
            return
        if why == "invalid_hp":
            for rung, cost in zip(self.rungs, trial.results, strict=False):
                rung.remove((cost, trial.index))
            if self.replaced < self.trials:
                self.replaced += 1
                return
            due = 0
        if due < len(self.rungs):
            self.rungs[due].add(trial.cost if why == "ended" else WORST, trial.index)


class StoppingAsha(_Asha, tag="asha_stopping"):
    """Every trial trains towards the full length; the worse are stopped on the way."""

    judged: dict[int, Stop] = field(default_factory=dict[int, Stop])
    """To be stopped."""

    def stopped(self, trial: Trial) -> None:
        """Forget a judgement that was carried out."""
        self.judged.pop(trial.index, None)

    def reported(self, trial: Trial, first: int) -> None:
        """Place the trial in the rungs that it reached, and judge it by its place."""
        for k in range(first, len(trial.results)):
            rung = self.rungs[k]
            place = rung.add(trial.results[k], trial.index)
            keep = int(rung.count // self.divisor) or 1
            if place >= keep and k < len(self.rungs) - 1:
                reason = rung.evidence(place, self.lengths[k], keep)
                self.judged[trial.index] = Stop(trial.index, k, reason)
                return

    def trained(self, trial: Trial) -> None:
        """Fold that a trial reached the full length; its results are in the rungs."""
        self.training -= 1
        self.stopped(trial)

    def left(self, trial: Trial, why: Leaving) -> None:
        """Fold that a trial ended early; it was due for the rung after those that it reached."""
        self.stopped(trial)
        self._leave(trial, why, len(trial.results))

    def killed(self, trial: Trial, *, resting: bool) -> None:  # noqa: ARG002 - none rests
        """Fold that a trial is gone; nothing more is judged of it."""
        self.stopped(trial)
        self._leave(trial, "stopped", len(trial.results))

    def stops(self) -> Iterable[Stop]:
        """Return the trials that were judged."""
        return self.judged.values()

    def moves(self, chance: Chance, free: int) -> Iterator[Move]:  # noqa: ARG002 - the searcher draws
        """Yield new trials."""
        return self._creates(self.lengths[-1], self._free(free))


class PromotionAsha(_Asha, tag="asha_promotion"):
    """Every trial rests at its rung until it is promoted.

    Where max_time is 1, all rungs have that length, and the lowest is the top.
    """

    resting: list[Rung] = field(default_factory=list[Rung])
    """For each rung, the results of the trials that may yet be promoted."""

    def __post_init__(self) -> None:
        self.resting = self.resting or [Rung() for _ in self.rungs]

    @property
    def _top(self) -> int:
        return self.lengths.index(self.lengths[-1])

    def continued(self, trial: Trial) -> None:
        """Remove the trial from those that rest at the rung below."""
        self.training += 1
        self._wake(trial, trial.rung - 1)

    def stopped(self, trial: Trial) -> None:
        """Remove the trial from those that rest."""
        self._wake(trial, trial.rung)

    def _wake(self, trial: Trial, rung: int) -> None:
        self.resting[rung].remove((trial.results[rung], trial.index))

    def trained(self, trial: Trial) -> None:
        """Enter the trial in its rung, where it rests unless that is the top."""
        self.training -= 1
        cost = trial.results[trial.rung]
        self.rungs[trial.rung].add(cost, trial.index)
        if trial.rung < self._top:
            self.resting[trial.rung].add(cost, trial.index)

    def left(self, trial: Trial, why: Leaving) -> None:
        """Fold that a trial ended before its rung."""
        self._leave(trial, why, trial.rung)

    def killed(self, trial: Trial, *, resting: bool) -> None:
        """Fold that a trial is gone, and is promoted no more."""
        if resting:
            self._wake(trial, trial.rung - 1)
        else:
            self._leave(trial, "stopped", trial.rung)

    def stops(self) -> Iterator[Stop]:
        """Yield the resting trials, once no promotion is possible any more."""
        if self.training or self.trials + self.replaced > self.started:
            return
        if any(self._promotions()) or self._last_promotion():
            return
        for k, (rung, resting) in enumerate(zip(self.rungs, self.resting, strict=True)):
            for entry in resting:
                reason = rung.evidence(rung.place(entry), self.lengths[k], self._keep(k))
                yield Stop(entry[1], k, reason)

    def moves(self, chance: Chance, free: int) -> Iterator[Move]:  # noqa: ARG002 - the searcher draws
        """Yield promotions from the top down, then new trials; at the end a last promotion."""
        free = self._free(free)
        if free <= 0:
            return
        promotions: Iterator[Move] = self._promotions()
        creates: Iterator[Move] = self._creates(self.lengths[0], free)
        none = True
        for move in islice(chain(promotions, creates), free):
            yield move
            none = False
        if none:
            yield from self._last_promotion()

    def _promotions(self) -> Iterator[Continue]:
        for k in reversed(range(self._top)):
            rung, keep = self.rungs[k], self._keep(k)
            if not keep:
                continue
            for entry in self.resting[k]:
                place = rung.place(entry)
                if place >= keep:
                    break
                yield self._promote(k, entry, place, keep)

    def _last_promotion(self) -> list[Move]:
        highest = max((k for k, rung in enumerate(self.rungs) if rung.count), default=0)
        if self.training or highest >= self._top or not self.resting[highest].count:
            return []
        best = next(iter(self.resting[highest]))
        place = self.rungs[highest].place(best)
        return [self._promote(highest, best, place, self._keep(highest) or 1)]

    def _keep(self, rung: int) -> int:
        return int(self.rungs[rung].count // self.divisor)

    def _promote(self, rung: int, entry: Entry, place: int, keep: int) -> Continue:
        reason = self.rungs[rung].evidence(place, self.lengths[rung], keep)
        return Continue(entry[1], rung + 1, self.lengths[rung + 1], reason)


Asha = StoppingAsha | PromotionAsha


class AshaOptions(ManyTrials, kw_only=True):
    """The options that both methods of ASHA have."""

    NEEDS_TIME = True

    max_trials: Annotated[MaxTrials, Meta(description="How many trials to start.")]
    max_concurrent_trials: Annotated[
        Concurrent,
        Meta(
            description="How many trials may train at once, up to 10,000; 0: as many as the"
            " brackets need, so that at least one trial reaches the longest rung."
        ),
    ] = CONCURRENT_DEFAULT
    divisor: Annotated[
        Divisor,
        Meta(description="One trial in this many goes on from each rung to the next."),
    ] = DIVISOR
    stop_once: Annotated[
        bool,
        Meta(
            description="True: a trial trains until it falls behind at a rung and is stopped for"
            " good. False: it pauses at every rung and goes on when it is among the best"
            " (promotion)."
        ),
    ] = True

    def bracket(self, bracket: int, rungs: int, trials: int, concurrent: int) -> Asha:
        """Return one bracket."""
        lengths = rung_lengths(rungs, self.divisor, self.time())
        kind = StoppingAsha if self.stop_once else PromotionAsha
        return kind(
            bracket=bracket,
            lengths=lengths,
            divisor=self.divisor,
            trials=trials,
            concurrent=concurrent,
            rungs=[Rung() for _ in lengths],
        )

    def trials(self, points: int) -> int:  # noqa: ARG002 - drawn, not enumerated
        """Return `max_trials`."""
        return self.max_trials

    def extension(self, trials: int | None, max_time: int | None) -> str | None:  # noqa: ARG002 - any number
        """Refuse more length: trials were compared at rungs that follow from it."""
        return (
            None if max_time is None else "its rungs follow from max_time, and trials were stopped"
        )

    def rungs(self) -> list[int]:
        """Return the rungs of the largest bracket, which has those of all."""
        if not self.stop_once:
            return []
        return sorted(set(rung_lengths(self.most_rungs(), self.divisor, self.time())))

    def going_on(self, plan: BracketPlan, rung: int, result: int) -> float:  # noqa: ARG002 - all rungs are alike
        """Return the n-th result's own chance, or what it adds to the part that is promoted."""
        keep = int(result // self.divisor)
        if self.stop_once:
            return max(keep, 1) / result
        return keep - int((result - 1) // self.divisor)

    def most_rungs(self) -> int:
        """Return how many rungs the largest bracket has."""
        raise NotImplementedError


class Options(AshaOptions, tag="async_halving", kw_only=True):
    """Asynchronous successive halving (ASHA) with one bracket."""

    ALIASES = ("asha",)
    MAX_LENGTH = "units"
    STATES = (StoppingAsha, PromotionAsha)
    EXAMPLES: ClassVar[Examples] = {
        "asha": {
            "stop_once": True,
            "num_rungs": 3,
            "divisor": 3,
            "max_trials": 9,
            "max_time": 9,
            "max_concurrent_trials": 4,
        },
        "asha-promotion": {
            "stop_once": False,
            "num_rungs": 3,
            "divisor": 3,
            "max_trials": 9,
            "max_time": 9,
            "max_concurrent_trials": 4,
        },
    }

    num_rungs: Annotated[
        int,
        Meta(
            ge=1,
            le=RUNGS_MAX,
            description="How many rungs there are; `adaptive_asha` chooses them by itself.",
        ),
    ]

    def concurrent_unless_given(self) -> int:
        """Return as many as let one trial reach the top: divisor**(num_rungs-1), as Determined."""
        return min(int(Fraction(self.divisor) ** (self.num_rungs - 1)), self.max_trials)

    def plan(self, space: Sequence[Leaf]) -> Method:  # noqa: ARG002 - any space can be drawn from
        """Return the one bracket."""
        return self.bracket(0, self.num_rungs, self.max_trials, self.concurrent)

    def most_rungs(self) -> int:
        """Return how many rungs the bracket has."""
        return self.num_rungs

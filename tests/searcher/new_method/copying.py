"""The method `copying`: population-based training in its simplest form.

Jaderberg et al., "Population Based Training of Neural Networks" (2017). `population` trials train
from one multiple of `interval` to the next, up to max_time. A trial that arrives with a worse
result than the best of those that are at least as far goes on with that one's weights (*exploit*)
and its hyperparameters, each float times 0.8 or 1.25 (*explore*). Nobody waits, so what is decided
depends on the order of arrival.

Trials whose hyperparameters are refused are not replaced.
"""

from collections.abc import Collection, Sequence
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct, field

from rung.events.experiment import BracketPlan
from rung.methods.method import (
    Chance,
    Continue,
    Create,
    Examples,
    Leaving,
    ManyTrials,
    Method,
    Move,
    Start,
    Trial,
)
from rung.methods.rng import uniform
from rung.methods.space import Leaf


class Result(Struct):
    """What a trial had reached when it was trained to a rung."""

    rung: int
    cost: float
    hparams: dict[str, Any]
    checkpoints: list[str]


class Copying(Method, tag="copying"):
    """The population.

    Attributes:
        population: how many trials there are.
        lengths: of the rungs, shortest first.
        started: how many trials were created.
        results: the newest of each trial that has not failed.
        resting: trials that are to go on.
    """

    population: int
    lengths: list[int]
    started: int = 0
    results: dict[int, Result] = field(default_factory=dict[int, Result])
    resting: list[int] = field(default_factory=list[int])

    def brackets(self) -> list[BracketPlan]:
        """Return one bracket, all of whose trials are trained in full."""
        trained = [self.population] * len(self.lengths)
        return [
            BracketPlan(bracket=0, lengths=self.lengths, trials=self.population, trained=trained)
        ]

    def created(self, trial: Trial) -> None:
        """Count a trial."""
        self.started += 1

    def continued(self, trial: Trial) -> None:
        """Wake a trial."""
        self.resting.remove(trial.index)

    def trained(self, trial: Trial) -> None:
        """Remember the result, and have the trial go on unless it is at the top."""
        self.results[trial.index] = Result(trial.rung, trial.cost, trial.hparams, trial.restore)
        if trial.rung < len(self.lengths) - 1:
            self.resting.append(trial.index)

    def left(self, trial: Trial, why: Leaving) -> None:
        """Forget the trial."""
        self.results.pop(trial.index, None)

    def moves(self, chance: Chance, free: int) -> list[Move]:
        """Return the trials that go on, then new ones."""
        moves: list[Move] = [self._go_on(chance, index) for index in self.resting[:free]]
        wanted = min(free - len(moves), self.population - self.started)
        return moves + [Create(chance.sample(i), self.lengths[0]) for i in range(wanted)]

    def holds(self) -> Collection[str]:
        """Return the checkpoints of all that another trial may yet copy."""
        return [name for result in self.results.values() for name in result.checkpoints]

    def _go_on(self, chance: Chance, index: int) -> Continue:
        own = self.results[index]
        rung, length = own.rung + 1, self.lengths[own.rung + 1]
        donor = min(
            (
                other
                for other, result in self.results.items()
                if result.rung >= own.rung and result.checkpoints
            ),
            key=lambda other: (self.results[other].cost, other),
            default=index,
        )
        best = self.results[donor]
        if best.cost >= own.cost:
            return Continue(index, rung, length, f"{own.cost:g}: none is better")
        path = [str(rung)]
        return Continue(
            index,
            rung,
            length,
            f"{own.cost:g} is worse than {best.cost:g} of trial {donor}",
            hparams=_explored(best.hparams, chance.seed, index, path),
            start=Start(donor, best.checkpoints),
        )


def _explored(value: Any, seed: int, index: int, path: list[str]) -> Any:
    if isinstance(value, dict):
        return {name: _explored(item, seed, index, [*path, name]) for name, item in value.items()}
    if isinstance(value, float):
        return value * (0.8 if uniform(seed, "explore", index, path) < 0.5 else 1.25)
    return value


class Options(ManyTrials, tag="copying", kw_only=True):
    """Train a population of trials, the worse of which copy the better."""

    NEEDS_TIME = True
    SHARES = True
    STATES = (Copying,)
    EXAMPLES: ClassVar[Examples] = {
        "copying": {"population": 5, "interval": 2, "max_time": 8, "max_concurrent_trials": 3}
    }

    population: Annotated[int, Meta(ge=2, le=1_000, description="How many trials to train.")]
    interval: Annotated[int, Meta(ge=1, description="After how much training trials compare.")]

    def plan(self, space: Sequence[Leaf]) -> Method:
        """Return the population."""
        return Copying(self.population, list(range(self.interval, self.time() + 1, self.interval)))

    def trials(self, points: int) -> int:
        """Return the population."""
        return self.population

    def problem(self) -> str | None:
        """Return what is wrong with the interval."""
        if self.max_time is not None and self.interval > self.max_time:
            return f"interval ({self.interval}) must be at most max_time ({self.max_time})"
        return None

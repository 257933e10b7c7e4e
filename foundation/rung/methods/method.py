"""The interface of a search method: options, which come from the experiment file, and its state.

`Options.plan` returns the initial state of a search. The searcher folds the events of trials into
it, and asks it for moves after each. The state is a tagged msgspec Struct, part of the searcher's
snapshot. It decides by what was folded alone: no clock, no I/O, and random draws from `rng`.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol

from msgspec import Meta, Struct

from rung.events.experiment import BracketPlan
from rung.methods.space import Leaf, sample

WORST: Final = sys.float_info.max
"""The cost of a trial that failed or reported no finite number; JSON has no infinity."""
TRIALS_MAX: Final = 1_000_000
CONCURRENT_DEFAULT: Final = 16

MaxTrials = Annotated[int, Meta(ge=1, le=TRIALS_MAX)]
Concurrent = Annotated[
    int,
    Meta(
        ge=0,
        description="How many trials may train at once, up to 10,000; 0: as many as there are"
        " slots.",
    ),
]
Divisor = Annotated[float, Meta(gt=1, le=1_000_000)]

Leaving = Literal["errored", "ended", "invalid_hp", "stopped"]
"""Why a trial ended before its length: it failed too often; it ended by itself; its script refused
the hyperparameters; the method stopped it."""


Examples = Mapping[str, Mapping[str, Any]]
"""Name → the fields of a section `searcher`."""


class Start(Struct, frozen=True):
    """Another trial's weights to start from."""

    donor: int
    """The index of that trial."""
    checkpoints: list[str]
    """Its checkpoints, best choice first; the search holds each (`Method.holds`)."""


class Create(Struct, frozen=True):
    """Create a trial and train it to a length (None: until it ends by itself).

    Attributes:
        hparams: its hyperparameters; None: drawn independently (`Chance.sample`).
    """

    hparams: dict[str, Any] | None
    length: int | None
    bracket: int = 0
    start: Start | None = None


class Continue(Struct, frozen=True):
    """Continue a resting trial to a length; `reason` is the evidence.

    Attributes:
        rung: for which it trains.
        hparams: new hyperparameters; None: unchanged.
        start: the weights that it continues from; None: its own.
    """

    index: int
    rung: int
    length: int
    reason: str
    hparams: dict[str, Any] | None = None
    start: Start | None = None


class Stop(Struct, frozen=True):
    """Stop a trial, at a rung if it has one; `reason` is the evidence."""

    index: int
    rung: int | None
    reason: str


Move = Create | Continue


class Trial(Protocol):
    """What a method may read of a trial."""

    @property
    def index(self) -> int:
        """Its number in the search, from 0."""

    @property
    def bracket(self) -> int:
        """The bracket that it was created in."""

    @property
    def rung(self) -> int:
        """The rung that it trains for, or rests at."""

    @property
    def hparams(self) -> dict[str, Any]:
        """Its hyperparameters."""

    @property
    def cost(self) -> float:
        """The newest report's metric, the lower the better; `WORST`: no finite number."""

    @property
    def results(self) -> list[float]:
        """For each rung that it reached, the cost of the first report at or past the length."""

    @property
    def restore(self) -> list[str]:
        """Checkpoints with its newest weights, best choice first."""


class Chance(Struct, frozen=True):
    """The source of a search's hyperparameters."""

    space: Sequence[Leaf]
    seed: int
    created: int
    """How many trials there are: the index of the next one."""
    first: int = 0
    """How many draws another search has used, of which this one is the continuation."""

    def sample(self, ahead: int) -> dict[str, Any]:
        """Return independent hyperparameters for the next trial (0), or one after it."""
        return sample(self.space, self.seed, self.first + self.created + ahead)


class Method(Struct):
    """The state of a search. What a method does not override changes and asks for nothing."""

    def brackets(self) -> list[BracketPlan]:
        """Return the plan of the search."""
        raise NotImplementedError

    def created(self, trial: Trial) -> None:
        """Fold that a trial was created, to be trained."""

    def continued(self, trial: Trial) -> None:
        """Fold that a resting trial continues, for `trial.rung`."""

    def stopped(self, trial: Trial) -> None:
        """Fold that a trial was stopped."""

    def reported(self, trial: Trial, first: int) -> None:
        """Fold a report, which reached the rungs from `first` to the end of `trial.results`."""

    def trained(self, trial: Trial) -> None:
        """Fold that a run ended at its length; the trial rests, unless at the last rung."""

    def left(self, trial: Trial, why: Leaving) -> None:
        """Fold that a trial ended before its length."""

    def killed(self, trial: Trial, *, resting: bool) -> None:
        """Fold that a user ended a trial: `trial.rung` is the one that it trained for.

        By default it counts as one that failed for good. Where it was at rest, `trial.rung` is the
        next one: by default it counts as continued, and then as failed.
        """
        if resting:
            self.continued(trial)
        self.left(trial, "errored")

    def extend(self, trials: int | None, max_time: int | None) -> None:
        """Fold that there are to be more trials, or longer ones: `Options.extension` allowed it.

        Args:
            trials: how many in all; None: as before.
            max_time: how far each trains; None: as before. Runs are withdrawn, and requested
                again with this length.
        """
        raise NotImplementedError

    def stops(self) -> Iterable[Stop]:
        """Return the trials to stop now; what they follow from does not change meanwhile."""
        return ()

    def moves(self, chance: Chance, free: int) -> Iterable[Move]:
        """Return what to train next: at most `free` moves, in order of preference.

        Asked only where at least one is free. There may be a hundred thousand moves: an iterator
        makes them as they are taken. What they follow from does not change until the last is.
        """
        raise NotImplementedError

    def holds(self) -> Collection[str]:
        """Return the checkpoints that a trial may yet start from, beside those of open trials.

        Called only where `Options.SHARES`: no checkpoint of such a search is deleted until the
        search releases it, and a checkpoint that it no longer holds is released for good.
        """
        return ()


class SearchOptions(Struct, kw_only=True, tag_field="name"):
    """The options of every method; a method's own are the fields of its subclass `Options`.

    A field's type and limits are those of the experiment file, and its description is shown to
    users. The tag is the method's name.
    """

    ALIASES: ClassVar[tuple[str, ...]] = ()
    """Other names of the method."""
    NEEDS_TIME: ClassVar[bool] = False
    """Whether it requires `time_metric` and `max_time`."""
    MAX_LENGTH: ClassVar[Literal["none", "units", "any"]] = "none"
    """Whether the file may give both as the older `max_length`: as a map of units, or also as a
    bare number."""
    SPACE: ClassVar[Literal["any", "constants", "counted"]] = "any"
    """What it searches: any space; constants, and what else there is is drawn once; or ranges with
    a `count`."""
    COMPARES: ClassVar[bool] = True
    """Whether it compares trials, so that no run may go past its length."""
    SHARES: ClassVar[bool] = False
    """Whether trials may start from the checkpoints of others."""
    NEEDS_VALUE: ClassVar[bool] = True
    """Whether a trial without a value of the metric has no result, also with checkpoints."""
    ORDER_FREE: ClassVar[bool] = False
    """Whether its decisions do not depend on the order in which reports arrive."""
    STATES: ClassVar[tuple[type[Method], ...]]
    """The classes of the states that `plan` returns."""
    EXAMPLES: ClassVar[Examples]
    """Small searches, by name: the section's fields. Each is simulated under faults."""

    metric: str
    smaller_is_better: bool = True
    time_metric: str = "batches"
    max_time: Annotated[int, Meta(ge=1)] | None = None
    source_checkpoint_uuid: str | None = None

    @property
    def concurrent(self) -> int:
        """How many trials may train at once; 0: all."""
        return CONCURRENT_DEFAULT

    def time(self) -> int:
        """Return `max_time` where it is required (`NEEDS_TIME`)."""
        assert self.max_time is not None, self
        return self.max_time

    def concurrent_unless_given(self) -> int:
        """Return what `max_concurrent_trials: 0` in an experiment file stands for; 0: all."""
        return 0

    def plan(self, space: Sequence[Leaf]) -> Method:
        """Return the initial state of the search.

        Raises:
            InvalidConfig: the method cannot search this space.
        """
        raise NotImplementedError

    def trials(self, points: int) -> int:
        """Return how many trials the search starts, where a grid over the space has `points`."""
        raise NotImplementedError

    def rungs(self) -> list[int]:
        """Return the lengths at which runs validate on their way, shortest first."""
        return []

    def extension(self, trials: int | None, max_time: int | None) -> str | None:  # noqa: ARG002 - of none
        """Return why the search cannot have more trials or length, None if it can.

        Args:
            trials: how many it is to have in all; None: as before.
            max_time: how far each is to train; None: as before.
        """
        return "its method plans a number of trials and their lengths together"

    def concurrent_in(self, brackets: int) -> list[int]:
        """Return how many trials of each of so many brackets may train at once; 0: all."""
        return [0] * brackets

    def going_on(self, plan: BracketPlan, rung: int, result: int) -> float:  # noqa: ARG002 - all results are alike
        """Return how many trials are expected to train on because of the n-th result of a rung.

        Args:
            plan: of the bracket.
            rung: not the last.
            result: its number among the results of the rung, from 1.
        """
        if plan.trained:
            return plan.trained[rung + 1] / max(plan.trained[rung], 1)
        return plan.lengths[rung] / plan.lengths[rung + 1]

    def problem(self) -> str | None:
        """Return what is wrong between options, None if nothing; `max_time` may be absent."""
        return None


class ManyTrials(SearchOptions, kw_only=True):
    """The options of methods that train several trials."""

    max_concurrent_trials: Concurrent = CONCURRENT_DEFAULT

    @property
    def concurrent(self) -> int:
        """How many trials may train at once; 0: all."""
        return self.max_concurrent_trials

"""What the searcher knows of one experiment."""

from typing import Any, Final, Literal

from msgspec import Struct, field

from rung.events.errors import InvalidConfig
from rung.events.experiment import BracketPlan, Submission
from rung.events.trial import TrialState
from rung.searcher.methods.adaptive_asha import AdaptiveAsha, plan_adaptive_asha
from rung.searcher.methods.asha import PromotionAsha, StoppingAsha, plan_asha
from rung.searcher.methods.full_length import Flat
from rung.searcher.methods.grid import Grid, plan_grid
from rung.searcher.methods.hyperband import Hyperband, plan_hyperband
from rung.searcher.methods.random_search import RandomSearch, plan_random
from rung.searcher.methods.single import Single, plan_single
from rung.searcher.search_settings import Settings
from rung.searcher.trial import Trial

Phase = Literal["new", "active", "paused", "canceling", "killing", "ended"]

AnyMethod = Single | Grid | RandomSearch | StoppingAsha | PromotionAsha | AdaptiveAsha | Hyperband
"""The methods, for a snapshot to tell apart; each is a `rung.searcher.methods.method.Method`."""

UNLIMITED: Final = 2**31


class Fate(Struct):
    """How a trial whose runs are over is to be closed."""

    state: TrialState
    reason: str


class Experiment(Struct):
    """A submitted experiment that has not ended.

    Attributes:
        settings: what its configuration says.
        config: the configuration without its `hyperparameters`, as runs get it.
        code_digest: of its code archive.
        method: decides which trials go on.
        plan: the brackets as announced.
        trials: by index.
        training: how many of them train or are about to: those that count as concurrent.
        living: how many of them are not closed.
        tally: how many were closed, by state.
        due: trials that want a run, and why.
        closing: trials whose runs are over, to be closed.
        submission: for whom it was submitted, and when; handed on with each run.
    """

    settings: Settings
    config: dict[str, Any]
    code_digest: str | None
    method: AnyMethod
    plan: list[BracketPlan] = field(default_factory=list[BracketPlan])
    trials: list[Trial] = field(default_factory=list[Trial])
    training: int = 0
    living: int = 0
    tally: dict[str, int] = field(default_factory=dict[str, int])
    due: dict[int, str] = field(default_factory=dict[int, str])
    closing: dict[int, Fate] = field(default_factory=dict[int, Fate])
    submission: Submission | None = None

    @property
    def free(self) -> int:
        """How many more trials may train."""
        limit = self.settings.search.concurrent
        return max(limit - self.training, 0) if limit else UNLIMITED

    @property
    def compares(self) -> bool:
        """Whether the method compares trials, so that no run may go past its length."""
        return not isinstance(self.method, Flat)

    def lengths(self, trial: Trial) -> list[int]:
        """Return the lengths of the rungs of a trial's bracket."""
        return self.plan[trial.bracket].lengths

    def trial(self, trial_id: str) -> Trial | None:
        """Return a trial that is known and not closed."""
        index = int(trial_id.rpartition(".")[2])
        if index >= len(self.trials) or self.trials[index].closed:
            return None
        return self.trials[index]

    def current(self, trial_id: str, run: int) -> Trial | None:
        """Return the trial if the run is its current one and has not ended."""
        trial = self.trial(trial_id)
        return trial if trial and trial.running and trial.run == run else None


class State(Struct):
    """One experiment; `experiment` is there from its submission to its end."""

    experiment_id: str
    phase: Phase = "new"
    experiment: Experiment | None = None


def plan_method(settings: Settings) -> AnyMethod:
    """Return the method that an experiment asks for.

    Raises:
        InvalidConfig: there is no such method, or it lacks a number that it needs.
    """
    search = settings.search
    match search.name:
        case "single":
            return plan_single(search)
        case "grid":
            return plan_grid(search, settings.space)
        case "random":
            return plan_random(search)
        case "async_halving" | "asha":
            return plan_asha(search)
        case "adaptive_asha":
            return plan_adaptive_asha(search)
        case "hyperband":
            return plan_hyperband(search)
        case _:
            known = "single, grid, random, async_halving, adaptive_asha, hyperband"
            raise InvalidConfig([("searcher.name", f"{search.name!r} is none of {known}")])

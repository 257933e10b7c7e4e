"""The state of one experiment: its search settings, its trials, their runs and results."""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from rung.events.errors import InvalidConfig, invalid_field
from rung.events.experiment import BracketPlan, Submission
from rung.events.failure import Failure
from rung.events.trial import TrialState, Withdrawal
from rung.methods.method import WORST
from rung.methods.space import Leaf, flatten
from rung.methods.table import AnyMethod, AnyOptions, read_options

Phase = Literal["new", "active", "paused", "canceling", "killing", "spent", "ended"]

UNLIMITED: Final = 2**31

CHECKPOINTS_KEPT: Final = 4
"""How many checkpoints of a trial are remembered."""
RESTORED: Final = 2
"""How many of these a run may start from."""

POOL_DEFAULT: Final = "default"
PRIORITY_DEFAULT: Final = 42


class SearchSettings(Struct):
    """All of a configuration that the searcher decides by."""

    method: str
    """As the configuration names it."""
    search: AnyOptions
    space: list[Leaf]
    seed: int
    max_restarts: int
    pool: str
    slots: int
    priority: int
    max_slots: int | None
    max_slot_hours: float | None = None
    first: int = 0
    """How many draws of its seed another search has used."""


class Saved(Struct):
    """A checkpoint that a trial may go on from."""

    steps: int
    checkpoint_id: str


class Trial(Struct):
    """One trial, its current run and its results.

    Attributes:
        rung: for which it trains, or at which it rests, in a method whose trials rest.
        length: how far its current run goes.
        run: number of the current run, 0 before the first.
        running: the current run was requested and has not ended.
        withdrawn: how the current run was withdrawn, if it was.
        restarts: how many of its runs failed.
        fault: the kind of fault that its last failed run ended with, empty if that is not known.
        fault_steps: the last step that this run reported.
        repeats: how many runs failed one after the other with this fault at this step.
        time: of the newest report, -1 before the first.
        cost: of the newest report.
        results: per rung of its bracket, the cost of the first report at or past its length.
        overrun: reports after the first at or past the length of its run.
        due_steps: the steps of the first report at or past the length of its run.
        checkpoints: its own, newest first.
        source: checkpoints of another trial, whose weights it has until it stores its own.
        stopped: why the search stopped it, if it did.
        killed: its user asked to end it, and its run has not ended.
        closed: it will never train again; its details are forgotten.
        finite: it reported a finite value of the searcher's metric.
        broken: the first of its newest values that were not finite, and where; empty: the newest
            value is finite, or there is none.
        stored: it stored a checkpoint, or was uploading one as its run ended.
        metadata: what its script set last.
        unretried: why it is not tried again should it fail; empty: it is.
        excluded: the agents that its runs no longer go to.
        pool: of its current run.
    """

    index: int
    bracket: int
    hparams: dict[str, Any]
    seed: int
    rung: int = 0
    length: int | None = None
    run: int = 0
    running: bool = False
    withdrawn: Withdrawal | None = None
    restarts: int = 0
    fault: str = ""
    fault_steps: int | None = None
    repeats: int = 0
    time: float = -1.0
    cost: float = WORST
    results: list[float] = field(default_factory=list[float])
    overrun: int = 0
    due_steps: int | None = None
    checkpoints: list[Saved] = field(default_factory=list[Saved])
    source: list[str] = field(default_factory=list[str])
    stopped: str | None = None
    killed: bool = False
    closed: bool = False
    finite: bool = False
    broken: str = ""
    stored: bool = False
    metadata: dict[str, Any] | None = None
    unretried: str = ""
    excluded: list[str] = field(default_factory=list[str])
    pool: str = POOL_DEFAULT

    @property
    def reached(self) -> bool:
        """Whether it has validated at or past the length of its run."""
        return self.length is not None and self.time >= self.length

    @property
    def delivered(self) -> bool:
        """Whether it has validated its run's length and a checkpoint of that is complete.

        However the run then ended, there is nothing left to train, and training on from that
        checkpoint would go past the length.
        """
        saved = self.checkpoints[0].steps if self.checkpoints else -1
        return self.due_steps is not None and saved >= self.due_steps

    @property
    def restore(self) -> list[str]:
        """The checkpoints that its next run starts from, best choice first."""
        return [saved.checkpoint_id for saved in self.checkpoints[:RESTORED]] or self.source


class Fate(Struct):
    """How a trial whose runs are over is to be closed."""

    state: TrialState
    reason: str
    cause: str = ""
    """Why it failed, without how often it was tried; empty: it did not."""


class Held(Struct):
    """A checkpoint that the search has not released."""

    trial: int
    """The index of the trial that stored it."""
    damaged: bool = False


class Experiment(Struct):
    """A submitted experiment that has not ended.

    Attributes:
        settings: what its configuration says.
        config: the configuration without its `hyperparameters`, as runs get it; empty where they
            get it by its digest.
        code_digest: of its code archive.
        method: decides which trials there are and which go on.
        plan: the brackets as announced.
        trials: by index.
        training: how many of them train or are about to: those that count as concurrent.
        living: how many of them are not closed.
        tally: how many were closed, by state.
        failures: why those that were closed as errored failed, by what causes have in common.
        due: trials that want a run, and why.
        closing: trials whose runs are over, to be closed.
        submission: for whom it was submitted, and when; handed on with each run.
        held: checkpoints that are not released, by id, oldest first; empty unless the method's
            trials start from the checkpoints of others.
        config_digest: of the configuration as it lies in the object store.
        areas: the storage areas of checkpoints, by experiment; handed on with each run.
        changes: how many changes of its resources users made.
        retell: the pool does not know yet what the last of them changed.
        slot_ms: the most slot time that it has used by what is on record of it; 0: not known.
        spent: the limit, in slot-hours, that it has reached; 0: none.
        announced: that is decided on record.
        deferred: there is more to decide, for which `search.continued` is on its way.
    """

    settings: SearchSettings
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
    held: dict[str, Held] = field(default_factory=dict[str, Held])
    config_digest: str | None = None
    failures: dict[str, Failure] = field(default_factory=dict[str, Failure])
    changes: int = 0
    retell: bool = False
    areas: dict[str, str] = field(default_factory=dict[str, str])
    slot_ms: int = 0
    spent: float = 0.0
    announced: bool = False
    deferred: bool = False

    @property
    def free(self) -> int:
        """How many more trials may train."""
        limit = self.settings.search.concurrent
        return max(limit - self.training, 0) if limit else UNLIMITED

    @property
    def compares(self) -> bool:
        """Whether the method compares trials, so that no run may go past its length."""
        return self.settings.search.COMPARES

    @property
    def shares(self) -> bool:
        """Whether trials may start from the checkpoints of others."""
        return self.settings.search.SHARES

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
    level: int = 1
    """The logic level of its decisions."""


class _Resources(Struct):
    slots_per_trial: int | None = 1
    max_slots: int | None = None
    max_slot_hours: float | None = None
    priority: int | None = None
    resource_pool: str | None = None


class _Reproducibility(Struct):
    experiment_seed: int
    first_trial: int = 0


class _Config(Struct):
    searcher: dict[str, Any]
    reproducibility: _Reproducibility
    hyperparameters: dict[str, Any]
    resources: _Resources = field(default_factory=_Resources)
    max_restarts: int | None = 5


def read_settings(config: dict[str, Any]) -> SearchSettings:
    """Return the part of an expanded configuration that the searcher needs.

    Raises:
        InvalidConfig: a field that the searcher needs is missing or of another type.
    """
    try:
        read = msgspec.convert(config, _Config)
    except msgspec.ValidationError as error:
        path, text = invalid_field(error)
        raise InvalidConfig([(path or "config", text)]) from error
    resources = read.resources
    return SearchSettings(
        method=str(read.searcher.get("name")),
        search=read_options(read.searcher),
        space=flatten(read.hyperparameters),
        seed=read.reproducibility.experiment_seed,
        max_restarts=5 if read.max_restarts is None else read.max_restarts,
        pool=resources.resource_pool or POOL_DEFAULT,
        slots=1 if resources.slots_per_trial is None else resources.slots_per_trial,
        priority=PRIORITY_DEFAULT if resources.priority is None else resources.priority,
        max_slots=resources.max_slots,
        max_slot_hours=resources.max_slot_hours,
        first=read.reproducibility.first_trial,
    )

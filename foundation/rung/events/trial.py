"""Events of a trial: one choice of hyperparameters, trained in one run after another.

A trial is `<experiment_id>.<index>`; a *run* is one stretch of its training in one allocation,
numbered from 1; the allocation is `<trial_id>.<run>`. Reports of other runs than the trial's
current one are ignored.
"""

import math
from typing import Any, ClassVar, Final, Literal

from msgspec import Struct, field

from rung.events import topic
from rung.events.experiment import ExperimentRequest, SearchDecision, Submission
from rung.events.topic import Relayed

NonFinite = Literal["NaN", "Infinity", "-Infinity"]
MetricValue = float | NonFinite
"""A metric on the wire; JSON has no numbers that are not finite."""


def comparable(value: MetricValue | None) -> float | None:
    """Return a metric's value if it counts where values are compared: if it is a finite number.

    Returns:
        None: it is absent or not finite, so it is neither the best nor a time.
    """
    if value is None or isinstance(value, str) or not math.isfinite(value):
        return None
    return float(value)


def cost_of(value: MetricValue | None, *, smaller_is_better: bool) -> float | None:
    """Return a metric's value as a cost, the lower the better; None: it is not comparable."""
    number = comparable(value)
    return number if number is None or smaller_is_better else -number


def is_better(value: float, than: float, *, smaller_is_better: bool) -> bool:
    """Return whether a metric's comparable value is better than another one."""
    return value < than if smaller_is_better else value > than


TrialState = Literal["completed", "stopped", "errored", "canceled"]
"""completed: trained to its full length, or ended by itself; stopped: by the search. A
trial without a usable result is errored however it ended."""

ExitOutcome = Literal["finished", "preempted", "failed", "killed", "invalid_hp"]
"""How a run's process ended.

finished: exit code 0 without acknowledging a preemption; preempted: exit code 0 after
acknowledging one; failed: any other exit code, or a signal that the platform did not send;
killed: by the platform, as asked; invalid_hp: the script refused its hyperparameters.
"""

Withdrawal = Literal["preempt", "kill"]
"""preempt: checkpoint and leave within the grace period; kill: at once."""


def trial_id_of(experiment_id: str, index: int) -> str:
    """Return the id of an experiment's trial (index counted from 0)."""
    return f"{experiment_id}.{index}"


def allocation_id_of(trial_id: str, run: int) -> str:
    """Return the id of the allocation in which a run takes place."""
    return f"{trial_id}.{run}"


def run_of(allocation_id: str) -> tuple[str, int] | None:
    """Return the trial and the run of an allocation, None if it is no allocation's id."""
    trial_id, _, run = allocation_id.rpartition(".")
    if "." not in trial_id or not (run.isascii() and run.isdigit()):
        return None
    return trial_id, int(run)


class RunSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent needs to start a run; code and configuration by digest."""

    experiment_id: str
    trial_id: str
    trial_index: int
    run: int
    hparams: dict[str, Any]
    seed: int
    length: int | None
    """Train until the time metric reaches this, counted from the trial's beginning; None: the
    script ends by itself."""
    time_metric: str
    """`batches`, `epochs`, `records`, or a metric that the script reports in its validations."""
    restore: list[str]
    """Checkpoints to start from, best choice first; empty: from scratch."""
    code_digest: str | None
    config: dict[str, Any] = field(default_factory=dict)
    """The experiment's complete configuration without its `hyperparameters`; empty in events that
    name it by its digest."""
    config_digest: str | None = None
    """SHA-256 of that configuration as it lies in the object store."""
    metadata: dict[str, Any] | None = None
    """What the trial's script set as its metadata in an earlier run."""
    areas: dict[str, str] = field(default_factory=dict)
    """The storage areas of checkpoints, by experiment, as in `experiment.submitted`."""

    def area_of(self, experiment_id: str) -> str:
        """Return the storage area of an experiment's checkpoints; empty: none."""
        return self.areas.get(experiment_id, "")


class RunReport(Struct, frozen=True, kw_only=True):
    """A fact about a run, from its agent."""

    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "agent"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "checkpoint-gc", "gateway")

    experiment_id: str
    trial_id: str
    run: int


class TrialKillRequested(ExperimentRequest, frozen=True, kw_only=True):
    """A user asked to end one trial at once; its search goes on without it.

    Ignored where the experiment's level is below 2.
    """

    TYPE: ClassVar[str] = "rung.trial.kill_requested.v1"

    trial_id: str


class TrialRequested(SearchDecision, frozen=True, kw_only=True, omit_defaults=True):
    """The search creates a trial."""

    TYPE: ClassVar[str] = "rung.trial.requested.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "gateway", "webhooks")

    trial_id: str
    index: int
    bracket: int
    hparams: dict[str, Any]
    seed: int
    parent: str | None = None
    """The trial whose weights it starts from; None: its own initial ones."""
    restore: list[str] = field(default_factory=list)
    """That trial's checkpoints, best choice first."""


class RunRequested(SearchDecision, frozen=True, kw_only=True, omit_defaults=True):
    """The searcher requests a run of a trial: its first, after a fault, or after a promotion."""

    TYPE: ClassVar[str] = "rung.run.requested.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "scheduler", "gateway")
    RELAYED: ClassVar[Relayed] = Relayed(topic.POOLS, "scheduler")

    pool: str
    slots: int
    priority: int
    max_slots: int | None
    """How many slots the whole experiment may hold at once."""
    reason: str
    spec: RunSpec
    submission: Submission | None = None
    """That of the experiment."""
    excluded: list[str] = field(default_factory=list)
    """Agents that it may not go to, because of what the trial's runs printed there. Without effect
    where the pool's level is below 3."""

    @property
    def allocation_id(self) -> str:
        """The allocation that it requests."""
        return allocation_id_of(self.spec.trial_id, self.spec.run)


class RunWithdrawn(SearchDecision, frozen=True, kw_only=True, omit_defaults=True):
    """The searcher withdraws a run, waiting or running."""

    TYPE: ClassVar[str] = "rung.run.withdrawn.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "scheduler", "gateway")
    RELAYED: ClassVar[Relayed] = Relayed(topic.POOLS, "scheduler")

    trial_id: str
    run: int
    pool: str
    how: Withdrawal
    reason: str
    final: bool = False
    """Whether the search stopped the trial: no later run needs a checkpoint of its last step."""

    @property
    def allocation_id(self) -> str:
        """The allocation that it withdraws."""
        return allocation_id_of(self.trial_id, self.run)


class TrialPromoted(SearchDecision, frozen=True, kw_only=True, omit_defaults=True):
    """The search continues the trial to a longer length; the evidence is in `reason`."""

    TYPE: ClassVar[str] = "rung.trial.promoted.v1"

    trial_id: str
    rung: int
    length: int
    reason: str
    hparams: dict[str, Any] | None = None
    """Its hyperparameters from here on, None: unchanged."""
    parent: str | None = None
    """The trial whose weights it continues from; None: its own."""
    restore: list[str] = field(default_factory=list)
    """That trial's checkpoints, best choice first."""


class TrialStopped(SearchDecision, frozen=True, kw_only=True):
    """The search stops the trial; the evidence is in `reason`."""

    TYPE: ClassVar[str] = "rung.trial.stopped.v1"

    trial_id: str
    rung: int | None
    reason: str


class TrialClosed(SearchDecision, frozen=True, kw_only=True, omit_defaults=True):
    """The trial will never train again and holds no slots."""

    TYPE: ClassVar[str] = "rung.trial.closed.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "checkpoint-gc", "gateway", "webhooks")
    RELAYED: ClassVar[Relayed] = Relayed(topic.EXPERIMENTS, "checkpoint-gc")

    trial_id: str
    state: TrialState
    reason: str
    restarts: int
    """How many of its runs failed."""
    cause: str = ""
    """Why it errored, without how often it was tried: what trials that fail alike have in common.
    Empty: it did not, or the experiment's level is 1."""


class TrialStarted(RunReport, frozen=True, kw_only=True):
    """A run's process is alive."""

    TYPE: ClassVar[str] = "rung.trial.started.v1"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    agent_id: str


class TrialRestored(RunReport, frozen=True, kw_only=True):
    """A run loaded a checkpoint and continues from its step."""

    TYPE: ClassVar[str] = "rung.trial.restored.v1"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    checkpoint_id: str
    steps_completed: int


class TrialValidated(RunReport, frozen=True, kw_only=True):
    """A run reported validation metrics at a step."""

    TYPE: ClassVar[str] = "rung.trial.validated.v1"
    READERS: ClassVar[tuple[str, ...]] = (
        "searcher",
        "checkpoint-gc",
        "agent",
        "gateway",
        "webhooks",
    )

    steps_completed: int
    metrics: dict[str, MetricValue]


class TrialStatusSet(RunReport, frozen=True, kw_only=True):
    """A script described what its trial is doing, for people."""

    TYPE: ClassVar[str] = "rung.trial.status_set.v1"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    status: str


class TrialMetadataSet(RunReport, frozen=True, kw_only=True):
    """A script set the metadata of its trial, in place of those before."""

    TYPE: ClassVar[str] = "rung.trial.metadata_set.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "gateway")

    metadata: dict[str, Any]


class TrialProgressReported(RunReport, frozen=True, kw_only=True):
    """A script estimated how much of its trial is done."""

    TYPE: ClassVar[str] = "rung.trial.progress_reported.v1"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    progress: float
    """From 0 to 1."""


class LogMatched(RunReport, frozen=True, kw_only=True, omit_defaults=True):
    """A line that a run printed matches the pattern of a log policy: the first such line.

    An agent that takes a run over from another may report the match again.
    """

    TYPE: ClassVar[str] = "rung.log.matched.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "webhooks")

    agent_id: str
    policy: str
    """Its name; of a policy without one, its pattern."""
    action: str
    """`cancel_retries`, `exclude_node`, `webhook`; empty: none. Unknown ones have no effect."""
    rank: int
    line: str
    """Its first 1,024 characters."""


CODE_REFUSED: Final = "code_refused"
"""The `fault` of a run whose code archive every agent refuses to unpack."""

FAULTS_OF_CODE: Final = frozenset(
    {
        CODE_REFUSED,
        "SyntaxError",
        "IndentationError",
        "TabError",
        "rung.core.errors.MetricMissing",
        "rung.torch.checkpoint.completeness.IncompleteCheckpoint",
        "rung.training.errors.NotJoined",
        "rung.training.errors.NotResumable",
        "rung.training.units.InvalidPlan",
    }
)
"""Faults that lie in the code itself, so that each run of it has them."""


ENDED_EARLY: Final = "the script ended by itself at"
"""So begins the reason of a trial that was closed as completed before its length."""


class TrialExited(RunReport, frozen=True, kw_only=True, omit_defaults=True):
    """A run's processes are gone."""

    TYPE: ClassVar[str] = "rung.trial.exited.v1"
    READERS: ClassVar[tuple[str, ...]] = (
        "searcher",
        "checkpoint-gc",
        "agent",
        "gateway",
        "webhooks",
    )

    agent_id: str
    outcome: ExitOutcome
    exit_code: int | None
    signal: int | None
    message: str
    """For people: the last line of the traceback, the signal's name."""
    fault: str = ""
    """Names the fault, by which a repeated one is recognised; empty: not known, or none."""
    steps_completed: int | None = None
    """The last step that the run reported, stored or restored; None if there was none."""
    machine: bool = False
    """Whether a failure is the machine's, such as a full disk: it does not count as a restart."""
    under_way: list[str] = field(default_factory=list)
    """Checkpoints whose upload goes on after the run; they are reported when it is complete."""

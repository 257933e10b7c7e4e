"""Events of an experiment as a whole."""

from typing import Any, ClassVar, Final, Literal

from msgspec import Struct, field

from rung.events import topic
from rung.events.topic import Relayed

ExperimentState = Literal["completed", "errored", "canceled"]
DEFAULT: Final = "default"
"""Id of the workspace and of the project that every installation has, and of what was submitted
to a release without workspaces."""
ADMIN: Final = "admin"
"""Id of the administrator that every installation has, who owns what was submitted before."""


def limit_words(max_slot_hours: float) -> str:
    """Return in words that an experiment has reached its limit."""
    unit = "slot-hour" if max_slot_hours == 1 else "slot-hours"
    return f"its limit of {max_slot_hours:,.10g} {unit} is reached"


class Submission(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who submitted an experiment, and when: what a scheduling policy may depend on."""

    owner: str = ""
    """Who submitted it; empty: not known."""
    workspace: str = ""
    """Its workspace, by name; empty: not known."""
    weight: float = 1.0
    """Its share of the pool, relative to others, under a policy that uses it."""
    time_ms: int = 0
    """Since 1970, by the clock of the gateway: the order of submissions."""


class ExperimentSubmitted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An experiment was submitted; its configuration is complete and valid."""

    TYPE: ClassVar[str] = "rung.experiment.submitted.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "checkpoint-gc", "agent", "gateway")

    experiment_id: str
    config: dict[str, Any]
    """The configuration with every default filled in and `experiment_seed` chosen."""
    source: str
    """The experiment file as its author wrote it."""
    code_digest: str | None
    """SHA-256 of the code archive in the object store, None without a code folder."""
    submission: Submission | None = None
    """None: it was submitted to an earlier release."""
    level: int = 1
    """The logic level at which everything about it is decided."""
    config_digest: str | None = None
    """SHA-256 of the configuration that its runs get, in the object store. None: they get it in
    their events, because it was submitted to an earlier release."""
    parent: str | None = None
    """The experiment that it was made from, by a change of its file; None: none."""
    workspace_id: str = DEFAULT
    """The workspace that it was submitted to."""
    project_id: str = DEFAULT
    """The project of that workspace."""
    owner: str = ADMIN
    """Id of the user who submitted it."""
    areas: dict[str, str] = field(default_factory=dict)
    """The storage areas in which its checkpoints lie, by its id, and, by theirs, those of the
    experiments that it starts from; one that is not named has none (`rung.storage.area`)."""

    @property
    def area(self) -> str:
        """The storage area of its checkpoints; empty: none."""
        return self.areas.get(self.experiment_id, "")


class ExperimentRequest(Struct, frozen=True, kw_only=True):
    """A fact: a user asked for something to happen to an experiment."""

    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "gateway")

    experiment_id: str


class SearchDecision(Struct, frozen=True, kw_only=True):
    """A decision of the searcher."""

    TOPIC: ClassVar[str] = topic.SEARCHES
    WRITER: ClassVar[str] = "searcher"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "gateway")

    experiment_id: str


class PauseRequested(ExperimentRequest, frozen=True, kw_only=True):
    """A user asked to pause the experiment: its runs checkpoint and release their slots."""

    TYPE: ClassVar[str] = "rung.experiment.pause_requested.v1"


class ResumeRequested(ExperimentRequest, frozen=True, kw_only=True):
    """A user asked to resume a paused experiment."""

    TYPE: ClassVar[str] = "rung.experiment.resume_requested.v1"


class CancelRequested(ExperimentRequest, frozen=True, kw_only=True):
    """A user asked to end the experiment after its trials have checkpointed."""

    TYPE: ClassVar[str] = "rung.experiment.cancel_requested.v1"


class KillRequested(ExperimentRequest, frozen=True, kw_only=True):
    """A user asked to end the experiment at once."""

    TYPE: ClassVar[str] = "rung.experiment.kill_requested.v1"


class ExtensionRequested(ExperimentRequest, frozen=True, kw_only=True, omit_defaults=True):
    """A user asked for more trials, or for longer ones, in a search that has not ended.

    Ignored where the experiment's level is below 2, or its method cannot be extended so.
    """

    TYPE: ClassVar[str] = "rung.experiment.extension_requested.v1"

    trials: int | None = None
    """How many trials the search is to have in all, as `max_trials`; None: as before."""
    max_time: int | None = None
    """How far each is to train, as `max_time`; None: as before."""


class ResourcesRequested(ExperimentRequest, frozen=True, kw_only=True, omit_defaults=True):
    """A user asked for another priority, weight, limit or pool of an experiment that goes on.

    None: as it was. Ignored where the experiment's level is below 3.
    """

    TYPE: ClassVar[str] = "rung.experiment.resources_requested.v1"

    pool: str | None = None
    priority: int | None = None
    weight: float | None = None
    max_slots: int | None = None
    """How many slots the whole experiment may hold at once; 0: no limit."""
    max_slot_hours: float | None = None
    """How many slot-hours the whole experiment may use; 0: no limit."""
    version: int | None = None
    """How many such requests the user had seen: it is without effect where there are more."""


class SlotTimeCounted(Struct, frozen=True, kw_only=True):
    """By the gateway's count, which is that of usage, the experiment has used so much slot time.

    Written once the count is at or above the experiment's `max_slot_hours`. Ignored where the
    experiment's level is below 3; where it has no limit, or a higher one by now, it is kept, and
    counts once the limit is lowered.
    """

    TYPE: ClassVar[str] = "rung.experiment.slot_time_counted.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("searcher",)

    experiment_id: str
    slot_ms: int
    """Slots times milliseconds for which runs of it held them."""


class RetentionChanged(ExperimentRequest, frozen=True, kw_only=True, omit_defaults=True):
    """A user changed which checkpoints the experiment keeps."""

    TYPE: ClassVar[str] = "rung.experiment.retention_changed.v1"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc", "gateway")

    save_experiment_best: int
    save_trial_best: int
    save_trial_latest: int
    superfluous: dict[str, str] = field(default_factory=dict)
    """Checkpoint → its trial, of those that the gateway found superfluous. They go where the
    experiment has ended; before, checkpoint-gc judges by itself."""
    area: str = ""
    """The storage area of the experiment's checkpoints, which is forgotten once it has ended."""


class DescriptionChanged(ExperimentRequest, frozen=True, kw_only=True, omit_defaults=True):
    """A user changed what the experiment is called and filed under; None: as it was."""

    TYPE: ClassVar[str] = "rung.experiment.description_changed.v1"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    name: str | None = None
    description: str | None = None
    labels: list[str] | None = None
    add_labels: list[str] = field(default_factory=list)
    remove_labels: list[str] = field(default_factory=list)
    notes: str | None = None
    archived: bool | None = None
    version: int | None = None
    """How many changes the user had seen: it is without effect where there are more."""


class ExperimentMoved(ExperimentRequest, frozen=True, kw_only=True):
    """A user moved the experiment to another workspace, or to another project of its own."""

    TYPE: ClassVar[str] = "rung.experiment.moved.v1"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    workspace_id: str
    project_id: str
    """Of that workspace."""


class DeletionRequested(ExperimentRequest, frozen=True, kw_only=True, omit_defaults=True):
    """A user asked to delete an experiment that has ended; its records in the ledger stay."""

    TYPE: ClassVar[str] = "rung.experiment.deletion_requested.v1"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc", "gateway")

    trials: int
    """How many it has."""
    despite: list[str] = field(default_factory=list)
    """Experiments that started from its checkpoints, as the user was shown them."""
    until_ms: int | None = None
    """Since 1970, by the clock of the gateway: so long the deletion can be taken back. None: it is
    deleted at once."""
    area: str = ""
    """The storage area of the experiment's checkpoints, which is forgotten once it has ended."""


class RestorationRequested(ExperimentRequest, frozen=True, kw_only=True):
    """A user asked to take the deletion of an experiment back; ignored once it is carried out."""

    TYPE: ClassVar[str] = "rung.experiment.restoration_requested.v1"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc", "gateway")


class DeletionDue(Struct, frozen=True, kw_only=True):
    """By the clock of checkpoint-gc it is so late; a deletion that waits for it is carried out."""

    TYPE: ClassVar[str] = "rung.experiment.deletion_due.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc",)

    experiment_id: str
    at_ms: int
    """Since 1970."""


class DeletionDecision(Struct, frozen=True, kw_only=True):
    """A decision of checkpoint-gc on the deletion of an experiment."""

    TOPIC: ClassVar[str] = topic.RETIREMENTS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc", "gateway")

    experiment_id: str


class DeletionScheduled(DeletionDecision, frozen=True, kw_only=True):
    """The experiment is hidden, and is deleted once that time is over."""

    TYPE: ClassVar[str] = "rung.experiment.deletion_scheduled.v1"

    trials: int
    until_ms: int
    """Since 1970."""
    despite: list[str] = field(default_factory=list)
    """As in the request."""


class ExperimentRestored(DeletionDecision, frozen=True, kw_only=True):
    """The deletion is taken back: the experiment is as it was."""

    TYPE: ClassVar[str] = "rung.experiment.restored.v1"

    reason: str
    """Why; empty: a user asked for it."""


class ExperimentRetired(DeletionDecision, frozen=True, kw_only=True, omit_defaults=True):
    """The experiment is deleted: its checkpoints, metrics and log lines go."""

    TYPE: ClassVar[str] = "rung.experiment.retired.v1"

    trials: int
    area: str = ""
    """The storage area of its checkpoints."""


class ExperimentDeleted(Struct, frozen=True, kw_only=True):
    """The checkpoints of a deleted experiment are gone from the object store."""

    TYPE: ClassVar[str] = "rung.experiment.deleted.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    experiment_id: str


class BracketPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One bracket of a search: its rungs, shortest first, in units of the time metric.

    `lengths` is empty where trials have no length of their own (they end by themselves).
    """

    bracket: int
    lengths: list[int]
    trials: int
    """How many trials the bracket starts; for `single`, `grid`, `random` all of them."""
    trained: list[int] = field(default_factory=list)
    """How many of them are expected to train to each length; empty: as successive halving does."""


class SearchPlanned(SearchDecision, frozen=True, kw_only=True):
    """The plan of a search, made of its configuration."""

    TYPE: ClassVar[str] = "rung.search.planned.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "gateway", "webhooks")

    method: str
    time_metric: str
    brackets: list[BracketPlan]


class SearchExtended(SearchDecision, frozen=True, kw_only=True):
    """The plan of a search has changed, because its user asked for more."""

    TYPE: ClassVar[str] = "rung.search.extended.v1"

    brackets: list[BracketPlan]
    """All of the plan, in place of the one before."""


class SearchDeferred(SearchDecision, frozen=True, kw_only=True):
    """More follows from what is on record than is decided in one step; the rest is decided next.

    A relay answers it with `rung.search.continued.v1`.
    """

    TYPE: ClassVar[str] = "rung.search.deferred.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher",)


class SearchContinued(Struct, frozen=True, kw_only=True):
    """The decisions before `rung.search.deferred.v1` are on record: the next of them follow."""

    TYPE: ClassVar[str] = "rung.search.continued.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "searcher"
    READERS: ClassVar[tuple[str, ...]] = ("searcher",)

    experiment_id: str


class ResourcesChanged(SearchDecision, frozen=True, kw_only=True):
    """What waits and trains in this pool for the experiment has these values from here on.

    Where the pool is another one than before, the runs of the one before are withdrawn as well.
    """

    TYPE: ClassVar[str] = "rung.experiment.resources_changed.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "scheduler", "gateway")
    RELAYED: ClassVar[Relayed] = Relayed(topic.POOLS, "scheduler")

    pool: str
    priority: int
    weight: float
    max_slots: int | None


class LimitReached(SearchDecision, frozen=True, kw_only=True):
    """The experiment has used its slot-hours: its runs checkpoint and leave, and it ends."""

    TYPE: ClassVar[str] = "rung.experiment.limit_reached.v1"

    max_slot_hours: float
    slot_ms: int
    """Slots times milliseconds that it had used, as counted."""


class ExperimentPaused(SearchDecision, frozen=True, kw_only=True):
    """The searcher withdraws the experiment's runs until it is resumed."""

    TYPE: ClassVar[str] = "rung.experiment.paused.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "gateway", "webhooks")


class ExperimentResumed(SearchDecision, frozen=True, kw_only=True):
    """The searcher requests the experiment's runs again."""

    TYPE: ClassVar[str] = "rung.experiment.resumed.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "gateway", "webhooks")


class ExperimentEnded(SearchDecision, frozen=True, kw_only=True):
    """Every trial is closed and no more will come."""

    TYPE: ClassVar[str] = "rung.experiment.ended.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "checkpoint-gc", "gateway", "webhooks")
    RELAYED: ClassVar[Relayed] = Relayed(topic.EXPERIMENTS, "checkpoint-gc")

    state: ExperimentState
    reason: str

"""Events of an experiment as a whole."""

from typing import Any, ClassVar, Literal

from msgspec import Struct, field

from rung.events import topic
from rung.events.topic import Relayed

ExperimentState = Literal["completed", "errored", "canceled"]


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
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "checkpoint-gc", "gateway")

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

    method: str
    time_metric: str
    brackets: list[BracketPlan]


class ExperimentPaused(SearchDecision, frozen=True, kw_only=True):
    """The searcher withdraws the experiment's runs until it is resumed."""

    TYPE: ClassVar[str] = "rung.experiment.paused.v1"


class ExperimentResumed(SearchDecision, frozen=True, kw_only=True):
    """The searcher requests the experiment's runs again."""

    TYPE: ClassVar[str] = "rung.experiment.resumed.v1"


class ExperimentEnded(SearchDecision, frozen=True, kw_only=True):
    """Every trial is closed and no more will come."""

    TYPE: ClassVar[str] = "rung.experiment.ended.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "checkpoint-gc", "gateway")
    RELAYED: ClassVar[Relayed] = Relayed(topic.EXPERIMENTS, "checkpoint-gc")

    state: ExperimentState
    reason: str

"""The state of one experiment: what it asks to be kept, and the checkpoints of its trials."""

from typing import Any

import msgspec
from msgspec import Struct, field

from rung.methods.table import options_named

Rank = tuple[float, int, str]
"""Cost, steps completed, id: sorts the best first."""


class Policy(Struct, frozen=True, kw_only=True):
    """What an experiment asks to be kept, and by which metric."""

    metric: str
    smaller_is_better: bool = True
    experiment_best: int = 0
    trial_best: int = 1
    trial_latest: int = 1

    def __str__(self) -> str:
        return (
            f"best {self.trial_best} of trial, latest {self.trial_latest} of trial, "
            f"best {self.experiment_best} of experiment"
        )


class Checkpoint(Struct, kw_only=True):
    """One checkpoint that lies in the store."""

    run: int
    steps: int
    arrival: int
    """Counted over the experiment."""
    late: bool
    """Its run was over when it was stored."""
    cost: float | None = None
    """The metric of the validation at its step, the lower the better."""
    damaged: str | None = None

    def rank(self, checkpoint_id: str) -> Rank | None:
        """Return its place among the best, None if it has none."""
        if self.cost is None or self.damaged is not None:
            return None
        return self.cost, self.steps, checkpoint_id


class Trial(Struct, kw_only=True):
    """One trial: what it saved and how it did."""

    ended: bool = False
    runs_over: int = 0
    """The highest run that is over."""
    lost: list[int] = field(default_factory=list[int])
    """Runs that were lost, and of whose ends their agents have not reported."""
    under_way: list[str] = field(default_factory=list[str])
    """Ids of checkpoints that are still to come, of runs that are over."""
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict[str, Checkpoint])
    costs: dict[str, dict[str, float | None]] = field(
        default_factory=dict[str, dict[str, float | None]]
    )
    """Steps → run → the metric, the lower the better; None: it was not finite."""

    def cost_at(self, steps: int, run: int) -> float | None:
        """Return how good the trial was after so many steps."""
        costs = self.costs.get(str(steps))
        if not costs:
            return None
        return costs[str(run) if str(run) in costs else max(costs, key=int)]


class State(Struct, kw_only=True):
    """One experiment."""

    experiment_id: str
    level: int = 1
    """The logic level of its decisions."""
    policy: Policy | None = None
    over: bool = False
    """Whether the experiment has ended."""
    trials: dict[str, Trial] = field(default_factory=dict[str, Trial])
    trial_of: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoint id → trial id, of those that are neither retired nor deleted."""
    ranking: list[Rank] = field(default_factory=list[Rank])
    """All that have a rank, the best first."""
    pinned: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoint id → who wants it."""
    shares: bool = False
    """Whether the search holds what its trials store."""
    held: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoint id → trial id, of those that the search has not released."""
    retired: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoint id → trial id, of those whose files are still to be deleted."""
    arrivals: int = 0


def policy_of(config: dict[str, Any]) -> Policy:
    """Return what an experiment's complete configuration says about retention.

    Raises:
        msgspec.ValidationError: it is not one that a gateway lets pass.
    """
    known = msgspec.convert(config, _Config)
    storage = known.checkpoint_storage
    return Policy(
        metric=known.searcher.metric,
        smaller_is_better=known.searcher.smaller_is_better,
        experiment_best=storage.save_experiment_best,
        trial_best=storage.save_trial_best,
        trial_latest=storage.save_trial_latest,
    )


def shares_checkpoints(config: dict[str, Any]) -> bool:
    """Return whether trials of the configured search start from the checkpoints of others."""
    method = options_named(config["searcher"].get("name"))
    return method is not None and method.SHARES


class _Storage(Struct):
    save_experiment_best: int = 0
    save_trial_best: int = 1
    save_trial_latest: int = 1


class _Searcher(Struct):
    metric: str
    smaller_is_better: bool = True


class _Config(Struct):
    searcher: _Searcher
    checkpoint_storage: _Storage = field(default_factory=_Storage)

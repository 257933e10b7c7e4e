"""The state of one experiment: what it asks to be kept, and the checkpoints of its trials."""

from typing import Any

import msgspec
from msgspec import Struct, field

from rung.events.experiment import DeletionRequested, DeletionScheduled
from rung.methods.table import options_named
from rung.retention import Checkpoint, Policy, Rank


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
    best: tuple[float, int] | None = None
    """Cost and steps of its best validation."""

    def cost_at(self, steps: int, run: int | None = None) -> float | None:
        """Return how good the trial was after so many steps, in a run or else in the newest."""
        costs = self.costs.get(str(steps))
        if not costs:
            return None
        return costs[str(run) if str(run) in costs else max(costs, key=int)]

    def validated(self, steps: int, run: int, cost: float | None) -> None:
        """Fold a validation, which replaces an earlier one of the run at that step."""
        self.costs.setdefault(str(steps), {})[str(run)] = cost
        changed = [steps]
        if self.best is not None and self.best[1] == steps:
            self.best, changed = None, [int(each) for each in self.costs]
        for each in changed:
            found = self.cost_at(each)
            if found is not None and (self.best is None or (found, each) < self.best):
                self.best = found, each


class State(Struct, kw_only=True):
    """One experiment."""

    experiment_id: str
    level: int = 1
    """The logic level of its decisions."""
    area: str = ""
    """The storage area of its checkpoints; of a closed experiment, as requests name it."""
    policy: Policy | None = None
    over: bool = False
    """Whether the experiment has ended."""
    closed: bool = False
    """Whether it has, and no more checkpoints are to be expected: of it only is known what stays,
    and what goes."""
    deletion: DeletionRequested | None = None
    """A request to delete the experiment that came before its end."""
    scheduled: DeletionScheduled | None = None
    """A deletion that can still be taken back."""
    deleted: bool = False
    """Whether the experiment is deleted."""
    going: bool = False
    """Whether its files are still to be deleted."""
    trials: dict[str, Trial] = field(default_factory=dict[str, Trial])
    trial_of: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoint id → trial id, of those that are neither retired nor deleted."""
    ranking: list[Rank] = field(default_factory=list[Rank])
    """All that have a rank, the best first."""
    pinned: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Checkpoint id → the experiments that start from it."""
    registered: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Checkpoint id → the versions of models for which it stays."""
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

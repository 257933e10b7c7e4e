"""The retention policy: which checkpoints of a trial nobody wants any more.

Kept is the union of

* the best n of the experiment, the best n and the latest n of each trial (`checkpoint_storage` of
  the experiment file; best by the searcher's metric, latest by steps completed);
* what is pinned;
* of a trial that may train on, the newest two: one to go on from, one in case that is damaged.

A checkpoint without a finite value of the metric has no rank: it can be among the latest but not
among the best. It competes with those of its own trial only. Of two that are equally good, the one
with fewer steps is better, then the smaller id. Of two at one step, the one stored later is newer,
as it is to the searcher.

A run that was given up may go on storing until its agent learns of it. The searcher does not
restore what came *late*, so the newest two are counted twice: over all, and over those in time.

Damaged checkpoints are not wanted, unless pinned, and count nowhere.
"""

from collections.abc import Collection, Iterable, Mapping
from heapq import nlargest, nsmallest
from typing import Final, NamedTuple

from msgspec import Struct

LIVE_NEWEST: Final = 2
"""How many of its newest checkpoints a trial that may train on keeps."""

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


class Unwanted(NamedTuple):
    """A checkpoint that may go, and why."""

    checkpoint_id: str
    reason: str


def unwanted(
    policy: Policy,
    checkpoints: Mapping[str, Checkpoint],
    *,
    live: bool,
    best_of_experiment: Collection[str],
    pinned: Collection[str],
) -> list[Unwanted]:
    """Return which of a trial's checkpoints may go, in order of their arrival.

    Args:
        policy: of the experiment.
        checkpoints: of the trial, by id.
        live: the trial may train on.
        best_of_experiment: ids of the best of all trials, as many as the policy wants.
        pinned: ids that are kept whatever happens.
    """
    whole = {name: found for name, found in checkpoints.items() if found.damaged is None}
    ranks = [rank for name, found in whole.items() if (rank := found.rank(name))]
    kept = {name for _, _, name in nsmallest(policy.trial_best, ranks)}
    kept.update(_newest(policy.trial_latest, whole.items()))
    if live:
        kept.update(_newest(LIVE_NEWEST, whole.items()))
        kept.update(_newest(LIVE_NEWEST, (pair for pair in whole.items() if not pair[1].late)))
    reason = f"not among {policy}" + (f", newest {LIVE_NEWEST} of a live trial" if live else "")
    return [
        Unwanted(name, reason if found.damaged is None else f"damaged: {found.damaged}")
        for name, found in checkpoints.items()
        if name not in pinned and name not in kept and name not in best_of_experiment
    ]


def _newest(count: int, checkpoints: Iterable[tuple[str, Checkpoint]]) -> list[str]:
    ages = ((found.steps, found.arrival, name) for name, found in checkpoints)
    return [name for _, _, name in nlargest(count, ages)]

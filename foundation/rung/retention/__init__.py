"""The rules of retention: which checkpoints of a trial a policy keeps.

By them checkpoint-gc decides, and the gateway shows what a change of the policy would delete.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import nlargest, nsmallest
from typing import Final

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


def unwanted(
    policy: Policy,
    checkpoints: Mapping[str, Checkpoint],
    best_of_experiment: Collection[str],
    *,
    ended: bool,
    best_steps: int | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield the checkpoints of a trial that the policy does not keep, and why, by arrival.

    Args:
        policy: of its experiment.
        checkpoints: all that the trial has, by id.
        best_of_experiment: those that are kept as the best of all trials.
        ended: whether the trial will never train again.
        best_steps: the steps of the trial's best validation; the checkpoint nearest to it is its
            best where none has a value. None: there is none, or the experiment's level is below 4.
    """
    intact = {name: found for name, found in checkpoints.items() if found.damaged is None}
    ranks = [rank for name, found in intact.items() if (rank := found.rank(name))]
    kept = {name for _, _, name in nsmallest(policy.trial_best, ranks)}
    if intact and not ranks and policy.trial_best and best_steps is not None:
        kept.add(min(reversed(intact), key=lambda name: nearness(intact[name].steps, best_steps)))
    kept.update(_newest(policy.trial_latest, intact.items()), best_of_experiment)
    reason = f"not among {policy}"
    if not ended:
        kept.update(restorable(checkpoints))
        reason += f", newest {LIVE_NEWEST} of a live trial"
    for name, found in checkpoints.items():
        if name not in kept:
            yield name, reason if found.damaged is None else f"damaged: {found.damaged}"


def nearness(steps: int, best_steps: int) -> tuple[int, int]:
    """Return a sort key: the nearest to a validation first, of two as near the later."""
    return abs(steps - best_steps), -steps


def restorable(checkpoints: Mapping[str, Checkpoint]) -> set[str]:
    """Return the checkpoints from which a trial that may train on may resume."""
    intact = [(name, found) for name, found in checkpoints.items() if found.damaged is None]
    in_time = [(name, found) for name, found in intact if not found.late]
    return {*_newest(LIVE_NEWEST, intact), *_newest(LIVE_NEWEST, in_time)}


def _newest(count: int, checkpoints: Iterable[tuple[str, Checkpoint]]) -> list[str]:
    ages = ((found.steps, found.arrival, name) for name, found in checkpoints)
    return [name for _, _, name in nlargest(count, ages)]

"""Rank states: generators and running sums of each rank, in the chief's checkpoint.

They are stored under `ranks`, and restored by the same number of ranks. With another number, all
ranks but the first get new generators, and the first gets all the sums.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rung import core
from rung.training import rng
from rung.training.seeds import Domain, derive


def gathered(ranks: core.DistributedContext, own: dict[str, Any]) -> dict[str, Any]:
    """Return the state to store: this rank's own, on the chief with those of all ranks.

    All ranks must call this, and none returns before all have. A single process has only its own.
    """
    if ranks.size == 1:
        return own
    every = ranks.allgather(own)
    return own | {"ranks": every} if ranks.is_chief else own


class Share(NamedTuple):
    """The part of the stored states that a rank restores."""

    own: dict[str, Any] | None
    """Its own, if the number of ranks is the same; the chief restores the chief's in any case."""
    to_add: list[dict[str, Any]]
    """States whose sums it adds up."""


def share_of(ranks: core.DistributedContext, kept: Mapping[str, Any]) -> Share:
    """Return the part for this rank of the state that `gathered` returned on the chief."""
    every: list[dict[str, Any]] = kept.get("ranks") or [dict(kept)]
    if len(every) == ranks.size:
        own = every[ranks.rank]
        return Share(own, [own])
    return Share(every[0], every) if ranks.is_chief else Share(None, [])


def seed_of(ranks: core.DistributedContext, seed: int, batches: int) -> int:
    """Return the seed of new generators of a rank.

    Args:
        ranks: those that train together.
        seed: of the trial.
        batches: the step at which the rank begins.
    """
    return derive(seed, Domain.RANK, ranks.rank, batches)


def new_generators(
    ranks: core.DistributedContext, seed: int, batches: int
) -> rng.Generators | None:
    """Return new generators for a rank; None on the chief, which keeps its own."""
    return None if ranks.is_chief else rng.from_seed(seed_of(ranks, seed, batches))

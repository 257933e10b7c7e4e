"""What each rank of a training has of its own, as part of the checkpoint that the chief stores.

`training.pt` holds under `ranks` each rank's generators and averages. As many ranks take these up
again; another number begins new generators for all but the first.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

from rung import core
from rung.torch import rng
from rung.torch.averages import TrainingAverages, merged

_RANK: Final = 4


def gathered(
    ranks: core.DistributedContext,
    averages: TrainingAverages,
    generators: rng.Generators,
    data: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return what ranks have of their own, and what is the same whoever says it.

    All ranks must call this; others than the chief get nothing.

    Args:
        ranks: those that train together.
        averages: of this rank.
        generators: of this rank.
        data: the position in the data; None if this rank does not know it.
    """
    own = {
        "generators": rng.to_json(generators),
        "generator": generators.torch.numpy(),
        "generators_cuda": [state.numpy() for state in generators.cuda],
        "averages": averages.state_dict(),
    }
    together = ranks.gather((own, data))
    if together is None:
        return {}
    said = [
        each
        | {
            "generator": torch.tensor(each["generator"]),
            "generators_cuda": [torch.tensor(state) for state in each["generators_cuda"]],
        }
        for each, _ in together
    ]
    positions = [position for _, position in together if position is not None]
    return {
        "ranks": said,
        "averages": merged([each["averages"] for each in said]),
        "data": positions[-1] if positions else None,
    }


def of_rank(ranks: core.DistributedContext, training: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what this rank had of its own, if there were as many ranks as now."""
    found = training.get("ranks")
    if not found or len(found) != ranks.size:
        return None
    own: dict[str, Any] = found[ranks.rank]
    return own


def new_generators(
    ranks: core.DistributedContext, seed: int, batches: int
) -> rng.Generators | None:
    """Return what a rank that has no generators begins with; None: the chief, which has them.

    Args:
        ranks: those that train together.
        seed: of the trial.
        batches: at which step it begins.
    """
    if ranks.is_chief:
        return None
    return rng.from_seed(rng.derive(seed, _RANK, ranks.rank, batches))

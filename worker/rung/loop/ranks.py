"""The ranks of a run in a framework's loop that trains with torch's DistributedDataParallel.

The process group is joined before the framework asks for one, so that it is the one that the
experiment file wants; the framework finds the launcher's variables as under `torchrun`.

What a rank has of its own (generators, sums of an epoch) lies in the chief's checkpoint under
`ranks`. As many ranks take these up again; another number begins new generators for all but the
first, which gets all that is to be added up.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from rung import core
from rung.loop.section import section_of
from rung.torch import ranks as torch_ranks
from rung.torch import rng
from rung.torch.nested import mapped
from rung.torch.parallel import Parallel

_ACCELERATE: Final = {"ACCELERATE_USE_CPU": "true", "ACCELERATE_TORCH_DEVICE": "cpu"}
"""Without these Accelerate takes each CPU slot for a process alone, or numbers the CPUs by ranks
and cannot load what it saved."""


@contextlib.contextmanager
def together(run: core.Context) -> Iterator[None]:
    """Have the ranks of a run in one process group while the block lasts.

    Raises:
        NotJoined: the experiment file asks for what does not go together with these loops.
    """
    if run.distributed.size == 1:
        yield
        return
    section_of(run, "the loop of Lightning or Transformers", "torch")
    parallel = Parallel(run)
    if parallel.device.type == "cpu":
        for name, value in _ACCELERATE.items():
            os.environ.setdefault(name, value)
    yield
    parallel.close()


def share_buffers(model: nn.Module) -> None:
    """Give every rank the chief's buffers (running means and the like), before all validate."""
    for buffer in model.buffers():
        torch.distributed.broadcast(buffer, 0)


def gathered(ranks: core.DistributedContext, own: dict[str, Any]) -> dict[str, Any]:
    """Return what to keep: what this rank has of its own, on the chief with that of all ranks.

    All ranks must call this; one process alone keeps its own and nothing else. Tensors come by way
    of the CPU: one that is pickled on a GPU would be made on the GPU of that number elsewhere.
    """
    if ranks.size == 1:
        return own
    everything = ranks.allgather(mapped(own, lambda tensor: tensor.detach().cpu()))
    return own | {"ranks": everything} if ranks.is_chief else own


class Share(NamedTuple):
    """What a rank takes up of what was kept."""

    own: dict[str, Any] | None
    """Its own, if there were as many ranks; the chief takes up the chief's in any case."""
    to_add: list[dict[str, Any]]
    """Those whose sums it goes on with."""


def share_of(ranks: core.DistributedContext, kept: Mapping[str, Any]) -> Share:
    """Return what this rank takes up of what `gathered` returned on the chief."""
    everything: list[dict[str, Any]] = kept.get("ranks") or [dict(kept)]
    if len(everything) == ranks.size:
        own = everything[ranks.rank]
        return Share(own, [own])
    return Share(everything[0], everything) if ranks.is_chief else Share(None, [])


def new_generators(run: core.Context, batches: int) -> rng.Generators | None:
    """Return what a rank that has no generators begins with; None: the chief, which has them."""
    return torch_ranks.new_generators(run.distributed, run.seed, batches)

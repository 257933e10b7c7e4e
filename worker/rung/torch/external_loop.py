"""Torch in the loops of Lightning and Transformers: the start of a run, and its ranks.

They train with torch's DistributedDataParallel.

The process group is initialised before the framework does so, with the options of the experiment
file; the framework reads the launcher's variables as under `torchrun`.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final, Unpack

import structlog
import torch
from torch import nn

from rung import core
from rung.torch import determinism
from rung.torch.data_parallel import Parallel
from rung.torch.pytree import mapped
from rung.training.determinism import deterministic
from rung.training.distributed_config import distributed_config
from rung.training.rng import Generators
from rung.training.setup import InitArguments, seeded_run
from rung.training.states import rank_states

_ACCELERATE: Final = {"ACCELERATE_USE_CPU": "true", "ACCELERATE_TORCH_DEVICE": "cpu"}
"""Without these Accelerate treats each CPU slot as a single process, or numbers CPU devices by
rank and cannot load its own checkpoints."""

_log = structlog.get_logger("rung")


@contextlib.contextmanager
def init(**arguments: Unpack[InitArguments]) -> Iterator[core.Context]:
    """Yield the run that this process is; every generator is seeded.

    Where the run has several slots, this is one of its ranks, and they are together.

    Make the model inside. The arguments are those of `rung.core.init`.
    """
    with seeded_run(**arguments) as run:
        if deterministic(run):
            determinism.demand()
        with together(run):
            yield run


def tell(run: core.Context, device: torch.device) -> None:
    """Log what cannot be exact on a device."""
    if run.distributed.is_chief:
        where = determinism.Circumstances(device, deterministic(run), run.distributed.size)
        for text in determinism.of_device(where):
            _log.warning(text)


@contextlib.contextmanager
def together(run: core.Context) -> Iterator[None]:
    """Connect the ranks of a run in a process group while the block lasts.

    Raises:
        NotJoined: the experiment file has options that these loops do not support.
    """
    if run.distributed.size == 1:
        yield
        return
    distributed_config(run, "the loop of Lightning or Transformers", "torch")
    parallel = Parallel(run)
    if parallel.device.type == "cpu":
        for name, value in _ACCELERATE.items():
            os.environ.setdefault(name, value)
    yield
    parallel.close()


def share_buffers(model: nn.Module) -> None:
    """Broadcast the chief's buffers, such as running means, to all ranks before a validation."""
    for buffer in model.buffers():
        torch.distributed.broadcast(buffer, 0)


def gathered(ranks: core.DistributedContext, own: dict[str, Any]) -> dict[str, Any]:
    """Return the state to store, as `rung.training.states.rank_states.gathered`.

    Tensors are copied to the CPU: one that is pickled on a GPU is unpickled on the GPU of the same
    index.
    """
    if ranks.size == 1:
        return own
    return rank_states.gathered(ranks, mapped(own, lambda tensor: tensor.detach().cpu()))


def new_generators(run: core.Context, batches: int) -> Generators | None:
    """Return new generators for a rank; None on the chief, which keeps its own."""
    return rank_states.new_generators(run.distributed, run.seed, batches)

"""Lightning's own DistributedDataParallel strategy, told by Rung which rank of how many this is.

A script that says nothing about devices or strategies gets it by Lightning's registry and by the
defaults that Lightning reads from the environment; so does one that says `strategy="ddp"`. The
ranks' parts of a batch may be uneven; each loss weighs as much as its part.
"""

import itertools
import os
from typing import Any, Final

import torch
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from torch.nn.parallel import DistributedDataParallel

from rung import core
from rung.torch.ddp_buckets import settle

_KINDS: Final = ("ddp", "ddp_spawn", "ddp_fork", "ddp_notebook")
"""Lightning's names for it, by how it starts processes; here they run already."""
_UNUSED: Final = {
    "": False,
    "_find_unused_parameters_false": False,
    "_find_unused_parameters_true": True,
}


class Slots(ClusterEnvironment):  # type: ignore[misc]  # Lightning may not be installed
    """The ranks of a run, over any number of machines, as many on each as there are slots."""

    def __init__(self, ranks: core.DistributedContext) -> None:
        super().__init__()
        self._ranks = ranks

    @property
    def creates_processes_externally(self) -> bool:
        """The agent started all of them."""
        return True

    @property
    def main_address(self) -> str:
        """Where the first rank is."""
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        """And at which port."""
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        """Accelerators are not looked for."""
        return False

    def world_size(self) -> int:
        """Return how many ranks there are."""
        return self._ranks.size

    def set_world_size(self, size: int) -> None:
        """Lightning counts devices and machines; the agent knows better."""

    def global_rank(self) -> int:
        """Return which of them this is."""
        return self._ranks.rank

    def set_global_rank(self, rank: int) -> None:
        """Lightning counts devices and machines; the agent knows better."""

    def local_rank(self) -> int:
        """Return which of those on this machine."""
        return self._ranks.local_rank

    def node_rank(self) -> int:
        """Return which machine."""
        return self._ranks.cross_rank


class Together(DDPStrategy):  # type: ignore[misc]  # Lightning may not be installed
    """Each rank computes its part of the batch, and validates its share by itself."""

    def __init__(self, ranks: core.DistributedContext, **options: Any) -> None:
        super().__init__(cluster_environment=Slots(ranks), **options)
        self._ranks = ranks
        self.weight = 1.0
        """How much the loss of the batch at hand counts, beside an even part of it."""

    @property
    def root_device(self) -> torch.device:
        """The device of this rank, however many the script asks for."""
        assert self.parallel_devices is not None
        kind = self.parallel_devices[0].type
        if kind == "cpu":
            return torch.device(kind)
        return torch.device(kind, self._ranks.local_rank % torch.cuda.device_count())

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """What a sampler that shares data by itself needs."""
        return {"num_replicas": self._ranks.size, "rank": self._ranks.rank}

    def configure_ddp(self) -> None:
        """Wrap the module, and have gradients added up in the order of every run."""
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        settle(self.model)

    def backward(self, closure_loss: Any, *arguments: Any, **named: Any) -> Any:
        """Compute gradients that average to those of the whole batch."""
        weighted = closure_loss if self.weight == 1.0 else closure_loss * self.weight
        return super().backward(weighted, *arguments, **named)

    def validation_step(self, *arguments: Any, **named: Any) -> Any:
        """Evaluate without a word to the other ranks, which may have fewer batches."""
        assert self.lightning_module is not None
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*arguments, **named)


def offer(run: core.Context) -> None:
    """Have Lightning choose this strategy where the script leaves the choice to it."""
    section = run.info.trial.config.get("distributed") or {}
    for kind, (suffix, find_unused) in itertools.product(_KINDS, _UNUSED.items()):
        StrategyRegistry.register(
            kind + suffix,
            Together,
            description="DistributedDataParallel over the slots of a trial",
            override=True,
            ranks=run.distributed,
            find_unused_parameters=find_unused or bool(section.get("find_unused_parameters")),
        )
    defaults = {
        "STRATEGY": "ddp",
        "NUM_NODES": str(run.distributed.size),
        "USE_DISTRIBUTED_SAMPLER": "False",  # the batches are shared here
    }
    if section.get("sync_batch_norm") and torch.cuda.is_available():
        defaults["SYNC_BATCHNORM"] = "True"
    for name, value in defaults.items():
        os.environ.setdefault(f"PL_TRAINER_{name}", value)

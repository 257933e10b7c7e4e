"""Data parallel training: one model on several processes.

    ddp      each rank has the whole model; gradients are averaged while they are computed
    fsdp     each rank has a part of every parameter; they are gathered while a block computes

A global batch is split over the ranks, into unequal parts where it is not divisible. Each rank's
loss is weighted by its part, so the average over ranks is the mean over the global batch, for any
number of ranks.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from rung import core
from rung.training.units import InvalidPlan

if TYPE_CHECKING:
    from rung.torch.ddp_model import Replica

_BLOCK_PARAMETERS: Final = 100_000
"""A block of this many parameters or more is sharded by itself."""


class Parallel:
    """The data parallel training of one rank; without effect in a single process."""

    def __init__(self, run: core.Context) -> None:
        """Join the process group, if there are other ranks.

        Raises:
            InvalidPlan: the launcher is not `torch`.
        """
        section = run.info.trial.config.get("distributed") or {}
        self.ranks: Final = run.distributed
        self.sharded: Final = section.get("strategy") == "fsdp" and self.ranks.size > 1
        self._sync_batch_norm = bool(section.get("sync_batch_norm"))
        self._find_unused = bool(section.get("find_unused_parameters"))
        cuda = torch.cuda.is_available()
        self.device: Final = _device(self.ranks) if cuda else torch.device("cpu")
        self._joined = False
        self._replicas: list[Replica] = []
        self._frozen: list[nn.Module] = []
        self._stepped: WeakKeyDictionary[Optimizer, list[int]] = WeakKeyDictionary()
        """Optimizer → how often each replica had been called when it last stepped."""
        if self.several:
            self._join(section)

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self.ranks.size > 1

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module to call in place of a model, which is on the device."""
        if not self.several:
            return model
        if not _is_trained(model):
            self._frozen.append(model)
            return model
        if self._sync_batch_norm and self.device.type == "cuda":
            nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch's
        return self._shard(model) if self.sharded else self._replicate(model)

    def share_buffers(self, models: list[nn.Module]) -> None:
        """Broadcast the chief's buffers, such as running means, to all ranks."""
        if not self.several:
            return
        for model in models:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, 0)

    def refuse_unfrozen(self) -> None:
        """Refuse to train a model that was wholly frozen when it was wrapped.

        Raises:
            InvalidPlan: parameters of one are trained, whose gradients would not be averaged.
        """
        for model in self._frozen:
            if _is_trained(model):
                raise InvalidPlan(
                    f"the model {type(model).__name__} was frozen when it was wrapped, so its"
                    " gradients are not averaged over the slots: call wrap_model before"
                    " requires_grad_(False); parameters may be frozen and unfrozen after that"
                )

    def demand_averaged(self, optimizer: Optimizer) -> None:
        """Check that the gradients with which an optimizer is about to step are averaged.

        They are where the model itself was called. A call of a method of it, or of a layer, goes
        past what averages.

        Raises:
            InvalidPlan: gradients of this rank alone are there.
        """
        calls = [replica.rung_calls for replica in self._replicas]
        before = [*self._stepped.get(optimizer, ()), *(0 for _ in calls)]
        self._stepped[optimizer] = calls
        for replica, then, now in zip(self._replicas, before, calls, strict=False):
            if then == now and _has_gradients(replica.module, optimizer):
                name = type(replica.module).__name__
                raise InvalidPlan(
                    f"gradients of {name} are not averaged, so the slots would train apart:"
                    " the model was not called for them. Call what wrap_model returned, as in"
                    " model(batch), before each context.backward: its forward() may call other"
                    " methods, and return a loss"
                )

    @contextlib.contextmanager
    def validating(self) -> Iterator[None]:
        """Let each rank evaluate by itself in the block, also where it enables gradients."""
        for replica in self._replicas:
            replica.rung_validates = True
        try:
            yield
        finally:
            for replica in self._replicas:
                replica.rung_validates = False

    def close(self) -> None:
        """Destroy the process group, if this has initialised it."""
        if self._joined:
            self._joined = False
            torch.distributed.destroy_process_group()

    def _join(self, section: dict[str, Any]) -> None:
        launcher = section.get("launcher") or "torch"
        if launcher != "torch":
            raise InvalidPlan(
                f"distributed.launcher is {launcher!r}, but rung.torch works over torch's own "
                "process group: use `launcher: torch`"
            )
        cuda = self.device.type == "cuda"
        backend = section.get("backend") or ("nccl" if cuda else "gloo")
        if cuda:
            torch.cuda.set_device(self.device)
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                backend, device_id=self.device if backend == "nccl" else None
            )
            self._joined = True

    def _replicate(self, model: nn.Module) -> nn.Module:
        from rung.torch.ddp_model import Replica  # noqa: PLC0415 - of no use to a single process

        replica = Replica(model, find_unused_parameters=self._find_unused)
        self._replicas.append(replica)
        return replica

    def _shard(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - as above
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - as above

        mesh = init_device_mesh(self.device.type, (self.ranks.size,))
        for block in _blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model


def _is_trained(model: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in model.parameters())


def _has_gradients(model: nn.Module, optimizer: Optimizer) -> bool:
    """Return whether an optimizer has gradients of a model to step with."""
    own = {id(each) for each in model.parameters()}
    return any(
        parameter.grad is not None and bool(parameter.grad.count_nonzero())
        for group in optimizer.param_groups
        for parameter in group["params"]
        if id(parameter) in own
    )


def _device(ranks: core.DistributedContext) -> torch.device:
    """Return the GPU of this rank: by its local rank among the visible ones."""
    if ranks.size == 1:
        return torch.device("cuda")
    return torch.device("cuda", ranks.local_rank % torch.cuda.device_count())


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the large entries of a model's lists of modules, innermost first."""
    for child in model.children():
        yield from _blocks(child)
        if isinstance(model, nn.ModuleList | nn.Sequential):
            size = sum(parameter.numel() for parameter in child.parameters())
            if size >= _BLOCK_PARAMETERS and not isinstance(child, nn.ModuleList):
                yield child

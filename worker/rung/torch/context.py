"""What a trial is made with: hyperparameters, device, and the things that checkpoints keep."""

import contextlib
import enum
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer

from rung import core
from rung.torch.exactness import Kept, demand, note_scaler
from rung.torch.parallel import Parallel
from rung.torch.rng import seed_everything

ModelT = TypeVar("ModelT", bound=nn.Module)
OptimizerT = TypeVar("OptimizerT", bound=Optimizer)
SchedulerT = TypeVar("SchedulerT")
KeptT = TypeVar("KeptT", bound=Kept)


class StepMode(enum.Enum):
    """When the trainer steps a learning-rate scheduler."""

    STEP_EVERY_EPOCH = "epoch"
    STEP_EVERY_BATCH = "batch"
    STEP_EVERY_OPTIMIZER_STEP = "optimizer step"
    MANUAL_STEP = "manual"
    """The trial calls `step` itself."""


class Scheduled(NamedTuple):
    """A scheduler and when it is stepped."""

    scheduler: Any
    mode: StepMode
    frequency: int


class TrialContext:
    """Given to a trial's `__init__`; `init` makes one."""

    def __init__(
        self, run: core.Context, parallel: Parallel, aggregation_frequency: int = 1
    ) -> None:
        self.core: Final = run
        self.parallel: Final = parallel
        self.distributed: Final = run.distributed
        self.device: Final = parallel.device
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.schedulers: list[Scheduled] = []
        self.scaler: Any = None
        self.kept: dict[str, Kept] = {}
        self.batches = 0
        self.epoch = 0
        self.weight = 1.0
        """How much this rank's part of the batch weighs, relative to an equal part."""
        self.computed_at: float | None = None
        """When this step's first loss was there, by the performance counter."""
        self._aggregation = aggregation_frequency
        self._stop = False

    def get_hparams(self) -> dict[str, Any]:
        """Return all hyperparameters."""
        return self.core.hparams

    def get_hparam(self, name: str) -> Any:
        """Return a hyperparameter; `optimizer.lr` reaches into a group."""
        value: Any = self.core.hparams
        for part in [name] if name in value else name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                known = ", ".join(sorted(self.core.hparams)) or "none"
                raise KeyError(f"no hyperparameter {name!r}; there are: {known}")
            value = value[part]
        return value

    def get_global_batch_size(self) -> int:
        """Return the hyperparameter `global_batch_size`."""
        return int(self.get_hparam("global_batch_size"))

    def get_per_slot_batch_size(self) -> int:
        """Return the share of the global batch size that falls to this process."""
        return max(1, self.get_global_batch_size() // self.distributed.size)

    def get_experiment_config(self) -> dict[str, Any]:
        """Return the experiment's complete configuration without its hyperparameters."""
        return self.core.info.trial.config

    def get_trial_seed(self) -> int:
        """Return the trial's seed."""
        return self.core.seed

    def wrap_model(self, model: ModelT) -> ModelT:
        """Put a model on the device and into checkpoints, and share its training between ranks.

        Call what this returns: with several ranks it is not the model itself.
        """
        model.to(self.device)
        self.models.append(model)
        return cast("ModelT", self.parallel.wrap(model))

    def wrap_optimizer(self, optimizer: OptimizerT) -> OptimizerT:
        """Put an optimizer into checkpoints; make it after its model was wrapped."""
        self.optimizers.append(optimizer)
        return optimizer

    def wrap_lr_scheduler(
        self,
        lr_scheduler: SchedulerT,
        step_mode: StepMode = StepMode.STEP_EVERY_EPOCH,
        frequency: int = 1,
    ) -> SchedulerT:
        """Put a scheduler into checkpoints and step it every `frequency` epochs or batches."""
        self.schedulers.append(Scheduled(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def wrap_scaler(self, scaler: Any) -> Any:
        """Put a gradient scaler (mixed precision) into checkpoints."""
        self.scaler = scaler
        return scaler

    def keep(self, name: str, thing: KeptT) -> KeptT:
        """Put anything that has a state into checkpoints: an EMA copy, a sampler, a tracker.

        Its `state_dict` holds tensors and plain values, and its `load_state_dict` is called
        before training goes on. It stays on the device that it is on.
        """
        if self.kept.setdefault(name, thing) is not thing:
            raise ValueError(f"something else is kept as {name!r}; give each thing a name")
        return thing

    def to_device(self, data: Any) -> Any:
        """Return tensors, and what holds them, on the device."""
        match data:
            case torch.Tensor():
                return data.to(self.device, non_blocking=True)
            case dict():
                return {key: self.to_device(value) for key, value in data.items()}
            case tuple() if hasattr(data, "_fields"):
                return type(data)(*(self.to_device(value) for value in data))
            case list() | tuple():
                return type(data)(self.to_device(value) for value in data)
            case _:
                return data

    def backward(self, loss: torch.Tensor) -> None:
        """Compute gradients; where several batches make one step, each weighs its share."""
        if self.computed_at is None:
            self.computed_at = time.perf_counter()
        if self.weight != 1.0:
            loss = loss * self.weight
        scaled = loss / self._aggregation if self._aggregation > 1 else loss
        scaled.backward()  # type: ignore[no-untyped-call]  # torch's own annotations

    def step_optimizer(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[Iterator[nn.Parameter]], Any] | None = None,
        *,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> None:
        """Step an optimizer, and clear its gradients, once enough batches were seen."""
        if (self.batches + 1) % self._aggregation:
            return
        if scaler is not None:
            note_scaler(self.scaler, scaler)
        if clip_grads is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            groups = optimizer.param_groups
            clip_grads(parameter for group in groups for parameter in group["params"])
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
        if auto_zero_grads:
            optimizer.zero_grad()
        if optimizer is next(iter(self.optimizers), optimizer):
            self.step_schedulers(
                StepMode.STEP_EVERY_OPTIMIZER_STEP, (self.batches + 1) // self._aggregation
            )

    def step_schedulers(self, mode: StepMode, count: int) -> None:
        """Step the schedulers of a mode whose turn it is; the trainer's business."""
        for scheduled in self.schedulers:
            if scheduled.mode is mode and count % scheduled.frequency == 0:
                scheduled.scheduler.step()

    def current_train_batch(self) -> int:
        """Return how many batches are complete."""
        return self.batches

    def current_train_epoch(self) -> int:
        """Return how many epochs are complete."""
        return self.epoch

    def set_stop_requested(self, stop_requested: bool) -> None:  # noqa: FBT001 - Determined's
        """Ask the trainer to checkpoint and end the trial after this batch."""
        self._stop = stop_requested

    def get_stop_requested(self) -> bool:
        """Return whether the trial asked to end."""
        return self._stop


@contextlib.contextmanager
def init(  # noqa: PLR0913 - each has a default
    *,
    hparams: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | Path | str | None = None,
    seed: int | None = None,
    restore: str | None = None,
    storage: Path | str | None = None,
    aggregation_frequency: int | None = None,
    deterministic: bool | None = None,
) -> Iterator[TrialContext]:
    """Yield the context of this process's trial; every generator is seeded.

    The first five arguments count where the script is started by hand.

    Args:
        hparams: see `rung.core.init`.
        config: see `rung.core.init`.
        seed: see `rung.core.init`.
        restore: see `rung.core.init`.
        storage: see `rung.core.init`.
        aggregation_frequency: how many batches make one step of the optimizer;
            `optimizations.aggregation_frequency` of the experiment file by default.
        deterministic: refuse operations that have no deterministic implementation, on GPUs;
            `reproducibility.deterministic` of the experiment file by default.
    """
    run = core.init(hparams=hparams, config=config, seed=seed, restore=restore, storage=storage)
    with run:
        file = run.info.trial.config
        if deterministic is None:
            deterministic = bool((file.get("reproducibility") or {}).get("deterministic"))
        if deterministic:
            demand()
        if aggregation_frequency is None:
            optimizations = file.get("optimizations") or {}
            aggregation_frequency = int(optimizations.get("aggregation_frequency") or 1)
        parallel = Parallel(run)
        seed_everything(run.seed)
        yield TrialContext(run, parallel, aggregation_frequency)
        parallel.close()

"""What a trial is made with: hyperparameters, device, and the things that checkpoints keep."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer

from rung import core
from rung.torch import compiling
from rung.torch.board import Board
from rung.torch.exactness import Circumstances, Kept
from rung.torch.nested import moved
from rung.torch.parallel import Parallel
from rung.torch.precision import Precision
from rung.torch.profiling import Profiling
from rung.torch.reducing import MetricReducer, Reducers
from rung.torch.schedule import LRScheduler, Schedules, StepMode

ModelT = TypeVar("ModelT", bound=nn.Module)
OptimizerT = TypeVar("OptimizerT", bound=Optimizer)
SchedulerT = TypeVar("SchedulerT")
KeptT = TypeVar("KeptT", bound=Kept)


class TrialContext:
    """Given to a trial's `__init__`; `init` makes one."""

    def __init__(
        self,
        run: core.Context,
        parallel: Parallel,
        aggregation_frequency: int = 1,
        *,
        average_aggregated_gradients: bool = True,
        deterministic: bool = False,
    ) -> None:
        self.core: Final = run
        self.parallel: Final = parallel
        self.distributed: Final = run.distributed
        self.device: Final = parallel.device
        self.where: Final = Circumstances(self.device, deterministic, run.distributed.size)
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.schedulers: Final = Schedules()
        self.precision: Final = Precision(parallel.device, sharded=parallel.sharded)
        self.board: Final = Board(run.info)
        self.profiling: Final = Profiling(self.board)
        self.reducers: Final = Reducers(run.distributed)
        self.kept: dict[str, Kept] = {}
        self.batches = 0
        self.epoch = 0
        self.batch_in_epoch = 0
        self.epoch_length: int | None = None
        self.weight = 1.0
        """How much this rank's part of the batch weighs, relative to an equal part."""
        self.computed_at: float | None = None
        """When this step's first loss was there, by the performance counter."""
        self._aggregation = aggregation_frequency
        self._divisor = aggregation_frequency if average_aggregated_gradients else 1
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

        Call what this returns: with several ranks it is not the model itself. A compiled model
        stays so.
        """
        model.to(self.device)
        plain = compiling.original(model)
        self.models.append(plain)
        if plain is model or not self.parallel.sharded:
            return cast("ModelT", self.parallel.wrap(model))
        self.parallel.wrap(plain)
        return model

    def compile(self, model: ModelT, **options: Any) -> ModelT:
        """Return a model, wrapped or not, compiled with `torch.compile`'s options."""
        return cast("ModelT", torch.compile(model, **options))

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
        self.schedulers.all.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    @property
    def scaler(self) -> Any:
        """The gradient scaler that checkpoints hold, if there is one."""
        return self.precision.scaler

    def wrap_scaler(self, scaler: Any) -> Any:
        """Put a gradient scaler into checkpoints; scaling and updating are the trial's.

        Call `scaler.update()` where `is_optimizer_step()`. `use_amp` does it all by itself.
        """
        self.precision.wrap(scaler)
        return scaler

    def use_amp(self, *, dtype: torch.dtype | None = None, scaler: Any = None) -> None:
        """Train and validate in mixed precision, with nothing else to write.

        Batches are computed under autocast; where the precision needs it, losses are scaled in
        `backward`, and gradients unscaled before they are clipped in `step_optimizer`.

        Args:
            dtype: torch.float16, the default on a GPU, or torch.bfloat16, elsewhere.
            scaler: in place of torch's own for float16.
        """
        self.precision.use(dtype, scaler)

    @property
    def experimental(self) -> Self:
        """The context itself: Determined has `use_amp` there."""
        return self

    def set_profiler(self, **options: Any) -> None:
        """Profile training with what `torch.profiler.profile` takes, such as a schedule.

        The traces lie in the TensorBoard folder. With several ranks the chief is profiled.
        """
        self.profiling.set(options)

    def get_tensorboard_path(self) -> Path:
        """Return a folder for TensorBoard files; they go into checkpoints and come back."""
        return self.board.path()

    def get_tensorboard_writer(self) -> Any:
        """Return torch's SummaryWriter for that folder; it needs TensorBoard installed."""
        return self.board.writer()

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        *,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Return what collects values for a metric that is no mean of batches.

        Args:
            reducer: gets the list of all values that were given to `update`; or one of your own.
            name: of the metric; None: the reducer returns several by name.
            for_training: whether training reports have it.
            for_validation: whether validations have it.
        """
        made = self.reducers.wrap(reducer, name, training=for_training, validation=for_validation)
        if kept := self.reducers.kept(made):
            self.keep(f"reducer {len(self.reducers)}", kept)
        return made

    def keep(self, name: str, thing: KeptT) -> KeptT:
        """Put anything that has a state into checkpoints: an EMA copy, a sampler, a tracker.

        Its `state_dict` holds tensors and plain values, and its `load_state_dict` is called
        before training goes on. It stays on the device that it is on.
        """
        if self.kept.setdefault(name, thing) is not thing:
            raise ValueError(f"something else is kept as {name!r}; give each thing a name")
        return thing

    def to_device(self, data: Any) -> Any:
        """Return tensors, and what holds them or has a `to` of its own, on the device."""
        return moved(data, self.device)

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        *,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute gradients; where several batches make one step, each weighs its share.

        Args:
            loss: of this batch.
            gradient: see `torch.Tensor.backward`.
            retain_graph: keep what another `backward` needs, of a second loss, say.
            create_graph: so that gradients can themselves be derived.
        """
        if self.computed_at is None:
            self.computed_at = time.perf_counter()
        if self.weight != 1.0:
            loss = loss * self.weight
        shared = loss / self._divisor if self._divisor > 1 else loss
        with self.precision.paused():
            self.precision.scaled(shared).backward(  # type: ignore[no-untyped-call]  # torch's
                gradient, retain_graph=retain_graph, create_graph=create_graph
            )

    def is_optimizer_step(self) -> bool:
        """Return whether this batch completes a step: the last of `aggregation_frequency`."""
        return (self.batches + 1) % self._aggregation == 0

    def step_optimizer(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[list[nn.Parameter]], Any] | None = None,
        *,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> bool:
        """Step an optimizer, and clear its gradients, once enough batches were seen.

        Args:
            optimizer: which.
            clip_grads: gets the optimizer's parameters, whose gradients are no longer scaled.
            auto_zero_grads: whether to clear the gradients.
            scaler: of the gradients; not with `use_amp`.

        Returns:
            Whether it moved: not within the batches of one step, and not where a scaler left
            the step out because gradients were not finite.
        """
        if not self.is_optimizer_step():
            return False
        scaler = self.precision.scaler_of(scaler)
        with self.precision.paused():
            if clip_grads is not None:
                if scaler is not None:
                    scaler.unscale_(optimizer)
                clip_grads([it for group in optimizer.param_groups for it in group["params"]])
            moved = self.precision.step(optimizer, scaler)
            if auto_zero_grads:
                optimizer.zero_grad()
        if moved:
            first = next(iter(self.optimizers), optimizer)
            self.schedulers.after_step(optimizer, first, (self.batches + 1) // self._aggregation)
        return moved

    def is_epoch_start(self) -> bool:
        """Return whether this is the first batch of its epoch."""
        return self.batch_in_epoch == 0

    def is_epoch_end(self) -> bool:
        """Return whether this is the last batch of its epoch, as far as that is known."""
        return self.batch_in_epoch + 1 == self.epoch_length

    def current_train_batch(self) -> int:
        """Return how many batches are complete."""
        return self.batches

    def current_train_epoch(self) -> int:
        """Return how many epochs are complete."""
        return self.epoch

    def set_stop_requested(self, stop_requested: bool) -> None:  # noqa: FBT001 - Determined's
        """Ask the trainer to checkpoint and end the trial after this batch, or this validation.

        On several slots the chief's request counts. It is part of the checkpoint.
        """
        self._stop = stop_requested

    def get_stop_requested(self) -> bool:
        """Return whether the trial asked to end."""
        return self._stop

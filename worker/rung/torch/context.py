"""The context of a trial: hyperparameters, device, and the objects in its checkpoints."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer

from rung import core
from rung.torch import torch_compile
from rung.torch.data_parallel import Parallel
from rung.torch.determinism import Circumstances, Kept
from rung.torch.lr_schedule import LRScheduler, Schedules, StepMode
from rung.torch.metrics.reducers import MetricReducer, Reducers
from rung.torch.metrics.tensorboard import Board
from rung.torch.precision import Precision
from rung.torch.profiling import Profiling
from rung.torch.pytree import moved
from rung.training.batch_size import slot_part
from rung.training.errors import NotResumable
from rung.training.straggler import StragglerDetector

ModelT = TypeVar("ModelT", bound=nn.Module)
OptimizerT = TypeVar("OptimizerT", bound=Optimizer)
SchedulerT = TypeVar("SchedulerT")
KeptT = TypeVar("KeptT", bound=Kept)


class TrialContext:
    """Passed to a trial's `__init__`; created by `init`."""

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
        """The weight of this rank's part of the batch, relative to an equal part."""
        self.straggler: Final = StragglerDetector(run.distributed)
        self.aggregation_frequency: Final = aggregation_frequency
        """How many batches make one step of the optimizer."""
        self._divisor = aggregation_frequency if average_aggregated_gradients else 1
        self._stop = False
        self.training_began = False
        """Whether the trainer has begun: what is wrapped from then on would be lost to a run that
        resumes."""

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
        """Return the hyperparameter `global_batch_size`: of all slots together, per step."""
        return int(self.get_hparam("global_batch_size"))

    def get_per_slot_batch_size(self) -> int:
        """Return a slot's part of the global batch size, for a training data loader.

        The loader's batches are enlarged to the global batch size, and each slot trains its part
        of every one, so no records are lost where it is not divisible.
        """
        return slot_part(self.get_global_batch_size(), self.distributed.size)

    def get_experiment_config(self) -> dict[str, Any]:
        """Return the experiment's complete configuration without its hyperparameters."""
        return self.core.info.trial.config

    def get_trial_seed(self) -> int:
        """Return the trial's seed."""
        return self.core.seed

    def wrap_model(self, model: ModelT) -> ModelT:
        """Put a model on the device and into checkpoints, and train it data parallel.

        Call the returned model: with several ranks it is not the model itself. A compiled model
        stays compiled.

        Raises:
            NotResumable: training has begun, as with all that puts an object into checkpoints.
        """
        self._refuse_in_training("wrap_model")
        model.to(self.device)
        plain = torch_compile.original(model)
        self.models.append(plain)
        if plain is model or not self.parallel.sharded:
            return cast("ModelT", self.parallel.wrap(model))
        self.parallel.wrap(plain)
        return model

    def compile(self, model: ModelT, **options: Any) -> ModelT:
        """Return a model, wrapped or not, compiled with `torch.compile`'s options."""
        return cast("ModelT", torch.compile(model, **options))

    def wrap_optimizer(self, optimizer: OptimizerT) -> OptimizerT:
        """Put an optimizer into checkpoints; create it after its model was wrapped."""
        self._refuse_in_training("wrap_optimizer")
        self.optimizers.append(optimizer)
        return optimizer

    def wrap_lr_scheduler(
        self,
        lr_scheduler: SchedulerT,
        step_mode: StepMode = StepMode.STEP_EVERY_EPOCH,
        frequency: int = 1,
    ) -> SchedulerT:
        """Put a scheduler into checkpoints and step it every `frequency` epochs or batches."""
        self._refuse_in_training("wrap_lr_scheduler")
        self.schedulers.all.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    @property
    def scaler(self) -> Any:
        """The gradient scaler that checkpoints hold, if there is one."""
        return self.precision.scaler

    def wrap_scaler(self, scaler: Any) -> Any:
        """Put a gradient scaler into checkpoints; the trial itself scales and updates.

        Call `scaler.update()` where `is_optimizer_step()`. `use_amp` needs no further code.
        """
        self._refuse_in_training("wrap_scaler")
        self.precision.wrap(scaler)
        return scaler

    def use_amp(self, *, dtype: torch.dtype | None = None, scaler: Any = None) -> None:
        """Train and validate in mixed precision, without further code.

        Batches are computed under autocast; where the precision needs it, losses are scaled in
        `backward`, and gradients unscaled before they are clipped in `step_optimizer`.

        Args:
            dtype: torch.float16, the default on a GPU, or torch.bfloat16, elsewhere.
            scaler: in place of torch's own for float16.
        """
        self._refuse_in_training("use_amp")
        self.precision.use(dtype, scaler)

    @property
    def experimental(self) -> Self:
        """The context itself: Determined has `use_amp` there."""
        return self

    def set_profiler(self, **options: Any) -> None:
        """Profile training; takes the options of `torch.profiler.profile`, such as a schedule.

        Traces are written to the TensorBoard folder. With several ranks the chief is profiled.
        """
        self.profiling.set(options)

    def get_tensorboard_path(self) -> Path:
        """Return a folder for TensorBoard files, which are stored in checkpoints and restored."""
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
        """Return an object that collects values for a metric that is not a mean of batches.

        Args:
            reducer: takes the list of all values passed to `update`; or a `MetricReducer`.
            name: of the metric; None: the reducer returns several by name.
            for_training: whether it is part of training reports.
            for_validation: whether it is part of validations.
        """
        self._refuse_in_training("wrap_reducer")
        made = self.reducers.wrap(reducer, name, training=for_training, validation=for_validation)
        if kept := self.reducers.kept(made):
            self.keep(f"reducer {len(self.reducers)}", kept)
        return made

    def keep(self, name: str, thing: KeptT) -> KeptT:
        """Put any object with a state into checkpoints: an EMA copy, a sampler, a tracker.

        Its `state_dict` must contain tensors and plain values only; its `load_state_dict` is
        called before training resumes. It stays on its device.
        """
        self._refuse_in_training("keep")
        if self.kept.setdefault(name, thing) is not thing:
            raise ValueError(f"keep: another object has the name {name!r}; choose another name")
        return thing

    def _refuse_in_training(self, method: str) -> None:
        if self.training_began:
            raise NotResumable(
                f"context.{method} was called in training, and a run that resumes would begin"
                " without the object, so its state would be lost: call it in the trial's __init__"
            )

    def to_device(self, data: Any) -> Any:
        """Return tensors, containers of tensors, and objects with a `to` method, on the device."""
        return moved(data, self.device)

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        *,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute gradients; the loss is divided where several batches make one step.

        Args:
            loss: of this batch.
            gradient: see `torch.Tensor.backward`.
            retain_graph: see `torch.Tensor.backward`.
            create_graph: see `torch.Tensor.backward`.
        """
        self.straggler.computed()
        self.parallel.refuse_unfrozen()
        if self.weight != 1.0:
            loss = loss * self.weight
        shared = loss / self._divisor if self._divisor > 1 else loss
        with self.precision.paused():
            self.precision.scaled(shared).backward(  # type: ignore[no-untyped-call]  # torch's
                gradient, retain_graph=retain_graph, create_graph=create_graph
            )

    def is_optimizer_step(self) -> bool:
        """Return whether this batch completes a step: the last of `aggregation_frequency`."""
        return (self.batches + 1) % self.aggregation_frequency == 0

    def step_optimizer(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[list[nn.Parameter]], Any] | None = None,
        *,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> bool:
        """Step an optimizer, and clear its gradients, after `aggregation_frequency` batches.

        Args:
            optimizer: which.
            clip_grads: takes the optimizer's parameters, with unscaled gradients.
            auto_zero_grads: whether to clear the gradients.
            scaler: of the gradients; not with `use_amp`.

        Returns:
            Whether a step was made: not within the batches of one step, and not where a scaler
            skipped it because gradients were not finite.

        Raises:
            InvalidPlan: gradients are not averaged over the slots.
        """
        if not self.is_optimizer_step():
            return False
        scaler = self.precision.scaler_of(scaler)
        with self.precision.paused():
            if clip_grads is not None:
                if scaler is not None:
                    scaler.unscale_(optimizer)
                clip_grads([it for group in optimizer.param_groups for it in group["params"]])
            self.parallel.demand_averaged(optimizer)
            moved = self.precision.step(optimizer, scaler)
            if auto_zero_grads:
                optimizer.zero_grad()
        if moved:
            first = next(iter(self.optimizers), optimizer)
            self.schedulers.after_step(
                optimizer, first, (self.batches + 1) // self.aggregation_frequency
            )
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

        On several slots only the chief's request counts. It is part of the checkpoint.
        """
        self._stop = stop_requested

    def get_stop_requested(self) -> bool:
        """Return whether the trial asked to end."""
        return self._stop

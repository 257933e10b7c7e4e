"""A trial's state: `capture` reads that of the moment, `apply` sets it.

Where several ranks train, all must capture, between two steps. What the chief has then holds for
all, and `training` holds under `ranks` what each rank has of its own (`rung.torch.ranks`); of
sharded tensors each rank has its parts. `rung.torch.files` says how it is written.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import torch
from msgspec import Struct

from rung import core
from rung.torch import ranks, rng, shards, tensor_file
from rung.torch.averages import TrainingAverages
from rung.torch.callback import Callback
from rung.torch.compiling import plain_name, with_own_names, with_plain_names
from rung.torch.context import TrialContext
from rung.torch.exactness import Kept, machine
from rung.torch.plain import plain
from rung.torch.plan import Progress
from rung.torch.trial import Trial

FORMAT: Final = 1
FROZEN_BYTES_MIN: Final = 1 << 20
"""From so many bytes on, parameters that are not trained are a file of their own."""


class Parts(Struct, kw_only=True):
    """All that has a state; what `capture` reads and `apply` sets."""

    trial: Trial
    context: TrialContext
    callbacks: Mapping[str, Callback]
    averages: TrainingAverages
    progress: Progress

    @property
    def ranks(self) -> core.DistributedContext:
        """The processes that train it together."""
        return self.context.distributed


class Captured(Struct, kw_only=True):
    """The state of one moment."""

    models: list[dict[str, Any]]
    training: dict[str, Any]
    trainer: dict[str, Any]
    frozen: list[frozenset[str]] = []
    """Of each model, the names of the parameters that are not trained."""
    sharded: bool = False
    """Whether each rank has parts of the tensors."""
    share: Any = None
    """Once it is divided, what this rank writes of the tensors: a `Share`."""


def capture(parts: Parts, data: dict[str, Any] | None, *, fetched: bool = True) -> Captured:
    """Return the state of this moment; where several ranks train, all must call this.

    Args:
        parts: what has a state.
        data: the position in the data.
        fetched: whether some of the last batch fell to this rank.

    Raises:
        NotPlain: some state holds what a checkpoint cannot.
    """
    context = parts.context
    generators = rng.capture()
    # First, for FSDP then has its shards back, and with them the gradients: a validation leaves
    # the model in one piece.
    models = [with_plain_names(model.state_dict()) for model in context.models]
    training = {
        "optimizers": [optimizer.state_dict() for optimizer in context.optimizers],
        "schedulers": [scheduled.scheduler.state_dict() for scheduled in context.schedulers],
        "scheduler_steps": context.schedulers.steps(),
        "scaler": context.scaler.state_dict() if context.scaler is not None else None,
        "gradients": [_gradients(model) for model in context.models],
        "generator": generators.torch,
        "generators_cuda": generators.cuda,
        "data": data,
        "averages": parts.averages.state_dict(),
        "kept": {name: _state_of_kept(kept) for name, kept in context.kept.items()},
        "trial": _own_state(parts.trial),
        "callbacks": {name: hook.state_dict() for name, hook in parts.callbacks.items()},
    }
    if parts.ranks.size > 1:
        position = data if fetched else None
        training |= ranks.gathered(parts.ranks, parts.averages, generators, position)
    checked = {name: plain(value, name) for name, value in training.items()}
    trainer = {
        "format": FORMAT,
        "trial_id": context.core.info.trial.trial_id,
        "progress": msgspec.to_builtins(parts.progress),
        "generators": rng.to_json(generators),
        "machine": machine(),
    }
    for model in models:
        plain(model, "model")
    frozen = [_frozen(model) for model in context.models]
    return Captured(
        models=models,
        training=checked,
        trainer=trainer,
        frozen=frozen,
        sharded=context.parallel.sharded,
    )


def apply(parts: Parts, captured: Captured) -> None:
    """Set models, optimizers and all else but progress, data and generators."""
    context, training = parts.context, captured.training
    for model, state in zip(context.models, captured.models, strict=True):
        shards.load(model, with_own_names(model, state))
    for optimizer, state in zip(context.optimizers, training["optimizers"], strict=True):
        if tensor_file.is_taken_in_whole(optimizer):
            shards.load_optimizer(optimizer, state)
            tensor_file.own_the_rest(optimizer)
        else:
            shards.load_optimizer(optimizer, tensor_file.owned(state))
    for scheduled, state in zip(context.schedulers, training["schedulers"], strict=True):
        scheduled.scheduler.load_state_dict(state)
    context.schedulers.go_on(training.get("scheduler_steps"))
    if context.scaler is not None and training["scaler"]:  # {}: it was disabled
        context.scaler.load_state_dict(training["scaler"])


def apply_moment(parts: Parts, captured: Captured) -> None:
    """Set what belongs to the moment: gradients, averages, own states, the generators."""
    training = captured.training
    for model, stored in zip(parts.context.models, training["gradients"], strict=True):
        gradients = with_plain_names(stored)
        for named, parameter in model.named_parameters():
            if (name := plain_name(named)) in gradients:
                gradient = shards.placed(gradients[name], parameter)
                parameter.grad = gradient.to(parameter.device)
    own = ranks.of_rank(parts.ranks, training)
    if own is not None or parts.ranks.is_chief:
        parts.averages.load_state_dict((own or training)["averages"])
    if training["trial"] is not None:
        parts.trial.load_state_dict(training["trial"])  # type: ignore[attr-defined]  # it has one
    for name, kept in parts.context.kept.items():
        if name in training.get("kept", {}):
            shards.load(kept, with_own_names(kept, training["kept"][name]))
    for name, hook in parts.callbacks.items():
        if name in training["callbacks"]:
            hook.load_state_dict(training["callbacks"][name])


def progress_of(captured: Captured) -> Progress:
    """Return how far the trial was."""
    return msgspec.convert(captured.trainer["progress"], Progress)


def generators_of(parts: Parts, captured: Captured) -> rng.Generators:
    """Return the generators' states of this rank."""
    training, trainer = captured.training, captured.trainer
    own = ranks.of_rank(parts.ranks, training)
    if own is not None:
        return rng.from_json(own["generators"], own["generator"], own["generators_cuda"])
    batches = trainer["progress"]["batches"]
    new = ranks.new_generators(parts.ranks, parts.context.core.seed, batches)
    return new or rng.from_json(
        trainer["generators"], training["generator"], training["generators_cuda"]
    )


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return gradients that the next step adds to; none where they were cleared."""
    return {
        plain_name(name): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _own_state(trial: Trial) -> dict[str, Any] | None:
    if not hasattr(trial, "state_dict") or not hasattr(trial, "load_state_dict"):
        return None
    state: dict[str, Any] = trial.state_dict()
    return state


def _state_of_kept(kept: Kept) -> Any:
    """Return a state as checkpoints have it; names are a model's alone, others keep theirs."""
    state = kept.state_dict()
    return with_plain_names(state) if isinstance(kept, torch.nn.Module) else state


def _frozen(model: torch.nn.Module) -> frozenset[str]:
    """Return the names of the parameters that are not trained, if they are worth a file."""
    named = model.named_parameters()
    frozen = {plain_name(name): it for name, it in named if not it.requires_grad}
    size = sum(parameter.numel() * parameter.element_size() for parameter in frozen.values())
    return frozenset(frozen) if size >= FROZEN_BYTES_MIN else frozenset()

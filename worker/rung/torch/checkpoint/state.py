"""State of a trial: `capture` reads it, `apply` and `apply_moment` set it.

Where several ranks train, all must capture, between two steps. The chief's state is stored, with
each rank's generators and averages under `ranks` of `training`. They are restored by the same
number of ranks; with another number, all ranks but the first get new generators. Of sharded
tensors each rank has its parts. `files` writes and reads captured states.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import torch
from msgspec import Struct

from rung import core
from rung.torch.callback import Callback
from rung.torch.checkpoint import sharded_tensors, tensor_file
from rung.torch.checkpoint.tensor_file import plain
from rung.torch.context import TrialContext
from rung.torch.determinism import Kept, is_kept, machine
from rung.torch.torch_compile import plain_name, with_own_names, with_plain_names
from rung.torch.trial import Trial
from rung.training import rng
from rung.training.averages import TrainingAverages, merged
from rung.training.errors import NotResumable
from rung.training.plan import Progress
from rung.training.states import rank_states

FORMAT: Final = 1
FROZEN_BYTES_MIN: Final = 1 << 20
"""From this size on, parameters that are not trained are stored in a separate file."""

_MISFIT: Final = ("loading state_dict", "loaded state dict")
"""In torch's errors for a state that does not fit."""


class Parts(Struct, kw_only=True):
    """The objects with a state, which `capture` reads and `apply` sets."""

    trial: Trial
    context: TrialContext
    callbacks: Mapping[str, Callback]
    averages: TrainingAverages
    progress: Progress

    @property
    def ranks(self) -> core.DistributedContext:
        """The ranks of the run."""
        return self.context.distributed


class Captured(Struct, kw_only=True):
    """A captured state."""

    models: list[dict[str, Any]]
    training: dict[str, Any]
    trainer: dict[str, Any]
    frozen: list[frozenset[str]] = []
    """For each model, the names of the parameters that are not trained."""
    sharded: bool = False
    """Whether each rank has parts of the tensors."""
    untracked: dict[str, Any] | None = None
    """What has changed beside the states, `untracked_state`; None: nothing."""
    share: Any = None
    """The tensors that this rank writes, a `Share`; set by `files.divided`."""


def demand_storable(parts: Parts, data: Iterable[Any]) -> None:
    """Check that checkpoints can contain the states that the trial's objects have by now.

    A `state_dict` that raises is left to the first checkpoint: it may need what training makes.

    Args:
        parts: the objects with a state.
        data: the data set and the samplers.

    Raises:
        NotPlain: a state contains values that a checkpoint cannot.
    """
    context = parts.context
    states: list[tuple[str, Any]] = [
        *(("model", model) for model in context.models),
        *(("schedulers", scheduled.scheduler) for scheduled in context.schedulers),
        *((f"kept.{name}", kept) for name, kept in context.kept.items()),
        *((f"callbacks.{name}", hook) for name, hook in parts.callbacks.items()),
        *(("trial", thing) for thing in (parts.trial,) if is_kept(thing)),
        *((type(thing).__name__, thing) for thing in data if is_kept(thing)),
    ]
    for name, thing in states:
        try:
            state = thing.state_dict()
        except Exception:  # noqa: BLE001, S112 - any of the user's
            continue
        tensor_file.demand_storable(state, name)


def capture(parts: Parts, data: dict[str, Any] | None, *, fetched: bool = True) -> Captured:
    """Return the current state; where several ranks train, all must call this.

    Args:
        parts: the objects with a state.
        data: the position in the data.
        fetched: whether this rank had a part of the last batch.

    Raises:
        NotPlain: some state contains values that a checkpoint cannot.
    """
    context = parts.context
    generators = rng.capture()
    # First: this makes FSDP reshard its parameters, with their gradients, which a validation has
    # left unsharded.
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
        training |= _gathered(parts.ranks, parts.averages, generators, position)
    checked = {name: plain(value, name) for name, value in training.items()}
    trainer = {
        "format": FORMAT,
        "trial_id": context.core.info.trial.trial_id,
        "progress": msgspec.to_builtins(parts.progress),
        "generators": rng.arrays_to_json(generators),
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
    """Set models, optimizers, schedulers and the scaler.

    Raises:
        NotResumable: a model or an optimizer is another than that of the checkpoint.
    """
    context, training = parts.context, captured.training
    for model, state in zip(context.models, captured.models, strict=True):
        with _misfit_named(f"the model {type(model).__name__}"):
            sharded_tensors.load(model, with_own_names(model, state))
    for optimizer, state in zip(context.optimizers, training["optimizers"], strict=True):
        with _misfit_named(f"the optimizer {type(optimizer).__name__}"):
            if tensor_file.is_taken_in_whole(optimizer):
                sharded_tensors.load_optimizer(optimizer, state)
                tensor_file.own_the_rest(optimizer)
            else:
                sharded_tensors.load_optimizer(optimizer, tensor_file.owned(state))
    for scheduled, state in zip(context.schedulers, training["schedulers"], strict=True):
        scheduled.scheduler.load_state_dict(state)
    context.schedulers.go_on(training.get("scheduler_steps"))
    if context.scaler is not None and training["scaler"]:  # {}: it was disabled
        context.scaler.load_state_dict(training["scaler"])


@contextmanager
def _misfit_named(owner: str) -> Iterator[None]:
    """Replace torch's errors for a state that does not fit by one of a single line."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        if not any(words in text for words in _MISFIT):
            raise
        raise NotResumable(
            f"{owner} is not as it was when the checkpoint was stored, so make it in __init__ as"
            f" it was then: {text}"
        ) from error


def apply_moment(parts: Parts, captured: Captured) -> None:
    """Set gradients, averages, and the states of trial, callbacks and kept objects."""
    training = captured.training
    for model, stored in zip(parts.context.models, training["gradients"], strict=True):
        gradients = with_plain_names(stored)
        for named, parameter in model.named_parameters():
            if (name := plain_name(named)) in gradients:
                gradient = sharded_tensors.placed(gradients[name], parameter)
                parameter.grad = gradient.to(parameter.device)
    own = _of_rank(parts.ranks, training)
    if own is not None or parts.ranks.is_chief:
        parts.averages.load_state_dict((own or training)["averages"])
    if training["trial"] is not None:
        parts.trial.load_state_dict(training["trial"])  # type: ignore[attr-defined]  # it has one
    for name, kept in parts.context.kept.items():
        if name in training.get("kept", {}):
            sharded_tensors.load(kept, with_own_names(kept, training["kept"][name]))
    for name, hook in parts.callbacks.items():
        if name in training["callbacks"]:
            hook.load_state_dict(training["callbacks"][name])


def progress_of(captured: Captured) -> Progress:
    """Return the progress of the trial."""
    return msgspec.convert(captured.trainer["progress"], Progress)


def generators_of(parts: Parts, captured: Captured) -> rng.Generators:
    """Return the generators' states of this rank."""
    training, trainer = captured.training, captured.trainer
    own = _of_rank(parts.ranks, training)
    if own is not None:
        return rng.arrays_from_json(own["generators"], own["generator"], own["generators_cuda"])
    batches = trainer["progress"]["batches"]
    new = rank_states.new_generators(parts.ranks, parts.context.core.seed, batches)
    return new or rng.arrays_from_json(
        trainer["generators"], training["generator"], training["generators_cuda"]
    )


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return accumulated gradients; none where they were cleared."""
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
    """Return a kept object's state; of a model, with the names of the uncompiled one."""
    state = kept.state_dict()
    return with_plain_names(state) if isinstance(kept, torch.nn.Module) else state


def _frozen(model: torch.nn.Module) -> frozenset[str]:
    """Return the names of the parameters that are not trained, if they are large enough."""
    named = model.named_parameters()
    frozen = {plain_name(name): it for name, it in named if not it.requires_grad}
    size = sum(parameter.numel() * parameter.element_size() for parameter in frozen.values())
    return frozenset(frozen) if size >= FROZEN_BYTES_MIN else frozenset()


def _gathered(
    ranks: core.DistributedContext,
    averages: TrainingAverages,
    generators: rng.Generators,
    data: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the ranks' own states, the merged averages and the position in the data.

    All ranks must call this; others than the chief get an empty dict.

    Args:
        ranks: those that train together.
        averages: of this rank.
        generators: of this rank.
        data: the position in the data; None if this rank does not know it.
    """
    own = {
        "generators": rng.arrays_to_json(generators),
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


def _of_rank(ranks: core.DistributedContext, training: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return this rank's own state, if the checkpoint has the same number of ranks."""
    found = training.get("ranks")
    if not found or len(found) != ranks.size:
        return None
    own: dict[str, Any] = found[ranks.rank]
    return own

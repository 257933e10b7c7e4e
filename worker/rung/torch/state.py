"""A trial's state as files of a checkpoint, and back.

    model.pt         the model's state_dict; load it with torch.load(…, weights_only=True)
    model-1.pt …     of further models
    training.pt      optimizers, schedulers, scaler, gradients, torch's generators, position in
                     the data, averages, the trial's and the callbacks' own state
    trainer.json     counters, Python's and NumPy's generators

Where several ranks train, the chief's files hold for all: sharded tensors are brought together,
and `training.pt` holds under `ranks` what each rank has of its own, its generators and averages.
As many ranks take these up again; another number begins new generators for all but the first.

`capture` reads the state of the moment; `write` turns it into files. Only the former must happen
between two steps.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from msgspec import Struct

from rung import core
from rung.torch import rng, shards
from rung.torch.averages import TrainingAverages, merged
from rung.torch.callback import Callback
from rung.torch.context import TrialContext
from rung.torch.plain import plain
from rung.torch.plan import Progress
from rung.torch.trial import Trial

FORMAT: Final = 1
_RANK: Final = 4


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
    whole = shards.whole if context.parallel.sharded else _as_it_is
    training = {
        "optimizers": [whole(optimizer.state_dict()) for optimizer in context.optimizers],
        "schedulers": [scheduled.scheduler.state_dict() for scheduled in context.schedulers],
        "scaler": context.scaler.state_dict() if context.scaler is not None else None,
        "gradients": [whole(_gradients(model)) for model in context.models],
        "generator": generators.torch,
        "generators_cuda": generators.cuda,
        "data": data,
        "averages": parts.averages.state_dict(),
        "trial": _own_state(parts.trial),
        "callbacks": {name: hook.state_dict() for name, hook in parts.callbacks.items()},
    }
    if parts.ranks.size > 1:
        training |= _of_all_ranks(parts, generators, data if fetched else None)
    checked = {name: plain(value, name) for name, value in training.items()}
    trainer = {
        "format": FORMAT,
        "trial_id": context.core.info.trial.trial_id,
        "progress": msgspec.to_builtins(parts.progress),
        "generators": rng.to_json(generators),
    }
    models = [whole(model.state_dict()) for model in context.models]
    for model in models:
        plain(model, "model")
    return Captured(models=models, training=checked, trainer=trainer)


def write(folder: Path, captured: Captured) -> None:
    """Write a captured state into a folder."""
    for index, model in enumerate(captured.models):
        torch.save(model, folder / _model_file(index))
    torch.save(captured.training, folder / "training.pt")
    text = json.dumps(captured.trainer)  # knows NaN, which a metric's best value may be
    (folder / "trainer.json").write_text(text, encoding="utf-8")


def read(folder: Path, models: int) -> Captured:
    """Read what `write` wrote; nothing but tensors and plain values is ever made of it."""
    return Captured(
        models=[_load(folder / _model_file(index)) for index in range(models)],
        training=_load(folder / "training.pt"),
        trainer=json.loads((folder / "trainer.json").read_text(encoding="utf-8")),
    )


def apply(parts: Parts, captured: Captured) -> None:
    """Set models, optimizers and all else but progress, data and generators."""
    context, training = parts.context, captured.training
    for model, state in zip(context.models, captured.models, strict=True):
        shards.load_model(model, state)
    for optimizer, state in zip(context.optimizers, training["optimizers"], strict=True):
        shards.load_optimizer(optimizer, state)
    for scheduled, state in zip(context.schedulers, training["schedulers"], strict=True):
        scheduled.scheduler.load_state_dict(state)
    if context.scaler is not None and training["scaler"] is not None:
        context.scaler.load_state_dict(training["scaler"])


def apply_moment(parts: Parts, captured: Captured) -> None:
    """Set what belongs to the moment: gradients, averages, own states, the generators."""
    training = captured.training
    for model, gradients in zip(parts.context.models, training["gradients"], strict=True):
        for name, parameter in model.named_parameters():
            if name in gradients:
                gradient = shards.like(gradients[name], parameter)
                parameter.grad = gradient.to(parameter.device)
    own = _of_rank(parts.ranks, captured)
    if own is not None or parts.ranks.is_chief:
        parts.averages.load_state_dict((own or training)["averages"])
    if training["trial"] is not None:
        parts.trial.load_state_dict(training["trial"])  # type: ignore[attr-defined]  # it has one
    for name, hook in parts.callbacks.items():
        if name in training["callbacks"]:
            hook.load_state_dict(training["callbacks"][name])


def progress_of(captured: Captured) -> Progress:
    """Return how far the trial was."""
    return msgspec.convert(captured.trainer["progress"], Progress)


def generators_of(parts: Parts, captured: Captured) -> rng.Generators:
    """Return the generators' states of this rank."""
    training, ranks = captured.training, parts.ranks
    own = _of_rank(ranks, captured)
    if own is not None:
        return rng.from_json(own["generators"], own["generator"], own["generators_cuda"])
    if not ranks.is_chief:
        batches = captured.trainer["progress"]["batches"]
        return rng.from_seed(seed_of_rank(parts.context.core.seed, ranks.rank, batches))
    return rng.from_json(
        captured.trainer["generators"], training["generator"], training["generators_cuda"]
    )


def _as_it_is(value: Any) -> Any:
    return value


def seed_of_rank(seed: int, rank: int, batches: int) -> int:
    """Return what a rank's generators begin with where it takes up training."""
    return rng.derive(seed, _RANK, rank, batches)


def _of_all_ranks(
    parts: Parts, generators: rng.Generators, data: dict[str, Any] | None
) -> dict[str, Any]:
    """Return what ranks have of their own, and what is the same whoever says it."""
    own = {
        "generators": rng.to_json(generators),
        "generator": generators.torch.numpy(),
        "generators_cuda": [state.numpy() for state in generators.cuda],
        "averages": parts.averages.state_dict(),
    }
    together = parts.ranks.gather((own, data))
    if together is None:
        return {}
    ranks = [
        said
        | {
            "generator": torch.tensor(said["generator"]),
            "generators_cuda": [torch.tensor(state) for state in said["generators_cuda"]],
        }
        for said, _ in together
    ]
    averages = merged([said["averages"] for said in ranks])
    positions = [position for _, position in together if position is not None]
    return {"ranks": ranks, "averages": averages, "data": positions[-1] if positions else None}


def _of_rank(ranks: core.DistributedContext, captured: Captured) -> dict[str, Any] | None:
    """Return what this rank had of its own, if there were as many ranks as now."""
    found = captured.training.get("ranks")
    if not found or len(found) != ranks.size:
        return None
    own: dict[str, Any] = found[ranks.rank]
    return own


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return gradients that the next step adds to; none where they were cleared."""
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _own_state(trial: Trial) -> dict[str, Any] | None:
    if not hasattr(trial, "state_dict") or not hasattr(trial, "load_state_dict"):
        return None
    state: dict[str, Any] = trial.state_dict()
    return state


def _model_file(index: int) -> str:
    return f"model-{index}.pt" if index else "model.pt"


def _load(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)

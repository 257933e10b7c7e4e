"""Completeness of checkpoints: a trial whose checkpoints would be incomplete is refused.

A checkpoint contains wrapped objects (`wrap_model`, `wrap_optimizer`, `wrap_lr_scheduler`),
objects passed to `keep`, and the trial's own `state_dict`. These are compared with the models,
optimizers and schedulers that the trial's attributes reach, and with the parameters of wrapped
optimizers. A model without trainable parameters need not be wrapped: if it changes, for example as
an average of another one, `untracked_state` notices that and keeps it.
"""

from collections.abc import Container, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from rung.events import RungError
from rung.torch.callback import Callback
from rung.torch.context import TrialContext
from rung.torch.determinism import is_kept, parts_of
from rung.torch.metrics.reducers import MetricReducer
from rung.torch.pytree import is_strided, mappings_in, tensors_in

_DEPTH_MAX: Final = 4


class IncompleteCheckpoint(RungError):
    """A checkpoint of this trial would not suffice to resume it."""


def demand_complete(trial: Any, context: TrialContext) -> None:
    """Check before the first batch that checkpoints contain all that a trial trains.

    Raises:
        IncompleteCheckpoint: something is missing; the message names it and the line to write.
    """
    own = None
    if is_kept(trial):
        try:
            own = trial.state_dict()
        except Exception:  # noqa: BLE001 - it may need what training makes first; a checkpoint calls it again
            return
    _refuse(_missing(trial, context, own))


def demand_still_complete(trial: Any, context: TrialContext, own: Any) -> None:
    """Check at a checkpoint that it contains all that the trial trains by now.

    Args:
        trial: the user's.
        context: of the trial.
        own: the trial's own state; None: it has none.

    Raises:
        IncompleteCheckpoint: something is missing, which training has made; the message names it
            and the line to write.
    """
    missing = _missing(trial, context, own)
    _refuse([f"{each}; write it in __init__, not in training" for each in missing])


def _refuse(missing: list[str]) -> None:
    if missing:
        raise IncompleteCheckpoint(
            "; ".join(missing) + ". A checkpoint would lack it, and a resumed run would start with"
            " initial values"
        )


def _missing(trial: Any, context: TrialContext, own: Any) -> list[str]:
    """Return a sentence for each object that checkpoints lack.

    Args:
        trial: the user's.
        context: of the trial.
        own: the trial's own state; None: it has none.
    """
    held = {id(it) for kept in (*context.models, *context.kept.values()) for it in _trained(kept)}
    stored = {_address(it) for it in tensors_in(own)}
    states = [set(it) for it in mappings_in(own)]

    def lacks(thing: Any) -> bool:
        return any(
            id(it) not in held and (not stored or _address(it) not in stored)
            for it in _trained(thing)
        )

    found = []
    for place, thing in _owned(trial, type(trial).__name__, _wrapped(context), _DEPTH_MAX):
        name = place.partition(".")[2]
        match thing:
            case nn.Module() if lacks(thing):
                found.append(
                    f"the model {place} is not wrapped: write `self.{name} ="
                    f" context.wrap_model(…)`, or `context.keep({name!r}, …)` if no optimizer"
                    " trains it, as with an average of the weights or a target network"
                )
            case Optimizer() if not any({"state", "param_groups"} <= keys for keys in states):
                found.append(
                    f"the optimizer {place} is not wrapped: write `self.{name} ="
                    " context.wrap_optimizer(…)`"
                )
            case LRScheduler() if not any("last_epoch" in keys for keys in states):
                found.append(
                    f"the scheduler {place} is not wrapped: write `self.{name} ="
                    ' context.wrap_lr_scheduler(…)`, or `context.keep("scheduler", …)` if the'
                    " trial steps it"
                )
            case _:
                pass
    found += [
        f"the optimizer {type(it).__name__} trains parameters of no wrapped model: give their"
        " module to `context.wrap_model`, or to `context.keep`"
        for it in context.optimizers
        if not found and lacks(it)
    ]
    if not found and not context.models and not context.kept and own is None:
        found.append(
            "nothing is wrapped: write `self.model = context.wrap_model(…)`, or give the trial"
            " state_dict and load_state_dict"
        )
    return found


def _wrapped(context: TrialContext) -> set[int]:
    """Return the ids of objects to skip: those in checkpoints, and the context."""
    schedulers = [it.scheduler for it in context.schedulers]
    found = {id(it) for it in (*context.optimizers, *context.kept.values(), *schedulers, context)}
    for scheduler in schedulers:  # one that is made of others has their states in its own
        parts = _owned(scheduler, "", found, _DEPTH_MAX)
        found.update([id(it) for _, it in parts if isinstance(it, LRScheduler)])
    return found


def _owned(thing: Any, place: str, aside: Container[int], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the models, optimizers and schedulers that an object's attributes reach."""
    for name, each in parts_of(thing, place):
        if id(each) in aside or isinstance(each, Callback | MetricReducer):
            continue
        if isinstance(each, nn.Module | Optimizer | LRScheduler):
            yield name, each
        elif depth > 1:
            yield from _owned(each, name, aside, depth - 1)


def _address(tensor: torch.Tensor) -> int:
    """Return what tensors of the same memory have in common."""
    return tensor.data_ptr() if is_strided(tensor) else id(tensor)


def _trained(thing: Any) -> list[torch.Tensor]:
    """Return the parameters of a model or an optimizer that are trained."""
    match thing:
        case nn.Module():
            parameters = list(thing.parameters())
        case Optimizer():
            parameters = [it for group in thing.param_groups for it in group["params"]]
        case _:
            parameters = []
    return [it for it in parameters if it.requires_grad]

"""Completeness of checkpoints: they hold what a trial trains, or it fails before its first batch.

A checkpoint holds what was wrapped (`wrap_model`, `wrap_optimizer`, `wrap_lr_scheduler`), what was
given to `keep`, and what the trial's own `state_dict` returns. Compared with that are the models,
optimizers and schedulers that the trial's attributes reach, and the parameters of wrapped
optimizers. A model without parameters to train needs no place in a checkpoint.
"""

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from rung.events import RungError
from rung.torch.callback import Callback
from rung.torch.context import TrialContext
from rung.torch.exactness import is_kept, parts_of
from rung.torch.reducing import MetricReducer

_DEPTH_MAX: Final = 4


class IncompleteCheckpoint(RungError):
    """A checkpoint of this trial would not be enough to go on from."""


def demand_complete(trial: Any, context: TrialContext) -> None:
    """Compare what a trial trains with and what its checkpoints hold.

    Raises:
        IncompleteCheckpoint: something is missing; the message names it and the line to write.
    """
    if missing := _missing(trial, context):
        raise IncompleteCheckpoint(
            "a checkpoint of this trial would lack what it trains, so a resumed run would begin"
            " anew in silence: " + "; ".join(missing)
        )


def _missing(trial: Any, context: TrialContext) -> list[str]:
    """Return a sentence for each thing that checkpoints lack."""
    own = _own_state(trial)
    held = {id(it) for kept in _holders(context) for it in _parameters(kept)}
    stored = {it.data_ptr() for it in _tensors(own)}
    states = [set(it) for it in _mappings(own)]
    wrapped = {id(it) for it in (*context.optimizers, *context.kept.values())}
    wrapped.update(id(it.scheduler) for it in context.schedulers)

    def lacks(parameters: list[nn.Parameter]) -> bool:
        return any(
            id(it) not in held and (not stored or it.data_ptr() not in stored) for it in parameters
        )

    found = []
    aside = wrapped | {id(context)}
    for place, thing in _owned(trial, type(trial).__name__, aside, _DEPTH_MAX):
        name = place.partition(".")[2]
        match thing:
            case nn.Module() if lacks(_trained(thing)):
                found.append(
                    f"the model {place} is not wrapped: write `self.{name} ="
                    f" context.wrap_model(…)`, or call its requires_grad_(False) if it is not"
                    " trained"
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
        if not found and lacks(_of_optimizer(it))
    ]
    if not found and not context.models and not context.kept and own is None:
        found.append(
            "nothing is wrapped: write `self.model = context.wrap_model(…)`, or give the trial"
            " state_dict and load_state_dict"
        )
    return found


def _owned(thing: Any, place: str, aside: Container[int], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the models, optimizers and schedulers that a thing's attributes reach."""
    for name, each in parts_of(thing, place):
        if id(each) in aside or isinstance(each, Callback | MetricReducer):
            continue
        if isinstance(each, nn.Module | Optimizer | LRScheduler):
            yield name, each
        elif depth > 1:
            yield from _owned(each, name, aside, depth - 1)


def _own_state(trial: Any) -> Any:
    return trial.state_dict() if is_kept(trial) else None


def _holders(context: TrialContext) -> Iterator[Any]:
    yield from context.models
    yield from context.kept.values()


def _parameters(thing: Any) -> Iterator[torch.Tensor]:
    if isinstance(thing, nn.Module):
        yield from thing.parameters()
    elif isinstance(thing, Optimizer):
        yield from _of_optimizer(thing)


def _of_optimizer(optimizer: Optimizer) -> list[nn.Parameter]:
    return [it for group in optimizer.param_groups for it in group["params"] if it.requires_grad]


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [it for it in model.parameters() if it.requires_grad]


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for it in state.values():
            yield from _tensors(it)
    elif isinstance(state, list | tuple):
        for it in state:
            yield from _tensors(it)


def _mappings(state: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(state, Mapping):
        yield state
        for it in state.values():
            yield from _mappings(it)
    elif isinstance(state, list | tuple):
        for it in state:
            yield from _mappings(it)

"""Validation: what it draws, and the modes it sets, leave no trace in training.

Several ranks share the validation's batches whole, so that each gives what it would give to a
single process; what they found is put together in the order of the batches, on every rank.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rung.core.values import wire_values
from rung.torch import rng
from rung.torch.averages import ValidationResult
from rung.torch.callback import Callback, listening
from rung.torch.compiling import obstacles_named
from rung.torch.context import TrialContext
from rung.torch.exactness import operators_named
from rung.torch.sharing import ENDLESS, Shared, shared_batches
from rung.torch.trial import Trial


def evaluate(
    trial: Trial, context: TrialContext, hooks: Sequence[Callback] = ()
) -> dict[str, Any]:
    """Return the metrics of the validation set."""
    context.parallel.share_buffers(context.models)
    with (
        rng.preserved(),
        _evaluation_mode(context.models),
        torch.no_grad(),
        operators_named(),
        obstacles_named(),
    ):
        loader = trial.build_validation_data_loader()
        if type(trial).evaluate_full_dataset is not Trial.evaluate_full_dataset:
            with context.precision.autocast():
                return _of_full_dataset(trial, context, loader)
        outputs: list[Any] | None = None
        if listening(hooks, "on_validation_epoch_end"):
            outputs = []
        for hook in hooks:
            hook.on_validation_epoch_start()
        metrics = _by_batch(trial, context, loader, outputs)
        for hook in hooks:
            hook.on_validation_epoch_end(outputs or [])
        return metrics


def _by_batch(
    trial: Trial, context: TrialContext, loader: Any, outputs: list[Any] | None
) -> dict[str, Any]:
    """Evaluate batch after batch; what each gave is added to the outputs, if anybody asks."""
    result = ValidationResult(trial.evaluation_reducer())
    if context.parallel.several:
        return _together(trial, context, loader, result, outputs)
    for _, metrics, records in _evaluated(
        trial, context, Shared(enumerate(loader), ENDLESS), outputs
    ):
        result.add(metrics, records)
    return dict(result.reduced())


def _evaluated(
    trial: Trial, context: TrialContext, shared: Shared, outputs: list[Any] | None
) -> Iterator[tuple[int, Mapping[str, Any], int]]:
    """Yield each batch's number, its metrics, and how many records it holds.

    Those that only fill up are evaluated, too, and count nowhere.
    """
    evaluate_batch: Callable[..., Mapping[str, Any]] = trial.evaluate_batch
    numbered = len(inspect.signature(evaluate_batch).parameters) > 1
    for number, batch in shared.batches:
        counts = number < shared.length
        records = trial.get_batch_length(batch)
        moved = context.to_device(batch)
        with context.precision.autocast(), context.reducers.paused(when=not counts):
            metrics = evaluate_batch(moved, number) if numbered else evaluate_batch(moved)
        if counts and outputs is not None:
            outputs.append(metrics)
        if counts:
            yield number, metrics, records
        context.core.train.heartbeat()


def _together(
    trial: Trial,
    context: TrialContext,
    loader: Any,
    result: ValidationResult,
    outputs: list[Any] | None,
) -> dict[str, Any]:
    """Evaluate this rank's batches; return what all ranks found together."""
    shared = shared_batches(loader, context)
    own = [
        (number, _numbers(metrics), records)
        for number, metrics, records in _evaluated(trial, context, shared, outputs)
    ]
    found = [item for part in context.distributed.allgather(own) for item in part]
    for _, metrics, records in sorted(found, key=lambda item: item[0]):
        result.add(metrics, records)
    return dict(result.reduced())


def _of_full_dataset(trial: Trial, context: TrialContext, loader: Any) -> dict[str, Any]:
    """Return what the trial itself makes of the whole set: on the chief, if that can be alone."""
    metrics = None
    if context.distributed.is_chief or context.parallel.sharded:
        with context.reducers.paused(when=not context.distributed.is_chief):
            metrics = dict(trial.evaluate_full_dataset(loader))
    if context.parallel.several:
        metrics = context.distributed.broadcast(metrics and _numbers(metrics))
    return dict(metrics or {})


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as plain numbers, which any rank can take."""
    return {name: float(value) for name, value in wire_values(metrics).items()}


@contextmanager
def _evaluation_mode(models: list[torch.nn.Module]) -> Iterator[None]:
    """Set every module to evaluation and afterwards back to what each of them was in."""
    before = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training

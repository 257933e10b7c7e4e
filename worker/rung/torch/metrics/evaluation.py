"""Evaluation: validates without effect on the training's generators and module modes.

Several ranks evaluate whole batches, so that each has the same metrics as in a single process; the
results are merged in the order of the batches, on every rank.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rung.core._train import wire_values
from rung.torch.callback import Callback, listening
from rung.torch.context import TrialContext
from rung.torch.data.validation_sharding import (
    ENDLESS,
    Shared,
    is_stream,
    shared_batches,
    stream_shards_itself,
)
from rung.torch.determinism import operators_named
from rung.torch.torch_compile import obstacles_named
from rung.torch.trial import Trial
from rung.training import rng
from rung.training.averages import ValidationResult
from rung.training.units import InvalidPlan


def evaluate(
    trial: Trial, context: TrialContext, hooks: Sequence[Callback] = ()
) -> dict[str, Any]:
    """Return the metrics of the validation set."""
    context.parallel.share_buffers(context.models)
    with (
        rng.preserved(),
        _evaluation_mode(context.models),
        context.parallel.validating(),
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
    """Evaluate batch by batch; add the metrics of each to the outputs, unless these are None.

    Raises:
        InvalidPlan: there is no batch.
    """
    if context.parallel.several:
        found = _of_all_ranks(trial, context, loader, outputs)
    else:
        found = _evaluated(trial, context, Shared(enumerate(loader), ENDLESS), outputs)
    result, batches = ValidationResult(trial.evaluation_reducer()), 0
    for _, metrics, records in found:
        result.add(metrics, records)
        batches += 1
    if not batches:
        raise InvalidPlan(
            "the validation data loader yields no batches; is the data set empty, or smaller than"
            " a batch with drop_last=True?"
        )
    return dict(result.reduced())


def _evaluated(
    trial: Trial, context: TrialContext, shared: Shared, outputs: list[Any] | None
) -> Iterator[tuple[int, Mapping[str, Any], int]]:
    """Yield each batch's number, its metrics, and how many records it holds.

    Batches that were added to fill up are evaluated, and not yielded.
    """
    evaluate_batch: Callable[..., Mapping[str, Any]] = trial.evaluate_batch
    numbered = len(inspect.signature(evaluate_batch).parameters) > 1
    for number, batch in shared.batches:
        counts = number < shared.length
        records = trial.get_batch_length(batch)
        moved = context.to_device(batch)
        with context.precision.autocast(), context.reducers.paused(when=not counts):
            found = evaluate_batch(moved, number) if numbered else evaluate_batch(moved)
        metrics = _by_name(found, "evaluate_batch")
        if counts and outputs is not None:
            outputs.append(metrics)
        if counts:
            yield number, metrics, records
        context.core.train.heartbeat()


def _of_all_ranks(
    trial: Trial, context: TrialContext, loader: Any, outputs: list[Any] | None
) -> Iterable[tuple[int, Mapping[str, Any], int]]:
    """Evaluate this rank's batches; return what `_evaluated` yields on all ranks, in order."""
    shared = shared_batches(loader, context)
    own = [
        (number, _numbers(metrics), records)
        for number, metrics, records in _evaluated(trial, context, shared, outputs)
    ]
    found = [item for part in context.distributed.allgather(own) for item in part]
    return sorted(found, key=lambda item: item[0])


def _of_full_dataset(trial: Trial, context: TrialContext, loader: Any) -> dict[str, Any]:
    """Return the result of `evaluate_full_dataset`, run on the chief alone unless sharded.

    Raises:
        InvalidPlan: the chief would not have all records.
    """
    several = context.parallel.several and is_stream(loader)
    if several and stream_shards_itself(loader, context.distributed.size):
        raise InvalidPlan(
            "evaluate_full_dataset gets the records of the chief alone, but the validation data"
            " shard themselves: define evaluate_batch, which each slot calls with its own batches"
        )
    metrics = None
    if context.distributed.is_chief or context.parallel.sharded:
        with context.reducers.paused(when=not context.distributed.is_chief):
            metrics = dict(_by_name(trial.evaluate_full_dataset(loader), "evaluate_full_dataset"))
    if context.parallel.several:
        metrics = context.distributed.broadcast(metrics and _numbers(metrics))
    return dict(metrics or {})


def _by_name(found: Any, method: str) -> Mapping[str, Any]:
    """Check that a trial's method returned metrics by name.

    Raises:
        TypeError: it is not; the message names the method.
    """
    if not isinstance(found, Mapping):
        raise TypeError(
            f"{method} must return metrics by name, not {type(found).__name__}, such as"
            " {'loss': loss}"
        )
    return found


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as plain numbers, to send to other ranks."""
    return {name: float(value) for name, value in wire_values(metrics).items()}


@contextmanager
def _evaluation_mode(models: list[torch.nn.Module]) -> Iterator[None]:
    """Set every module to evaluation mode, and restore each one's mode afterwards."""
    before = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training

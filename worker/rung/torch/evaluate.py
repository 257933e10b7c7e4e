"""Validation: what it draws, and the modes it sets, leave no trace in training."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from rung.torch import rng
from rung.torch.averages import ValidationResult
from rung.torch.context import TrialContext
from rung.torch.trial import Trial


def evaluate(trial: Trial, context: TrialContext) -> dict[str, Any]:
    """Return the metrics of the validation set."""
    with rng.preserved(), _evaluation_mode(context.models), torch.no_grad():
        loader = trial.build_validation_data_loader()
        if type(trial).evaluate_full_dataset is not Trial.evaluate_full_dataset:
            return dict(trial.evaluate_full_dataset(loader))
        result = ValidationResult(trial.evaluation_reducer())
        evaluate_batch: Callable[..., Mapping[str, Any]] = trial.evaluate_batch
        numbered = len(inspect.signature(evaluate_batch).parameters) > 1
        for number, batch in enumerate(loader):
            records = trial.get_batch_length(batch)
            moved = context.to_device(batch)
            metrics = evaluate_batch(moved, number) if numbered else evaluate_batch(moved)
            result.add(metrics, records)
            context.core.train.heartbeat()
        return dict(result.reduced())


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

"""Validation: right, and without a trace in training."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from rung import core
from rung import torch as rt
from rung.torch.data import validation_sharding
from rung.torch.metrics import evaluation
from rung.training.units import InvalidPlan
from support.trials.plain import INPUTS, PlainTrial
from support.trials.story import CONFIG, finish

from ..conftest import Start  # noqa: TID252 - of the folder above


def test_validation_leaves_no_trace_in_training(start: Start) -> None:
    """Validating after every batch or never gives the same weights and generators.

    A layer that a hook froze stays as it was.
    """

    class Freeze(rt.Callback):
        def on_training_start(self) -> None:
            trial.model[0].eval()

    class Frozen(PlainTrial):
        def build_callbacks(self) -> Mapping[str, rt.Callback]:
            return {"freeze": Freeze()}

    results = []
    for period in (rt.Batch(1), None):
        agent, context = start(config=CONFIG, length=10)
        trial = Frozen(context)
        rt.Trainer(trial, context).fit(validation_period=period)
        finish(agent, context)
        assert not trial.model[0].training
        results.append((trial.weights(), torch.rand(1).item(), np.random.rand()))  # noqa: NPY002
    assert results[0] == results[1]


@pytest.mark.parametrize("method", ["evaluate_batch", "evaluate_full_dataset"])
@pytest.mark.parametrize("found", [None, torch.tensor(0.5)])
def test_what_validation_returns_is_metrics_by_name(start: Start, method: str, found: Any) -> None:
    """A method that returns nothing, or a number alone, is named in the error."""
    kind = type("Forgetful", (PlainTrial,), {method: lambda *_: found})
    agent, context = start(config=CONFIG, length=1)
    with pytest.raises(TypeError, match=f"{method} must return .* not {type(found).__name__}"):
        rt.Trainer(kind(context), context).fit()
    finish(agent, context)


def test_validation_data_without_a_batch_are_named(start: Start) -> None:
    """Not the metric that is missing for them."""

    class Empty(PlainTrial):
        def build_validation_data_loader(self) -> Any:
            return DataLoader(TensorDataset(INPUTS[:3]), batch_size=4, drop_last=True)

    agent, context = start(config=CONFIG, length=1)
    with pytest.raises(InvalidPlan, match=r"validation data loader yields no .*drop_last"):
        rt.Trainer(Empty(context), context).fit()
    finish(agent, context)


def test_validation_metrics_weigh_batches_by_their_size(start: Start) -> None:
    """The mean over 24 samples in batches of 7, 7, 7, 3 is the mean over samples."""

    class Mean(PlainTrial):
        def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
            return {"loss": batch[0].mean(), "most": batch[0].max(), "sum": batch[0].sum()}

        def evaluation_reducer(self) -> Mapping[str, rt.Reducer]:
            return {"most": rt.Reducer.MAX, "sum": rt.Reducer.SUM}

    agent, context = start(config=CONFIG, length=1)
    rt.Trainer(Mean(context), context).fit()
    finish(agent, context)
    [(_, metrics)] = agent.reports("validation")
    assert metrics["loss"] == pytest.approx(float(INPUTS.mean()), abs=1e-6)
    assert metrics["most"] == 1.0
    assert metrics["sum"] == pytest.approx(float(INPUTS.sum()), abs=1e-5)


def test_what_only_fills_up_counts_nowhere(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that a rank evaluates because others do is in no mean, reducer or output."""

    class Counting(PlainTrial):
        def __init__(self, context: rt.TrialContext) -> None:
            super().__init__(context)
            self.counted = context.wrap_reducer(sum, name="counted", for_training=False)

        def build_callbacks(self) -> Mapping[str, rt.Callback]:
            return {"outputs": Outputs()}

        def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
            self.counted.update(len(batch[0]))
            return {"loss": float(len(batch[0]))}

    class Outputs(rt.Callback):
        def on_validation_epoch_end(self, outputs: list[Any]) -> None:
            assert outputs == [{"loss": 7.0}] * 3

    agent, context = start(config=CONFIG, length=1)
    trial = Counting(context)
    monkeypatch.setattr(
        evaluation,
        "shared_batches",
        lambda loader, _: validation_sharding.Shared(enumerate(loader), 3),
    )
    monkeypatch.setattr(context, "parallel", Several(context.parallel))
    rt.Trainer(trial, context).fit()
    finish(agent, context)
    [(_, metrics)] = agent.reports("validation")
    assert (metrics["loss"], metrics["counted"]) == (7.0, 21)


class Several:
    """Says of one process that it is several."""

    several = True

    def __init__(self, parallel: Any) -> None:
        self._parallel = parallel

    def share_buffers(self, models: Any) -> None:
        """Nobody has others."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parallel, name)


def test_a_missing_search_metric_is_named(start: Start) -> None:
    """The trial's mistake is told in its own words, before anything is recorded."""
    _, context = start(config={"searcher": {"metric": "accuracy"}}, length=1)
    with pytest.raises(core.ReportRefused, match="'accuracy'"):
        rt.Trainer(PlainTrial(context), context).fit()

"""What a trial is made with."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from rung import torch as rt
from support.trials.plain import INPUTS, PlainTrial
from support.trials.story import CONFIG, finish

from .conftest import Start


def test_the_context_finds_nested_hyperparameters(start: Start) -> None:
    """A group is reached by dots; a missing one is named beside those that exist."""
    hparams = {"global_batch_size": 32, "optimizer": {"lr": 0.5}, "a.b": 1}
    _, context = start(hparams=hparams)
    assert context.get_hparam("optimizer.lr") == 0.5
    assert context.get_hparam("a.b") == 1
    assert (context.get_global_batch_size(), context.get_per_slot_batch_size()) == (32, 32)
    with pytest.raises(KeyError, match=r"'optimizer\.rate'.*global_batch_size, optimizer"):
        context.get_hparam("optimizer.rate")


class Line(PlainTrial):
    """Fits a line to all samples, in so many batches."""

    def __init__(self, context: rt.TrialContext, parts: int) -> None:
        super().__init__(context)
        self.parts = list(INPUTS.chunk(parts))
        self.model[1] = nn.Identity()  # no dropout
        self.clip: Callable[[list[nn.Parameter]], Any] | None = None
        self.starts: list[bool] = []
        self.ends: list[bool] = []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Fit to a part of the samples, whatever the loader says."""
        part = self.parts[batch_idx % len(self.parts)]
        loss = (self.model(part) - part).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, self.clip)
        self.starts.append(self.context.is_epoch_start())
        self.ends.append(self.context.is_epoch_end())
        return loss


def fitted(start: Start, parts: int, length: int, **optimizations: Any) -> Line:
    """Return a trial that trained on its samples in parts."""
    agent, context = start(config=CONFIG | {"optimizations": optimizations}, length=length)
    trial = Line(context, parts)
    rt.Trainer(trial, context).fit()
    finish(agent, context)
    return trial


def test_several_batches_make_one_step(start: Start) -> None:
    """Three batches of 8 with one step are the batch of 24; without averaging, three times it."""
    whole = fitted(start, 1, 2)
    parts = fitted(start, 3, 6, aggregation_frequency=3)
    summed = fitted(start, 3, 3, aggregation_frequency=3, average_aggregated_gradients=False)
    one = fitted(start, 1, 1)
    assert parts.weights() == pytest.approx(whole.weights(), abs=1e-6)
    agent, context = start(config=CONFIG, length=1)
    begun = PlainTrial(context).weights()
    finish(agent, context)
    moved = [after - before for after, before in zip(summed.weights(), begun, strict=True)]
    single = [after - before for after, before in zip(one.weights(), begun, strict=True)]
    assert moved == pytest.approx([3 * move for move in single], abs=1e-6)


@pytest.mark.parametrize(
    ("clip", "measure"),
    [
        (lambda parameters: clip_grad_norm_(parameters, 0.01), torch.linalg.vector_norm),
        (lambda parameters: clip_grad_value_(parameters, 0.01), lambda it: it.abs().max()),
    ],
)
def test_gradients_are_clipped_once_they_are_complete(
    start: Start, clip: Callable[[list[nn.Parameter]], Any], measure: Callable[..., torch.Tensor]
) -> None:
    """By norm or by value, of the sum over the batches of a step, before it."""
    agent, context = start(
        config=CONFIG | {"optimizations": {"aggregation_frequency": 2}}, length=2
    )
    trial = Line(context, 2)
    before = torch.tensor(trial.weights())
    calls: list[int] = []

    def counted(parameters: list[nn.Parameter]) -> None:
        calls.append(len(parameters))
        clip(parameters)

    trial.clip = counted
    rt.Trainer(trial, context).fit()
    finish(agent, context)
    moved = (torch.tensor(trial.weights()) - before) / 0.1
    assert calls == [2]
    assert float(measure(moved)) == pytest.approx(0.01, rel=1e-3)


def test_two_losses_share_a_graph(start: Start) -> None:
    """As where two networks train against each other; a gradient may be given, too."""
    _, context = start(config=CONFIG, length=1)
    weight = nn.Parameter(torch.ones(2))
    product = weight * 3
    context.backward(product.sum(), retain_graph=True)
    context.backward(product, torch.tensor([1.0, 2.0]))
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0, 9.0]


def test_the_context_knows_where_in_the_epoch_it_is(start: Start) -> None:
    """The first and the last of six batches, in both epochs."""
    trial = fitted(start, 1, 8)
    assert [index for index, it in enumerate(trial.starts) if it] == [0, 6]
    assert [index for index, it in enumerate(trial.ends) if it] == [5]

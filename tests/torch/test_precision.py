"""Mixed precision: what is computed in which, and what a gradient scaler does to a step."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from rung import torch as rt
from rung.torch.precision import Precision
from support.trials.plain import PlainTrial
from support.trials.story import CONFIG, finish

from .conftest import Start

ON_STEP = rt.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP
FUSED = pytest.mark.parametrize("fused", [False, True])
"""A fused optimizer is called for every step and leaves it out by itself."""


class Mixed(PlainTrial):
    """Notes in which precision its model computes."""

    dtype: torch.dtype | None = None

    def __init__(self, context: rt.TrialContext) -> None:
        super().__init__(context)
        self.seen: list[tuple[str, torch.dtype]] = []
        context.experimental.use_amp(dtype=self.dtype)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Fit a line, and look."""
        self.seen.append(("trained", self.model(batch[0]).dtype))
        loss = super().train_batch(batch, epoch_idx, batch_idx)
        assert torch.is_autocast_enabled("cpu")
        return loss

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return the error, and look."""
        self.seen.append(("validated", self.model(batch[0]).dtype))
        return super().evaluate_batch(batch)


def test_bfloat16_trains_and_validates_in_bfloat16(start: Start) -> None:
    """The weights stay in float32, and nothing is scaled."""
    agent, context = start(config=CONFIG, length=2)
    trial = Mixed(context)
    rt.Trainer(trial, context).fit()
    finish(agent, context)
    assert set(trial.seen) == {("trained", torch.bfloat16), ("validated", torch.bfloat16)}
    assert {parameter.dtype for parameter in trial.model.parameters()} == {torch.float32}
    assert context.scaler is None


def test_a_whole_set_is_validated_in_the_same_precision(start: Start) -> None:
    """Where the trial evaluates it by itself, too."""

    class Whole(Mixed):
        def evaluate_full_dataset(self, data_loader: Any) -> Mapping[str, Any]:
            return {"loss": float(self.model(next(iter(data_loader))[0]).dtype is torch.bfloat16)}

    agent, context = start(config=CONFIG, length=1)
    rt.Trainer(Whole(context), context).fit()
    finish(agent, context)
    assert agent.reports("validation")[0][1]["loss"] == 1.0


def use_sgd(trial: PlainTrial, context: rt.TrialContext, *, fused: bool) -> None:
    """Train with this optimizer in place of the trial's own."""
    parameters = trial.model.parameters()
    trial.optimizer = torch.optim.SGD(parameters, 0.1, fused=fused)
    context.optimizers[:] = [trial.optimizer]


class Overflowing(Mixed):
    """In float16; the gradients of the first and the fourth batch overflow."""

    dtype = torch.float16
    fused = False

    def __init__(self, context: rt.TrialContext) -> None:
        super().__init__(context)
        use_sgd(self, context, fused=self.fused)
        context.wrap_lr_scheduler(StepLR(self.optimizer, 1, 0.5), ON_STEP)
        self.moved: list[bool] = []
        self.norms: list[float] = []
        self.scales: list[float] = []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Fit a line, clipping by norm."""
        self.scales.append(self.context.scaler.get_scale())
        loss = (self.model(batch[0]).float() - batch[0]).square().mean()
        self.context.backward(loss * (float("inf") if batch_idx % 3 == 0 else 1.0))

        def clip(parameters: list[nn.Parameter]) -> None:
            self.norms.append(float(nn.utils.clip_grad_norm_(parameters, 0.01)))

        before = self.weights()
        self.moved.append(self.context.step_optimizer(self.optimizer, clip))
        assert (before != self.weights()) == self.moved[-1]
        return loss


@FUSED
def test_a_step_that_overflows_is_left_out(start: Start, *, fused: bool) -> None:
    """The weights stay, no schedule goes on, the scale falls; the next step is like any other.

    What clipping sees is not scaled. Nothing warns of a scheduler before its optimizer.
    """
    agent, context = start(config=CONFIG, length=5)
    trial = type("Chosen", (Overflowing,), {"fused": fused})(context)
    rt.Trainer(trial, context).fit()
    finish(agent, context)
    assert trial.moved == [False, True, True, False, True]
    assert trial.scales == [2.0**16, 2.0**15, 2.0**15, 2.0**15, 2.0**14]
    assert all(norm < 20 for norm, moved in zip(trial.norms, trial.moved, strict=True) if moved)
    assert trial.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3


@FUSED
def test_a_scaler_of_the_trials_own_does_the_same(start: Start, *, fused: bool) -> None:
    """Wrapped, scaled and updated by the trial, in windows of two batches: Determined's way."""

    class Own(PlainTrial):
        def __init__(self, context: rt.TrialContext) -> None:
            super().__init__(context)
            use_sgd(self, context, fused=fused)
            self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=8.0))
            context.wrap_lr_scheduler(StepLR(self.optimizer, 1, 0.5), ON_STEP)
            self.moved: list[bool] = []

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = (self.model(batch[0]) - batch[0]).square().mean()
            self.context.backward(self.scaler.scale(loss / (0.0 if batch_idx == 2 else 1.0)))
            self.moved.append(self.context.step_optimizer(self.optimizer, scaler=self.scaler))
            if self.context.is_optimizer_step():
                self.scaler.update()
            return loss

    config = CONFIG | {"optimizations": {"aggregation_frequency": 2}}
    agent, context = start(config=config, length=6)
    trial = Own(context)
    rt.Trainer(trial, context).fit()
    finish(agent, context)
    assert trial.moved == [False, True, False, False, False, True]
    assert context.scaler.get_scale() == 4.0
    assert trial.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2


@FUSED
def test_a_scaler_that_is_off_skips_nothing(*, fused: bool) -> None:
    """Every step counts, whatever its gradients are."""
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.full((1,), torch.inf)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    optimizer = torch.optim.AdamW([weight], fused=fused)
    assert Precision(torch.device("cpu")).step(optimizer, scaler)


def test_a_gpu_trains_in_float16_with_a_scaler() -> None:
    """Without being asked for either; a processor in bfloat16 without one."""
    gpu, processor = Precision(torch.device("cuda")), Precision(torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.amp, "GradScaler", lambda device: f"scaler for {device}")
        gpu.use(None)
        processor.use(None)
    assert gpu.scaler == "scaler for cuda"
    assert processor.scaler is None


def test_what_does_not_go_together_is_refused() -> None:
    """Two scalers, a precision that is none, float16 on a model in parts."""
    processor = torch.device("cpu")
    wrapped = Precision(processor)
    wrapped.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(rt.InvalidPlan, match="wrapped already"):
        wrapped.use(None)
    automatic = Precision(processor)
    automatic.use(torch.float16)
    with pytest.raises(rt.InvalidPlan, match="use_amp is on already"):
        automatic.wrap(torch.amp.GradScaler("cpu"))
    with pytest.raises(rt.InvalidPlan, match=r"torch\.float64"):
        Precision(processor).use(torch.float64)
    with pytest.raises(rt.InvalidPlan, match=r"dtype=torch\.bfloat16"):
        Precision(processor, sharded=True).use(torch.float16)

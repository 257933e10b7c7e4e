"""What checkpoints without a setting cost: choosing their moment, and taking them.

    python -m benchmarks.training.checkpoint_period [--mb N] [--seconds N]

A small network is trained by `rung.torch` with no period set. Timed in the same run: every step,
all that chooses the moment of a checkpoint, and the one checkpoint that is taken (after a second,
not after half a minute). Steps during which it is being stored are held to the others. All numbers
are parts of the training time: choosing must stay under 1%, and by the period so must holding.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import structlog
import torch
from benchmarks.figures import figure
from torch.utils.data import DataLoader, TensorDataset

from rung import torch as rt
from rung.training import checkpoint_schedule
from rung.training.checkpoint_schedule import CheckpointSchedule
from support.agent_end import agent_end

LIMIT = 0.01
_FIRST_S = 1.0
_CHOOSING = ("due", "tell")


class Clocked(rt.Trial):
    """A small network, with so much beside it that is stored; asks to end when its time is up."""

    def __init__(self, context: rt.TrialContext, mb: int, seconds: float) -> None:
        self.context = context
        layers = torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.01))
        self.beside = torch.zeros(mb * 250_000)
        self.until = time.perf_counter() + seconds
        self.begun: list[float] = []
        self.storing: list[bool] = []

    def state_dict(self) -> dict[str, Any]:
        """Return what makes a checkpoint large; it changes."""
        return {"beside": self.beside.add_(1)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is resumed here."""

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return what is always the same."""
        return DataLoader(TensorDataset(torch.randn(4096, 32), torch.randn(4096, 1)), 32)

    def build_validation_data_loader(self) -> DataLoader[Any]:
        """Return a batch."""
        return DataLoader(TensorDataset(torch.randn(32, 32), torch.randn(32, 1)), 32)

    def train_batch(self, batch: Any, *_where: int) -> Any:
        """Make a step; note when, and whether a checkpoint is being stored."""
        self.begun.append(time.perf_counter())
        self.storing.append(self.context.core.checkpoint.storing)
        self.context.set_stop_requested(self.begun[-1] > self.until)
        loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return the loss."""
        return {"loss": torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])}


def timed(name: str, spent: list[float]) -> None:
    """Have a method of the schedule note how long each call takes."""
    method = getattr(CheckpointSchedule, name)

    @wraps(method)
    def clocked(*arguments: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            spent.append(time.perf_counter() - begun)

    setattr(CheckpointSchedule, name, clocked)


def main() -> int:
    """Measure, print, and say by the exit code whether the aims are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    torch.set_num_threads(1)
    checkpoint_schedule.FIRST_S = _FIRST_S  # type: ignore[misc]  # so that the run need not be long
    spent: list[float] = []
    for name in _CHOOSING:
        timed(name, spent)
    config = {
        "searcher": {"metric": "loss"},
        "min_validation_period": {"batches": 0},
        "checkpoint_policy": "none",
    }
    with tempfile.TemporaryDirectory() as name, agent_end(Path(name), config=config) as agent:
        os.environ |= agent.environment
        with rt.init() as context:
            trial = Clocked(context, options.mb, options.seconds)
            rt.Trainer(trial, context).fit(max_length=rt.Batch(1 << 40))
        agent.wait_for_end()
        [cost] = [
            values for _, values in agent.reports("system") if "checkpoint_period_s" in values
        ]
    return shown(trial, spent, cost)


def shown(trial: Clocked, spent: list[float], cost: Mapping[str, float]) -> int:
    """Print what was measured; return 1 if an aim is missed."""
    lasted = trial.begun[-1] - trial.begun[0]
    choosing = sum(spent) / lasted
    times = [later - former for former, later in zip(trial.begun, trial.begun[1:], strict=False)]
    beside = [each for each, storing in zip(times, trial.storing, strict=False) if storing]
    alone = [each for each, storing in zip(times, trial.storing, strict=False) if not storing]
    step_s = statistics.median(alone)
    period_s, held_s = cost["checkpoint_period_s"], cost["checkpoint_held_s"]
    slowed = max(0.0, sum(beside) - held_s - len(beside) * step_s) / period_s
    a_step_us = statistics.median(spent) * len(spent) / len(times) * 1e6
    stored_s = cost["checkpoint_stored_s"]
    print(f"steps        {len(times)} of {step_s * 1e6:.0f} µs (median)")
    print(f"checkpoint   every {period_s:.0f} s; stored within {stored_s:.2f} s")
    for name, share, about in (
        (
            "choosing the moment",
            choosing,
            f"{a_step_us:.2f} µs a step; wanted: under 1 %",
        ),
        ("holding the step", held_s / period_s, f"{held_s:.3f} s each; wanted: at most 1 %"),
        ("storing beside it", slowed, f"what {len(beside)} steps lost"),
    ):
        figure(f"checkpoints unasked: {name}", 100 * share, "% of training", beside=about)
    return int(choosing >= LIMIT or held_s / period_s > LIMIT * 1.0001)


if __name__ == "__main__":
    sys.exit(main())

"""Two networks against each other, each with its optimizer and schedules, in mixed precision.

What is kept by the trainer alone: the scaler of `use_amp`, steps that it left out, gradients of a
step that is not complete, schedulers of all modes, and callbacks' states, one of which holds what
happened since the last report.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as crossed
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from rung import torch as rt
from support.trials.noisy import BATCH, Fuse, NoisyData

Mode = rt.LRScheduler.StepMode


class Patience(rt.Callback):
    """Lowers a learning rate by validations, and remembers the batches of the last report."""

    def __init__(self, plateau: ReduceLROnPlateau) -> None:
        self._plateau = plateau
        self.validations = 0
        self.lowered: list[float] = []
        self.batches: list[dict[str, float]] = []
        self.epochs = 0

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """Count."""
        self.epochs += 1

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """Remember the batches, which give the means."""
        mean = sum(batch["loss"] for batch in batch_metrics) / len(batch_metrics)
        assert abs(mean - avg_metrics["loss"]) < 1e-6 * max(1.0, abs(mean)), (mean, avg_metrics)
        self.batches = batch_metrics

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Step the plateau."""
        self.validations += 1
        self._plateau.step(metrics["loss"])
        self.lowered.append(float(self._plateau.get_last_lr()[0]))

    def state_dict(self) -> dict[str, Any]:
        """Keep all of it."""
        return {
            "validations": self.validations,
            "lowered": self.lowered,
            "batches": self.batches,
            "epochs": self.epochs,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
        vars(self).update(state_dict)


class RivalsTrial(rt.Trial):
    """A forger and a judge; the judge's schedules are not the forger's."""

    def __init__(self, context: rt.TrialContext, fuse: Fuse, workers: int) -> None:
        self.context = context
        self.fuse = fuse
        self.workers = workers
        self.model = context.wrap_model(
            nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 4))
        )
        self.judge = context.wrap_model(
            nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        )
        rate = context.get_hparam("lr")
        self.optimizer = context.wrap_optimizer(
            torch.optim.AdamW(self.model.parameters(), lr=rate)
        )
        self.rival = context.wrap_optimizer(
            torch.optim.SGD(self.judge.parameters(), lr=10 * rate, momentum=0.9)
        )
        context.wrap_lr_scheduler(StepLR(self.optimizer, 1, 0.9), Mode.STEP_EVERY_EPOCH)
        context.wrap_lr_scheduler(StepLR(self.rival, 1, 0.8), Mode.STEP_EVERY_OPTIMIZER_STEP, 2)
        context.wrap_lr_scheduler(StepLR(self.optimizer, 2, 0.7), Mode.STEP_EVERY_BATCH, 3)
        plateau = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=0)
        context.wrap_lr_scheduler(plateau, Mode.MANUAL_STEP)
        self.moments = Patience(plateau)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
        context.use_amp(dtype=torch.float16, scaler=scaler)
        self.average = context.keep("average", AveragedModel(self.model))

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return shuffled noisy samples."""
        return DataLoader(NoisyData(), batch_size=BATCH, shuffle=True, num_workers=self.workers)

    def build_validation_data_loader(self) -> DataLoader[Any]:
        """Return noisy samples."""
        return DataLoader(NoisyData(), batch_size=7)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Train the judge, whose gradients overflow now and then, and then the forger."""
        inputs, _ = batch
        forged = self.model(torch.rand_like(inputs))
        real, fake = self.judge(inputs), self.judge(forged.detach())
        loss = crossed(real, torch.ones_like(real)) + crossed(fake, torch.zeros_like(fake))
        self.context.backward(loss * (float("inf") if batch_idx % 5 == 3 else 1.0))
        self.fuse.burn()
        moved = self.context.step_optimizer(
            self.rival, lambda parameters: nn.utils.clip_grad_value_(parameters, 0.05)
        )
        answer = self.judge(forged)
        missed = crossed(answer, torch.ones_like(answer))
        self.context.backward(missed)
        if self.context.step_optimizer(
            self.optimizer, lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5)
        ):
            self.average.update_parameters(self.model)
        return {
            "loss": loss,
            "missed": missed,
            "moved": float(moved),
            "scale": self.context.scaler.get_scale(),
            "lr": self.optimizer.param_groups[0]["lr"],
            "rival lr": self.rival.param_groups[0]["lr"],
        }

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return how well the averaged forger does."""
        answer = self.judge(self.average(batch[0]))
        return {"loss": crossed(answer, torch.ones_like(answer))}

    def build_callbacks(self) -> Mapping[str, rt.Callback]:
        """Return the patience."""
        return {"patience": self.moments}

"""A trial that draws from every generator there is, wherever one can draw."""

import os
import random
import signal
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from rung import torch as rt

SAMPLES = 24
BATCH = 4


class NoisyData(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that are augmented with noise from Python's, NumPy's and torch's generators."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sample with fresh noise."""
        noise = random.random() + float(np.random.rand()) + torch.rand(4)  # noqa: NPY002, S311
        return torch.full((4,), index / SAMPLES) + 0.1 * noise, torch.tensor([float(index % 3)])


class Fuse:
    """Kills the process at the n-th moment at which it is asked."""

    def __init__(self, moment: int | None) -> None:
        self._left = moment

    def burn(self) -> None:
        """Count a moment."""
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Moments(rt.Callback):
    """Asks the fuse around validations and checkpoints, and has a state."""

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse
        self.validations = 0

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Count, and draw as nobody should."""
        self.validations += 1
        self._fuse.burn()

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Half of a checkpoint is there."""
        self._fuse.burn()

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """A checkpoint is there and nothing else happened yet."""
        self._fuse.burn()

    def state_dict(self) -> dict[str, Any]:
        """Keep the count."""
        return {"validations": self.validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the count back."""
        self.validations = state_dict["validations"]


class NoisyTrial(rt.Trial):
    """Dropout, batch normalisation, two schedulers, gradients over two batches, own state."""

    def __init__(self, context: rt.TrialContext, fuse: Fuse, workers: int) -> None:
        self.context = context
        self.fuse = fuse
        self.workers = workers
        self.moments = Moments(fuse)
        self.smooth = 0.0
        self.model = context.wrap_model(
            nn.Sequential(
                nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)
            )
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.AdamW(self.model.parameters(), lr=context.get_hparam("lr"))
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [1, 2], 0.5)
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50),
            rt.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return shuffled noisy samples."""
        return DataLoader(NoisyData(), batch_size=BATCH, shuffle=True, num_workers=self.workers)

    def build_validation_data_loader(self) -> DataLoader[Any]:
        """Return noisy samples, shuffled although nobody should notice."""
        return DataLoader(NoisyData(), batch_size=7, shuffle=True)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Train with noise of all kinds."""
        inputs, targets = batch
        weight = 1.0 + 0.01 * random.random() + 0.01 * float(np.random.rand())  # noqa: NPY002, S311
        loss = weight * nn.functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.fuse.burn()
        self.context.step_optimizer(self.optimizer)
        self.smooth = 0.9 * self.smooth + 0.1 * loss.item()
        return {"loss": loss, "smooth": self.smooth, "lr": self.optimizer.param_groups[0]["lr"]}

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return the error, and something drawn."""
        inputs, targets = batch
        error = nn.functional.mse_loss(self.model(inputs), targets)
        return {"loss": error, "drawn": random.random()}  # noqa: S311 - is to be noticed nowhere

    def build_callbacks(self) -> Mapping[str, rt.Callback]:
        """Return the fuse's callback."""
        return {"moments": self.moments}

    def state_dict(self) -> dict[str, Any]:
        """Keep the smoothed loss."""
        return {"smooth": self.smooth}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the smoothed loss back."""
        self.smooth = state["smooth"]

"""A trial with all that a checkpoint is to keep: scaler, EMA, sampler, frozen table, schedule."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import swa_utils
from torch.utils.data import DataLoader, Sampler

from rung import torch as rt
from support.trials.noisy import BATCH, SAMPLES, Fuse, NoisyData

VOCABULARY = 70_000
"""Rows of the frozen table, which with them is large enough for a file of its own."""


class Curriculum(Sampler[int]):
    """Draws samples by weights that training changes."""

    def __init__(self) -> None:
        self.weights = torch.ones(SAMPLES)

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(torch.multinomial(self.weights, SAMPLES, replacement=True).tolist())

    def state_dict(self) -> dict[str, Any]:
        """Keep the weights."""
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the weights back."""
        self.weights = state["weights"].clone()


class Counting(rt.Callback):
    """Counts what it hears, and keeps the count; does not look at checkpoints' files."""

    def __init__(self) -> None:
        self.validations = 0

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Count."""
        self.validations += 1

    def state_dict(self) -> dict[str, Any]:
        """Keep the count."""
        return {"validations": self.validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the count back."""
        self.validations = state_dict["validations"]


class Frozen(nn.Module):
    """A table that is not trained, in front of a small network that is."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 4).requires_grad_(requires_grad=False)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Look the first number up and join it with the others."""
        rows = self.table((inputs[:, 0] * 1000).long().clamp(0, VOCABULARY - 1))
        joined: torch.Tensor = self.head(torch.cat([inputs, rows], dim=1))
        return joined


class SteadyTrial(rt.Trial):
    """Half precision, gradients over two batches, an average of the weights, own state."""

    def __init__(self, context: rt.TrialContext, fuse: Fuse, workers: int) -> None:
        self.context = context
        self.fuse = fuse
        self.workers = workers
        self.moments = Counting()
        self.history: list[torch.Tensor] = []
        self.sampler = Curriculum()
        self.model = context.wrap_model(Frozen())
        self.optimizer = context.wrap_optimizer(
            torch.optim.AdamW(self.model.head.parameters(), lr=context.get_hparam("lr"))
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=50),
            rt.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )
        self.scaler = context.wrap_scaler(
            torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        )
        ema: Any = swa_utils.get_ema_multi_avg_fn
        self.average = context.keep(
            "average", swa_utils.AveragedModel(self.model.head, multi_avg_fn=ema(0.9))
        )

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return noisy samples in the curriculum's order."""
        return DataLoader(
            NoisyData(), batch_size=BATCH, sampler=self.sampler, num_workers=self.workers
        )

    def build_validation_data_loader(self) -> DataLoader[Any]:
        """Return noisy samples."""
        return DataLoader(NoisyData(), batch_size=7)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Train; every seventh batch overflows, so that the scaler skips a step."""
        inputs, targets = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(self.model(inputs).float(), targets)
        overflow = float("inf") if batch_idx % 7 == 6 else 1.0
        self.context.backward(self.scaler.scale(loss * overflow))
        self.fuse.burn()
        self.context.step_optimizer(
            self.optimizer,
            lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0),
            scaler=self.scaler,
        )
        if batch_idx % 2:
            self.scaler.update()
            self.average.update_parameters(self.model.head)
        self.sampler.weights[batch_idx % SAMPLES] += loss.detach() * random.random()  # noqa: S311
        self.history.append(loss.detach())
        return {"loss": loss, "scale": self.scaler.get_scale(), "seen": sum(self.history)}

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return the error of the averaged weights."""
        inputs, targets = batch
        rows = self.model.table((inputs[:, 0] * 1000).long().clamp(0, VOCABULARY - 1))
        output = self.average(torch.cat([inputs, rows], dim=1))
        return {"loss": nn.functional.mse_loss(output, targets)}

    def build_callbacks(self) -> Mapping[str, rt.Callback]:
        """Return the count."""
        return {"moments": self.moments}

    def state_dict(self) -> dict[str, Any]:
        """Keep the losses: tensors that stay as they are, in a list that grows."""
        return {"history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the losses back."""
        self.history = list(state["history"])

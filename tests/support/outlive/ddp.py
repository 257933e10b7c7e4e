"""Trains by `rung.torch`, with DistributedDataParallel where it has several slots."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from rung import torch as rt


class Line(rt.Trial):
    """Fits a line, with dropout."""

    def __init__(self, context: rt.TrialContext) -> None:
        self.context = context
        notes = Path(context.get_hparam("notes"), str(context.distributed.rank))
        self.notes = notes.open("a", buffering=1)
        layers = [torch.nn.Linear(8, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1)]
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.001))

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Sixteen batches an epoch."""
        return DataLoader(TensorDataset(torch.ones(128, 8)), batch_size=8, shuffle=True)

    def build_validation_data_loader(self) -> DataLoader[Any]:
        """One batch."""
        return DataLoader(TensorDataset(torch.ones(8, 8)), batch_size=8)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        """Train a step, note it, and stop where the test says so."""
        loss = self.model(batch[0]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.notes.write(f"{batch_idx + 1} {os.getpid()}\n")
        if Path(self.context.get_hparam("stop")).exists():
            self.context.set_stop_requested(True)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return the loss."""
        return {"loss": self.model(batch[0]).square().mean()}


with rt.init() as context:
    rt.Trainer(Line(context), context).fit()

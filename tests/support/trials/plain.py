"""A trial without noise, small enough for hundreds of runs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rung import torch as rt

INPUTS = torch.linspace(-1, 1, 24).reshape(24, 1)


class PlainTrial(rt.Trial):
    """A linear model with dropout, on 24 samples in batches of 4: six batches an epoch."""

    def __init__(self, context: rt.TrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5)))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.1))

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return shuffled samples."""
        return DataLoader(TensorDataset(INPUTS), batch_size=4, shuffle=True)

    def build_validation_data_loader(self) -> DataLoader[Any]:
        """Return samples in uneven batches."""
        return DataLoader(TensorDataset(INPUTS), batch_size=7, shuffle=True)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Fit a line."""
        loss = (self.model(batch[0]) - batch[0]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return the error."""
        return {"loss": (self.model(batch[0]) - batch[0]).square().mean()}

    def weights(self) -> list[float]:
        """Return the model's weights."""
        return [float(value) for p in self.model.parameters() for value in p.detach().flatten()]

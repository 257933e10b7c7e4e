"""A trial that reads its data from files, more slowly than it trains with them."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from rung import torch as rt


class Numbers(Dataset[torch.Tensor]):
    """One number a file."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.iterdir())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Read one, slowly."""
        time.sleep(0.02)
        return torch.tensor([float(self._files[index].read_text())])


class Reading(rt.Trial):
    """Fits a line to what it reads."""

    def __init__(self, context: rt.TrialContext) -> None:
        self._context = context
        self._data = Numbers(context.core.data["train"].path)
        self._model = context.wrap_model(torch.nn.Linear(1, 1))
        self._optimizer = context.wrap_optimizer(torch.optim.SGD(self._model.parameters(), 0.01))

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return the numbers."""
        return DataLoader(self._data, batch_size=4, shuffle=True)

    def build_validation_data_loader(self) -> DataLoader[Any]:
        """Return the numbers."""
        return DataLoader(self._data, batch_size=4)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Make a step."""
        loss = (self._model(batch) - batch).square().mean()
        self._context.backward(loss)
        self._context.step_optimizer(self._optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return the error."""
        return {"loss": (self._model(batch) - batch).square().mean()}


if __name__ == "__main__":
    with rt.init() as context:
        rt.Trainer(Reading(context), context).fit()

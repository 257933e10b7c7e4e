"""A plain training of which nothing is set: steps that take their time, no end of the epoch."""

import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from rung import torch as rt

_STEP_S = 0.05


class Begun(rt.Callback):
    """Prints where a run begins."""

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Print where."""
        sys.stdout.write(f"begins at batch {first_batch_idx}\n")
        sys.stdout.flush()


class Plain(rt.Trial):
    """Fits a line."""

    def __init__(self, context: rt.TrialContext) -> None:
        self._context = context
        self._model = context.wrap_model(torch.nn.Linear(1, 1))
        self._optimizer = context.wrap_optimizer(torch.optim.SGD(self._model.parameters(), 0.01))

    def build_callbacks(self) -> dict[str, rt.Callback]:
        """Return what prints."""
        return {"begun": Begun()}

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return more than the run trains on."""
        return DataLoader(TensorDataset(torch.linspace(0, 1, 4000)[:, None]), shuffle=True)

    def build_validation_data_loader(self) -> DataLoader[Any]:
        """Return a few."""
        return DataLoader(TensorDataset(torch.linspace(0, 1, 4)[:, None]))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Make a step, slowly."""
        time.sleep(_STEP_S)
        loss = (self._model(batch[0]) - 2 * batch[0]).square().mean()
        self._context.backward(loss)
        self._context.step_optimizer(self._optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return the error."""
        return {"loss": (self._model(batch[0]) - 2 * batch[0]).square().mean()}


if __name__ == "__main__":
    with rt.init() as context:
        rt.Trainer(Plain(context), context).fit()

"""What the trainer reports beside the trial's metrics."""

from functools import partial
from typing import Any

import pytest
from torch.utils.data import DataLoader

from rung import torch as rt
from rung.torch.metrics import reporting
from rung.training import data_wait
from rung.training.data_wait import NAME, DataWait
from support.clock import Clock
from support.trials.plain import PlainTrial
from support.trials.story import CONFIG, finish

from ..conftest import Start  # noqa: TID252 - of the folder above


def test_the_trainer_tells_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that is slower than the step shows as a metric of the group `system`."""
    clock = Clock()
    monkeypatch.setattr(data_wait, "_PERIOD_S", 0.0)
    monkeypatch.setattr(reporting, "DataWait", partial(DataWait, clock))

    class Slow(PlainTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            """Train for a while."""
            clock.now += 0.25
            return super().train_batch(batch, epoch_idx, batch_idx)

        def build_training_data_loader(self) -> DataLoader[Any]:
            """Return a loader that takes its time."""
            loader = super().build_training_data_loader()
            collate = loader.collate_fn

            def slowly(batch: list[Any]) -> Any:
                clock.now += 0.75
                return collate(batch)

            loader.collate_fn = slowly
            return loader

    agent, context = start(config=CONFIG, time_metric="batches", length=4)
    rt.Trainer(Slow(context), context).fit()
    finish(agent, context)
    told = [values for _, values in agent.reports("system")]
    assert told
    assert all(values == {NAME: 0.75} for values in told)

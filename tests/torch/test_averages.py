"""Training metrics of many batches."""

import math

import torch

from rung.torch.averages import TrainingAverages


def test_means_are_over_the_batches_that_have_the_metric() -> None:
    """A metric that only some batches report is averaged over those."""
    averages = TrainingAverages()
    averages.add({"loss": torch.tensor(1.0), "rare": 4})
    averages.add({"loss": 2})
    assert averages.take() == {"loss": 1.5, "rare": 4.0}
    assert averages.take() == {}


def test_a_state_taken_in_the_middle_changes_nothing() -> None:
    """The mean is the same, bit for bit, whether or not a checkpoint was made on the way."""
    values = [0.1 * number for number in range(10)]
    whole, first, second = TrainingAverages(), TrainingAverages(), TrainingAverages()
    for value in values:
        whole.add({"loss": value})
    for value in values[:5]:
        first.add({"loss": value})
    second.load_state_dict(first.state_dict())
    for value in values[5:]:
        second.add({"loss": value})
    assert second.take() == whole.take()


def test_nan_stays_nan() -> None:
    """One NaN makes the mean NaN; it is not hidden."""
    averages = TrainingAverages()
    averages.add({"loss": math.nan})
    averages.add({"loss": 1.0})
    assert math.isnan(averages.take()["loss"])

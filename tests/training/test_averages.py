"""Training metrics of many batches."""

import math

import pytest
import torch

from rung.core import DistributedContext
from rung.training.averages import TrainingAverages, merged
from support.ranked import on_agents, ranked
from support.trials.gpu import on_gpu


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


def test_a_metric_of_some_ranks_is_their_mean() -> None:
    """What one rank alone reports is not watered down; what has no share says nothing."""

    def report(ranks: DistributedContext) -> dict[str, float]:
        averages = TrainingAverages()
        for own, whole in ((3, 5), (1, 1)):
            share = own / whole if ranks.is_chief else 1 - own / whole
            metrics = {"loss": 1.0 if ranks.is_chief else 2.0}
            metrics |= {"lr": 0.5} if ranks.is_chief else {"late": 9.0}
            averages.add(metrics, share)
        return averages.take(ranks)

    chief, other = ranked(on_agents(2), report)
    assert chief == pytest.approx({"loss": (0.6 + 2 * 0.4 + 1.0) / 2, "lr": 0.5, "late": 9.0})
    assert other == {}


def test_a_metric_without_any_share_is_left_out() -> None:
    """Records that only stand in are no mean of anything."""
    averages = TrainingAverages()
    averages.add({"loss": math.nan}, 0.0)
    assert averages.state_dict()["sums"] == {"loss": 0.0}
    assert averages.take() == {}


def test_the_averages_of_ranks_add_up() -> None:
    """Another number of ranks goes on from their sums, and a batch counts once."""
    states = []
    for share, value in ((0.75, 1.0), (0.25, 3.0)):
        averages = TrainingAverages()
        averages.add({"loss": value}, share)
        states.append(averages.state_dict())
    whole = TrainingAverages()
    whole.load_state_dict(merged(states))
    whole.add({"loss": 2.5})
    assert whole.take() == {"loss": 2.0}


def test_a_metric_that_is_changed_in_place_counts_as_it_was() -> None:
    """Also on a GPU, where it is read only when somebody asks."""
    averages = TrainingAverages()
    temperature = on_gpu(1.0)
    for _ in range(2):
        averages.add({"temperature": temperature})
        temperature += 1.0
    assert averages.take() == {"temperature": 1.5}

"""Copies of loaders: class and options stay."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from rung.torch.data.loader_copy import Listed, with_batches, with_position, with_workers

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core
DATA = TensorDataset(torch.arange(6))
OPTIONS: dict[str, Any] = {
    "batch_size": 2,
    "in_order": False,
    "num_workers": 2,
    "persistent_workers": True,
    "prefetch_factor": 3,
    "timeout": 9,
}


class Own(DataLoader[Any]):
    """A class of a script's own."""


@pytest.mark.parametrize("kind", [DataLoader, Own])
def test_every_option_stays(kind: type[DataLoader[Any]]) -> None:
    """Those too that are rare; only the batches are others, and the loader is left alone."""
    loader = kind(DATA, **OPTIONS)
    copied = with_batches(loader, Listed([[5], [3]]))
    assert type(copied) is kind
    placed = with_position(loader)
    assert isinstance(placed, StatefulDataLoader)
    for name, value in OPTIONS.items():
        assert getattr(placed, name) == getattr(loader, name) == value
        assert getattr(copied, name) == (None if name == "batch_size" else value)


def test_the_batches_are_those_given() -> None:
    """Read by the loader's own class."""
    copied = with_batches(Own(DATA, batch_size=2), Listed([[5, 0], [3]]))
    assert [batch[0].tolist() for batch in copied] == [[5, 0], [3]]


def test_without_workers_there_is_nothing_to_wait_for() -> None:
    """Options that only workers have are left out, and come back with them."""
    alone = with_workers(DataLoader(DATA, **OPTIONS), 0)
    assert len(list(alone)) == 3
    assert with_workers(DataLoader(DATA), 1).prefetch_factor == 2

"""Validation loaders of Lightning, shared between ranks: streams."""

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from rung.torch import InvalidPlan, stream
from support.framework_trials import needs

pytestmark = [
    needs("lightning"),
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),  # Lightning's use of torch
]


class Numbers(IterableDataset[int]):
    """Twelve numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


def _read(loader: Any, limit: float) -> tuple[list[int], bool]:
    """Return how many records each batch of a rank has, and whether its sums count once."""
    trainer: Any = SimpleNamespace(limit_val_batches=limit)
    ranks = SimpleNamespace(rank=1, size=2, allgather=lambda own: [own | {"length": 3}, own])
    tracker: Any = SimpleNamespace(run=SimpleNamespace(distributed=ranks, seed=1))
    module = importlib.import_module("rung.lightning.sharded_validation")
    validation = module.ShardedValidation(trainer, tracker)
    own = validation.own(loader)
    trainer.val_dataloaders = own
    (whole,) = validation.whole(trainer)
    return [len(batch) for batch in own], whole


@pytest.mark.parametrize(("limit", "batches"), [(1.0, 3), (3, 1), (4, 2)])
def test_a_stream_that_shards_itself_counts_on_every_rank(limit: float, batches: int) -> None:
    """The limit is one of all ranks together, as with other data."""
    data = stream(Numbers(), shards_itself=True)
    assert _read(DataLoader(data, batch_size=4), limit) == ([4] * batches, False)


@pytest.mark.parametrize(("limit", "batches"), [(1.0, 3), (2, 2)])
def test_a_stream_that_is_the_same_everywhere_counts_once(limit: float, batches: int) -> None:
    """Every rank reads it."""
    data = stream(Numbers(), shards_itself=False)
    assert _read(DataLoader(data, batch_size=4), limit) == ([4] * batches, True)


def test_data_that_differ_are_refused() -> None:
    """Each rank would leave out batches of its own."""
    with pytest.raises(InvalidPlan, match=r"validation data sets of the slots differ in .* 3, 4"):
        _read(DataLoader([1, 2, 3, 4], batch_size=2), 1.0)  # type: ignore[arg-type]  # a list will do


def test_a_stream_is_refused_until_the_script_says_who_shards_it() -> None:
    """A loader that is none of torch's, too."""
    for loader in (DataLoader(Numbers(), batch_size=4), Numbers()):
        with pytest.raises(InvalidPlan, match=r"validation .* rung\.torch\.stream\("):
            _read(loader, 1.0)

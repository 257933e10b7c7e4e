"""Data that a trainer cannot share between slots are refused."""

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from rung.core import DistributedContext
from rung.torch import InvalidPlan, stream
from rung.training.errors import NotResumable
from support.framework_trials import needs
from support.ranked import on_agents, ranked

pytestmark = [needs("transformers", "accelerate"), pytest.mark.e2e]


class Words(IterableDataset[int]):
    """A stream."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def check(train: Any = None, evaluate: Any = None) -> None:
    """Check the data sets of a trainer on each of two ranks, of which these make one each."""
    module = importlib.import_module("rung.transformers.shared_data")

    def work(ranks: DistributedContext) -> None:
        own = [each(ranks.rank) if callable(each) else each for each in (train, evaluate)]
        trainer = SimpleNamespace(train_dataset=own[0], eval_dataset=own[1])
        module.refuse_shared_already(trainer, ranks)

    ranked(on_agents(2), work)


def test_data_that_are_the_same_on_all_slots_are_taken() -> None:
    """With an index, or a stream that says so; none, and several by name, too."""
    check([1, 2], {"one": [3], "two": stream(Words(), shards_itself=False)})
    check(stream(Words(), shards_itself=False))


def test_data_that_are_shared_already_are_refused() -> None:
    """The trainer would share them again."""
    with pytest.raises(NotResumable, match=r"Trainer\(eval_dataset=…\) is a stream that shards"):
        check([1], {"one": stream(Words(), shards_itself=True)})
    with pytest.raises(InvalidPlan, match=r"training .* rung\.torch\.stream\("):
        check(Words())
    with pytest.raises(InvalidPlan, match="training data sets of the slots differ"):
        check(lambda rank: list(range(3 + rank)))

"""Batches that Python makes."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rung.events import RungError
from support.framework_trials import needs

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e]
Part = Callable[[str], Any]


def drawn(epoch: int) -> Iterator[Any]:
    """Yield what is drawn from the global generators."""
    for number in range(3):
        yield [epoch, number, random.random(), float(np.random.rand())]  # noqa: NPY002, S311


def rest(source: Any) -> list[Any]:
    """Return the rest of an epoch."""
    found = []
    while not source.over(look=True):
        found.append(source.next())
    with pytest.raises(StopIteration):
        source.next()
    return found


def test_what_it_draws_follows_from_the_epoch(part: Part, tmp_path: Path) -> None:
    """From any position the batches are the same; whoever else draws does not matter."""
    source = part("training_data").source_of(drawn, 7, None)
    source.open(2, 0, 6, None)
    expected = rest(source)
    assert len({value for batch in expected for value in batch[2:]}) == 6
    source.save(tmp_path, within=True)
    assert list(tmp_path.iterdir()) == []
    random.random()  # noqa: S311 - somebody else
    again = part("training_data").source_of(drawn, 7, None)
    again.open(2, 1, 7, tmp_path)
    assert rest(again) == expected[1:]


def test_nobody_else_notices_what_it_draws(part: Part) -> None:
    """The global generators are as if no batch had been read."""
    source = part("training_data").source_of(drawn, 7, None)
    random.seed(1)
    expected = random.random()  # noqa: S311 - the generator's state
    random.seed(1)
    source.open(0, 0, 0, None)
    rest(source)
    assert random.random() == expected  # noqa: S311 - as above


class Numbered:
    """A data set that has a length and numbers, as a `PyDataset` has."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> str:
        """Return a batch."""
        return "ab"[number]


@pytest.mark.parametrize("data", [["a", "b"], Numbered(), lambda _epoch: iter("ab")])
def test_lists_and_data_sets_by_number(part: Part, data: Any) -> None:
    """Whatever can be read twice, with or without a length."""
    source = part("training_data").source_of(data, 7, None)
    for epoch in range(2):
        source.open(epoch, 0, 2 * epoch, None)
        assert rest(source) == ["a", "b"]


def test_what_cannot_be_read_again_is_refused(tf: Any, part: Part) -> None:
    """A generator that is begun, and a function that makes tf.data pipelines."""
    source_of = part("training_data").source_of
    with pytest.raises(RungError, match="a function of the epoch"):
        source_of(drawn(0), 7, None)
    with pytest.raises(RungError, match="batches_per_epoch"):
        source_of(["a"], 7, 3)
    source = source_of(lambda _epoch: tf.data.Dataset.range(3), 7, None)
    with pytest.raises(RungError, match=r"the tf\.data\.Dataset itself"):
        source.open(0, 0, 0, None)

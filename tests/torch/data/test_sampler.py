"""The parts of batches that fall to ranks."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler

from rung.torch.data.sampler import EpochOrder
from rung.torch.data.training_data import TrainingData
from rung.training import rng
from rung.training.shares import Part


@pytest.mark.parametrize("length", [0, 1, 5, 6, 8, 23])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_parts_are_even_disjoint_and_whole(length: int, size: int) -> None:
    """Together the parts are the batch, in its order; their sizes differ by one at most."""
    records = list(range(length))
    parts = [records[Part(rank, size).of(length)] for rank in range(size)]
    assert [record for part in parts for record in part] == records
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [Part(rank, size).count(length) for rank in range(size)] == [*map(len, parts)]


def test_each_rank_draws_its_part_of_every_batch() -> None:
    """All ranks know the batches' lengths; who has no part gets a record to stand in."""
    inner = BatchSampler(SequentialSampler(range(7)), 3, drop_last=False)
    orders = [EpochOrder(inner, 5, tagged=False, part=Part(rank, 2)) for rank in range(2)]
    assert [list(order) for order in orders] == [[[0, 1], [3, 4], [6]], [[2], [5], [6]]]
    assert [order.lengths for order in orders] == [{0: 3, 1: 3, 2: 1}] * 2


def test_workers_of_another_rank_draw_otherwise() -> None:
    """Augmentation differs between ranks, and on rank 0 is that of a single process."""
    inner = BatchSampler(SequentialSampler(range(8)), 4, drop_last=False)

    def seeds(part: Part) -> list[int]:
        return [drawn.seed for drawn in EpochOrder(inner, 5, tagged=True, part=part)]

    assert seeds(Part(0, 2)) == seeds(Part(0, 1))
    assert not set(seeds(Part(0, 2))) & set(seeds(Part(1, 2)))


NUMBERS: Any = range(100)


class Unsized(Sampler[Any]):
    """Draws from the global generators as it goes, and does not say how long."""

    def __init__(self, *, batches: bool) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for _ in range(4 if self._batches else 16):
            drawn = [random.randrange(100), int(torch.randint(100, ()))]  # noqa: S311 - as users do
            yield drawn if self._batches else drawn[0]


def unsized(*, batches: bool) -> DataLoader[Any]:
    """Return a loader without a length."""
    sampler = Unsized(batches=batches)
    if batches:
        return DataLoader(NUMBERS, batch_sampler=sampler)
    return DataLoader(NUMBERS, batch_size=4, sampler=sampler)


@pytest.mark.filterwarnings("ignore:'set_vital'")
@pytest.mark.parametrize("batches", [False, True])
def test_a_sampler_without_a_length_draws_nothing_from_training(*, batches: bool) -> None:
    """Its order follows from the seed, whatever is drawn in between, and before a resume."""

    def rest(seed: int, state: dict[str, Any] | None = None) -> list[Any]:
        data = TrainingData(unsized(batches=batches), 5)
        assert data.length is None
        data.start(0, state)
        rng.seed_everything(seed)
        found = []
        while True:
            before = rng.capture().python, torch.get_rng_state()
            try:
                found.append(data.next().tolist())
            except StopIteration:
                return found
            assert before[0] == rng.capture().python
            assert torch.equal(before[1], torch.get_rng_state())

    whole = rest(1)
    assert len(whole) == 4
    assert rest(2) == whole
    data = TrainingData(unsized(batches=batches), 5)
    data.start(0, None)
    assert [data.next().tolist() for _ in range(2)] == whole[:2]
    assert rest(3, data.state()) == whole[2:]


class Endless(Sampler[int]):
    """Goes on and on, though it says how long an epoch is."""

    drawn = 0

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        while True:
            self.drawn += 1
            assert self.drawn < 100, "it draws for ever"
            yield self.drawn % 8


@pytest.mark.filterwarnings("ignore:'set_vital'")
def test_an_endless_sampler_has_epochs_of_its_length() -> None:
    """Eight records are two batches; then the next epoch begins. The log says so, once."""
    data = TrainingData(DataLoader(NUMBERS, batch_size=4, sampler=Endless()), 5)
    assert data.length == 2
    with capture_logs() as logs:
        for epoch in range(2):
            data.start(epoch, None)
            assert [len(data.next()) for _ in range(2)] == [4, 4]
            data.finish()
    assert [each["event"] for each in logs] == [
        "the sampler goes on beyond its length; each epoch ends there"
    ]

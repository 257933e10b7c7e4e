"""The training data of several ranks: what each gets of every batch, and what is refused."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from rung.core import DistributedContext
from rung.torch import InvalidPlan
from rung.torch.data.training_data import TrainingData
from support.ranked import on_agents, ranked

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital'")  # of torchdata's own constructor
SEED = 11
NUMBERS = TensorDataset(torch.arange(16))


def on_ranks(size: int, work: Callable[[DistributedContext], Any]) -> list[Any]:
    """Do some work on so many ranks at once; return what came of it by rank."""
    return ranked(on_agents(size), work)


def of_numbers(
    build: Callable[[DistributedContext], DataLoader[Any]], wanted: int | None = None
) -> list[list[Any]]:
    """Return what each of two ranks gets in an epoch of a loader over NUMBERS."""

    def work(ranks: DistributedContext) -> list[Any]:
        data = TrainingData(build(ranks), SEED, ranks, wanted)
        data.start(0, None)
        assert data.length is not None
        return [data.next()[0].tolist() for _ in range(data.length)]

    return on_ranks(2, work)


def sampler_of_a_rank(replicas: int) -> Callable[[DistributedContext], Any]:
    """Return what a script makes for a process of so many."""
    return lambda ranks: DistributedSampler(NUMBERS, replicas, ranks.rank % replicas)


@pytest.mark.parametrize("batched", [False, True])
def test_a_sampler_that_gives_each_rank_its_records_is_refused(*, batched: bool) -> None:
    """A part of a part would leave records out; the message says what to do."""

    def build(ranks: DistributedContext) -> DataLoader[Any]:
        sampler = sampler_of_a_rank(2)(ranks)
        if batched:
            return DataLoader(NUMBERS, batch_sampler=BatchSampler(sampler, 4, drop_last=False))
        return DataLoader(NUMBERS, batch_size=4, sampler=sampler)

    with pytest.raises(InvalidPlan, match=r"training .* DistributedSampler .* leave it out"):
        of_numbers(build)


def test_a_sampler_of_all_records_is_shared() -> None:
    """With a single replica it is like any other sampler."""
    found = of_numbers(
        lambda ranks: DataLoader(NUMBERS, batch_size=4, sampler=sampler_of_a_rank(1)(ranks))
    )
    assert [len(batch) for batches in found for batch in batches] == [2] * 8
    assert sorted(it for batches in found for batch in batches for it in batch) == [*range(16)]


PER_SLOT: dict[str, Callable[[], DataLoader[Any]]] = {
    "torch": lambda: DataLoader(NUMBERS, batch_size=4),
    "torchdata": lambda: StatefulDataLoader(NUMBERS, batch_size=4),
    "torchdata, shuffled": lambda: StatefulDataLoader(NUMBERS, batch_size=4, shuffle=True),
    "batches": lambda: DataLoader(
        NUMBERS, batch_sampler=BatchSampler(SequentialSampler(NUMBERS), 4, drop_last=False)
    ),
}


@pytest.mark.parametrize("kind", sorted(PER_SLOT))
def test_a_share_of_the_global_batch_size_is_taken_at_its_word(kind: str) -> None:
    """Each of two ranks has four records of each batch of eight, whatever loader there is."""
    found = of_numbers(lambda _: PER_SLOT[kind](), 8)
    assert [len(batch) for batches in found for batch in batches] == [4] * 4
    assert sorted(it for batches in found for batch in batches for it in batch) == [*range(16)]


class Foreign(BatchSampler):
    """A batch sampler of a script's own."""


def test_a_share_in_a_batch_sampler_of_ones_own_is_refused() -> None:
    """Nobody else can make its batches larger; as it is, they would be too small."""

    def build(size: int) -> DataLoader[Any]:
        sampler = Foreign(SequentialSampler(NUMBERS), size, drop_last=False)
        return DataLoader(NUMBERS, batch_sampler=sampler)

    with pytest.raises(InvalidPlan, match=r"Foreign is 4, of all slots together, .* is 8"):
        of_numbers(lambda _: build(4), 8)
    assert of_numbers(lambda _: build(8), 8)[1] == [[4, 5, 6, 7], [12, 13, 14, 15]]


class Plain(IterableDataset[int]):
    """A stream without a state."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Placed(Plain):
    """A stream that can tell where it is."""

    position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < self.length:
            self.position += 1
            yield self.position - 1
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        """Keep the position."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take the position back."""
        self.position = state["position"]


class Parts(NamedTuple):
    """What a rank got of a stream's batches, and its position afterwards."""

    batches: list[tuple[list[int], float]]
    state: dict[str, Any] | None
    counts: bool
    """Whether the position is one that a checkpoint takes."""


def streamed(
    loader: Callable[[], DataLoader[Any]],
    epoch: int = 0,
    state: dict[str, Any] | None = None,
    batch: int = 0,
    until: int | None = None,
) -> list[Parts]:
    """Return what each of two ranks gets of an epoch, from a position on."""

    def work(ranks: DistributedContext) -> Parts:
        data = TrainingData(loader(), SEED, ranks)
        data.start(epoch, state, batch)
        found: list[tuple[list[int], float]] = []
        while until is None or len(found) < until:
            try:
                found.append((data.next().tolist(), data.share))
            except StopIteration:
                break
        return Parts(found, data.state(), data.share > 0)

    return on_ranks(2, work)


def position_of(parts: list[Parts]) -> dict[str, Any] | None:
    """Return the position that a checkpoint holds."""
    found = [each.state for each in parts if each.counts and each.state is not None]
    return found[-1] if found else None


@pytest.mark.parametrize("stream", [Plain, Placed])
@pytest.mark.parametrize("drop", [False, True])
def test_a_run_resumed_behind_a_streams_end_trains_the_next_epoch(
    stream: type[Plain], *, drop: bool
) -> None:
    """The stream does not divide evenly: 11 records in batches of 4; the epochs are equal."""

    def loader() -> DataLoader[Any]:
        return DataLoader(stream(11), batch_size=4, drop_last=drop)

    first = streamed(loader)
    assert [len(each.batches) for each in first] == [2 if drop else 3] * 2
    second = streamed(loader, 1, position_of(first))
    assert [each.batches for each in second] == [each.batches for each in first]


@pytest.mark.parametrize("stream", [Plain, Placed])
def test_a_run_resumed_before_a_last_batch_without_its_part_trains_it(
    stream: type[Plain],
) -> None:
    """Nine records in batches of 4: of the last one a rank has nothing, and takes another's."""

    def loader() -> DataLoader[Any]:
        return DataLoader(stream(9), batch_size=4)

    unbroken = streamed(loader)
    assert [each.batches[2] for each in unbroken] == [([8], 1.0), ([6, 7], 0.0)]
    position = position_of(streamed(loader, until=2))
    resumed = streamed(loader, 0, position, 2)
    assert [each.batches for each in resumed] == [[([8], 1.0)], [([8], 0.0)]]


class Other(Plain):
    """One whose state is like nothing of ours, and that is its own iterator."""

    read = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.read == self.length:
            self.read = 0
            raise StopIteration
        self.read += 1
        return self.read - 1

    def state_dict(self) -> dict[str, int]:
        """Keep how many are read."""
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on behind so many."""
        self.read = state["read"]


@pytest.mark.parametrize("stream", [Placed, Other])
def test_a_stream_goes_on_on_another_number_of_slots(stream: type[Plain]) -> None:
    """On two, on one behind them, and on two again: each begins where the one before ended."""

    def loader() -> DataLoader[Any]:
        return DataLoader(stream(13), batch_size=4)

    position = position_of(streamed(loader, until=1))
    alone = TrainingData(loader(), SEED)
    alone.start(0, position, 1)
    assert alone.next().tolist() == [4, 5, 6, 7]
    resumed = streamed(loader, 0, alone.state(), 2)
    assert [each.batches for each in resumed] == [
        [([8, 9], 0.5), ([12], 1.0)],
        [([10, 11], 0.5), ([10, 11], 0.0)],
    ]

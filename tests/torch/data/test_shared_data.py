"""The training data of several ranks: what each gets of every batch, and what is refused."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from rung.core import DistributedContext
from rung.torch import InvalidPlan, stream
from rung.torch.data.training_data import TrainingData
from support.ranked import forked, on_agents, ranked

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


def shared(data: Plain) -> Plain:
    """Return a stream that is the same on all ranks, as its script says."""
    return stream(data, shards_itself=False)


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


@pytest.mark.parametrize("kind", [Plain, Placed])
@pytest.mark.parametrize("drop", [False, True])
def test_a_run_resumed_behind_a_streams_end_trains_the_next_epoch(
    kind: type[Plain], *, drop: bool
) -> None:
    """The stream does not divide evenly: 11 records in batches of 4; the epochs are equal."""

    def loader() -> DataLoader[Any]:
        return DataLoader(shared(kind(11)), batch_size=4, drop_last=drop)

    first = streamed(loader)
    assert [len(each.batches) for each in first] == [2 if drop else 3] * 2
    second = streamed(loader, 1, position_of(first))
    assert [each.batches for each in second] == [each.batches for each in first]


@pytest.mark.parametrize("kind", [Plain, Placed])
def test_a_run_resumed_before_a_last_batch_without_its_part_trains_it(
    kind: type[Plain],
) -> None:
    """Nine records in batches of 4: of the last one a rank has nothing, and takes another's."""

    def loader() -> DataLoader[Any]:
        return DataLoader(shared(kind(9)), batch_size=4)

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


@pytest.mark.parametrize("kind", [Placed, Other])
def test_a_stream_goes_on_on_another_number_of_slots(kind: type[Plain]) -> None:
    """On two, on one behind them, and on two again: each begins where the one before ended."""

    def loader() -> DataLoader[Any]:
        return DataLoader(shared(kind(13)), batch_size=4)

    position = position_of(streamed(loader, until=1))
    alone = TrainingData(loader(), SEED)
    alone.start(0, position, 1)
    assert alone.next().tolist() == [4, 5, 6, 7]
    resumed = streamed(loader, 0, alone.state(), 2)
    assert [each.batches for each in resumed] == [
        [([8, 9], 0.5), ([12], 1.0)],
        [([10, 11], 0.5), ([10, 11], 0.0)],
    ]


class Sharded(Placed):
    """A stream that gives each rank every n-th record, as webdataset's split_by_node does."""

    def __init__(self, ranks: DistributedContext, length: int = 32) -> None:
        super().__init__(len(range(ranks.rank, length, ranks.size)))
        self.first, self.step = ranks.rank, ranks.size

    def __iter__(self) -> Iterator[int]:
        return (self.first + self.step * number for number in super().__iter__())


def epochs_of(
    build: Callable[[DistributedContext], DataLoader[Any]],
    size: int = 2,
    states: list[Any] | None = None,
    until: int | None = None,
    batch: int = 0,
    *,
    draws: bool = False,
) -> list[Parts]:
    """Return what each rank gets in an epoch, or the rest of one.

    Where the records draw from global generators, each rank has some of its own, in a process.
    """

    def work(ranks: DistributedContext) -> Parts:
        data = TrainingData(build(ranks), SEED, ranks)
        data.start(0, states[ranks.rank % len(states)] if states else None, batch)
        found: list[tuple[list[int], float]] = []
        while until is None or len(found) < until:
            try:
                found.append((data.next().flatten().tolist(), data.share))
            except StopIteration:
                break
        return Parts(found, data.state(), data.share > 0)

    return forked(on_agents(size), work) if draws else on_ranks(size, work)


def records(parts: list[Parts]) -> list[int]:
    """Return the records that all ranks trained, those that only stand in left out."""
    return sorted(it for part in parts for batch, share in part.batches if share for it in batch)


@pytest.mark.parametrize("size", [None, 8])
def test_a_stream_is_refused_until_the_script_says_who_shards_it(size: int | None) -> None:
    """On several ranks; the message has the line to write."""
    with pytest.raises(InvalidPlan, match=r"training .* \(Plain\).* rung\.torch\.stream\(dataset"):
        epochs_of(lambda _: DataLoader(Plain(8), batch_size=size))


@pytest.mark.parametrize("slots", [2, 4])
@pytest.mark.parametrize(("length", "drop"), [(32, False), (33, False), (32, True)])
def test_a_stream_that_shards_itself_is_not_shared_again(
    slots: int, length: int, *, drop: bool
) -> None:
    """Each record is trained once, in batches of all ranks together."""

    def build(ranks: DistributedContext) -> DataLoader[Any]:
        data = stream(Sharded(ranks, length), shards_itself=True)
        return DataLoader(data, batch_size=8, drop_last=drop)

    found = epochs_of(build, slots)
    assert records(found) == list(range(length))
    assert sum(share for part in found for _, share in part.batches[:1]) == 1.0
    assert [len(part.batches[0][0]) for part in found] == [8 // slots] * slots


class Passing(DataLoader[Any]):
    """A loader of a script's own class."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


@pytest.mark.parametrize("kind", [DataLoader, Passing])
def test_a_stream_that_shards_itself_goes_on_where_each_rank_was(
    capsys: pytest.CaptureFixture[str], kind: type[DataLoader[Any]]
) -> None:
    """On as many ranks; on another number the epoch begins anew, and the log says so.

    Also if the batches before would be read again.
    """

    def build(ranks: DistributedContext) -> DataLoader[Any]:
        return kind(stream(Sharded(ranks), shards_itself=True), batch_size=8)

    first = epochs_of(build, until=2)
    position = position_of(first)
    rest = epochs_of(build, states=[position], batch=2)
    assert sorted(records(first) + records(rest)) == list(range(32))
    assert "begins anew" not in capsys.readouterr().out
    assert records(epochs_of(build, 3, [position], batch=2)) == list(range(32))
    assert "position on 2 slots is none on 3 slots" in capsys.readouterr().out


class Normalised(DataLoader[Any]):
    """A loader that works on each batch, as those of graphs do."""

    def __iter__(self) -> Any:
        for (batch,) in super().__iter__():
            yield batch * 1000


def test_a_loaders_own_iter_is_used_on_several_ranks() -> None:
    """On each rank's part."""
    found = epochs_of(lambda _: Normalised(NUMBERS, batch_size=4))
    assert records(found) == [1000 * number for number in range(16)]
    assert [len(batch) for part in found for batch, _ in part.batches] == [2] * 8


class Repeating(DataLoader[Any]):
    """A loader that keeps its workers by reading its batch sampler once and for all."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.kept = super().__iter__()

    def __iter__(self) -> Any:
        yield from self.kept


class Filtering(DataLoader[Any]):
    """A loader that leaves out batches."""

    def __iter__(self) -> Any:
        yield from (batch for (batch,) in super().__iter__() if 0 not in batch)


def test_loaders_whose_batches_cannot_be_shared_are_refused() -> None:
    """Rather than trained twice, or in parts that do not belong together."""
    with pytest.raises(InvalidPlan, match="a Repeating, does not read its batch_sampler"):
        epochs_of(lambda _: Repeating(NUMBERS, batch_size=4))
    with pytest.raises(RuntimeError, match=r"a Filtering, yields 3 batches for 4"):
        epochs_of(lambda _: Filtering(NUMBERS, batch_size=4))


class Whole(IterableDataset[Any]):
    """Batches that a data set makes itself."""

    def __init__(self, size: int = 4) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, 16, self.size):
            yield torch.arange(start, start + self.size)


@pytest.mark.parametrize("kind", ["stream", "index", "lists"])
def test_without_a_batch_size_each_rank_has_its_part_of_each_batch(kind: str) -> None:
    """Of batches that a data set makes, and of lists of records that a sampler gives."""

    def build(_: DistributedContext) -> DataLoader[Any]:
        match kind:
            case "stream":
                return DataLoader(stream(Whole(), shards_itself=False), batch_size=None)
            case "index":
                return DataLoader(list(Whole()), batch_size=None, shuffle=True)  # type: ignore[arg-type]  # a list will do
            case _:
                sampler = BatchSampler(SequentialSampler(NUMBERS), 4, drop_last=False)
                data: Any = torch.arange(16)
                return DataLoader(data, batch_size=None, sampler=sampler)

    found = epochs_of(build)
    assert records(found) == list(range(16))
    assert [(len(batch), share) for part in found for batch, share in part.batches] == [
        (2, 0.5)
    ] * 8


def test_without_a_batch_size_a_stream_that_shards_itself_keeps_its_batches() -> None:
    """They are of each rank; together they make a step."""

    def build(ranks: DistributedContext) -> DataLoader[Any]:
        own: Any = list(Whole())[ranks.rank :: 2]

        class Own(IterableDataset[Any]):
            def __iter__(self) -> Iterator[Any]:
                return iter(own)

        return DataLoader(stream(Own(), shards_itself=True), batch_size=None)

    found = epochs_of(build)
    assert records(found) == list(range(16))
    assert [len(batch) for part in found for batch, _ in part.batches] == [4] * 4


def test_what_has_no_part_is_refused_without_a_batch_size() -> None:
    """A batch whose records cannot be told, or do not agree."""
    with pytest.raises(InvalidPlan, match="batch_size=None"):
        epochs_of(lambda _: DataLoader(["text"], batch_size=None))  # type: ignore[arg-type]  # a list will do
    pair: Any = [(torch.zeros(2), torch.zeros(3))]
    with pytest.raises(ValueError, match="first dimension"):
        epochs_of(lambda _: DataLoader(pair, batch_size=None))


class Shard(Dataset[torch.Tensor]):
    """Every so many-th number, as `datasets.Dataset.shard` gives it; at random or not."""

    def __init__(self, rank: int, size: int, *, noise: float = 0.0, own: bool = False) -> None:
        self.numbers = torch.arange(rank, 16, size).float()
        self.noise = noise
        self.generator = torch.Generator().manual_seed(rank) if own else None

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = torch.rand((), generator=self.generator)
        return self.numbers[index] + self.noise * drawn


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_shards_of_one_length_are_refused(noise: float) -> None:
    """By their records, also where these are augmented at random."""
    with pytest.raises(InvalidPlan, match="differ in their first records and last records"):
        epochs_of(lambda ranks: DataLoader(Shard(ranks.rank, ranks.size, noise=noise)), draws=True)


@pytest.mark.parametrize("own", [False, True])
def test_what_is_augmented_at_random_is_no_shard(own: bool) -> None:  # noqa: FBT001 - of the test
    """Whether it draws from the generators that all share, or each slot from one of its own."""
    found = epochs_of(
        lambda _: DataLoader(Shard(0, 1, noise=0.1, own=own), batch_size=4), draws=True
    )
    assert found


def test_subsets_that_differ_are_refused() -> None:
    """They are shards already, of one length or of several."""
    for size in (2, 3):
        with pytest.raises(InvalidPlan, match="data sets of the slots differ in their"):
            epochs_of(
                lambda ranks: DataLoader(
                    Subset(NUMBERS, range(ranks.rank, 16, ranks.size)), batch_size=4
                ),
                size,
            )

"""The order of the data: a function of seed and epoch, from any position, with any workers."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from rung.torch.data.training_data import TrainingData, records_of
from rung.training import rng

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital'"),  # of torchdata's own constructor
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on a single core
]
SEED = 11


class Numbers(Dataset[int]):
    """Twenty numbers, with as much noise as is asked for."""

    def __init__(self, noise: int = 0) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        """Return the index plus noise from all generators, in the hundreds."""
        drawn = [random.randrange(10), np.random.randint(10)]  # noqa: NPY002, S311
        drawn.append(int(torch.randint(10, ())))
        return index + 100 * self.noise * sum(drawn)


class Own(Sampler[int]):
    """A sampler that draws from the global generators as it goes."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(20):
            yield random.randrange(20)  # noqa: S311 - that is the point

    def __len__(self) -> int:
        return 20


LOADERS: dict[str, Any] = {
    "shuffled": lambda w: DataLoader(Numbers(), batch_size=3, shuffle=True, num_workers=w),
    "noisy": lambda w: DataLoader(Numbers(1), batch_size=3, shuffle=True, num_workers=w),
    "stateful": lambda w: StatefulDataLoader(Numbers(), batch_size=3, shuffle=True, num_workers=w),
    "weighted": lambda w: DataLoader(
        Numbers(),
        batch_size=3,
        sampler=WeightedRandomSampler(torch.ones(20).tolist(), 20),
        num_workers=w,
    ),
    "own": lambda w: DataLoader(Numbers(), batch_size=3, sampler=Own(), num_workers=w),
    "generator": lambda w: DataLoader(
        Numbers(), batch_size=3, shuffle=True, generator=torch.Generator(), num_workers=w
    ),
    "batches": lambda w: DataLoader(
        Numbers(),
        batch_sampler=BatchSampler(RandomSampler(Numbers()), 3, drop_last=True),
        num_workers=w,
    ),
    "persistent": lambda w: DataLoader(
        Numbers(1), batch_size=3, shuffle=True, num_workers=w, persistent_workers=w > 0
    ),
    "single": lambda w: DataLoader(Numbers(1), batch_size=None, shuffle=True, num_workers=w),
}


def epoch_of(data: TrainingData, epoch: int, state: dict[str, Any] | None = None) -> list[Any]:
    """Return the rest of an epoch."""
    data.start(epoch, state)
    found: list[Any] = []
    while True:
        try:
            batch = data.next()
        except StopIteration:
            return found
        found.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", sorted(LOADERS))
def test_an_epoch_goes_on_exactly_where_it_was(kind: str, workers: int) -> None:
    """A new loader with the saved position yields the rest of the epoch, then the next one."""
    if workers == 0 and kind in {"noisy", "persistent", "single"}:
        rng.seed_everything(1)  # here the noise comes from the process's own generators
    unbroken = TrainingData(LOADERS[kind](workers), SEED)
    whole = [epoch_of(unbroken, epoch) for epoch in (0, 1, 2)]
    first = TrainingData(LOADERS[kind](workers), SEED)
    if workers == 0:
        rng.seed_everything(1)
    assert epoch_of(first, 0) == whole[0]
    first.start(1, None)
    seen = [first.next() for _ in range(4)]
    state, generators = first.state(), rng.capture()
    assert len(seen) == 4
    rng.seed_everything(99)
    second = TrainingData(LOADERS[kind](workers), SEED)
    second.start(1, state)
    rng.restore(generators)
    rest: list[Any] = []
    while len(rest) < len(whole[1]) - 4:
        batch = second.next()
        rest.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
    assert rest == whole[1][4:]
    assert epoch_of(second, 2) == whole[2]


def test_epochs_differ_and_seeds_differ() -> None:
    """Each epoch and each seed has an order of its own."""
    data = TrainingData(LOADERS["shuffled"](0), SEED)
    other = TrainingData(LOADERS["shuffled"](0), SEED + 1)
    first, second, third = epoch_of(data, 0), epoch_of(data, 1), epoch_of(other, 0)
    assert first != second
    assert first != third
    assert epoch_of(data, 0) == first
    assert sorted(number for batch in first for number in batch) == list(range(20))


def test_workers_draw_the_same_whatever_their_number() -> None:
    """Augmentation in one worker or three gives the same batches."""
    orders = [epoch_of(TrainingData(LOADERS["noisy"](w), SEED), 0) for w in (1, 3)]
    assert orders[0] == orders[1]


def test_the_order_draws_nothing_from_training() -> None:
    """Starting an epoch leaves the process's generators as they were, and does not read them."""
    orders = []
    for seed in (1, 2):
        rng.seed_everything(seed)
        before = torch.get_rng_state()
        data = TrainingData(LOADERS["own"](0), SEED)
        data.start(0, None)
        assert torch.equal(before, torch.get_rng_state())
        orders.append(epoch_of(data, 0))
    assert orders[0] == orders[1]


class Counting(IterableDataset[int]):
    """A stream that knows where it is."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < 20:
            self.position += 1
            yield self.position
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """Keep the position."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the position back."""
        self.position = state["position"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_with_a_state_of_its_own_goes_on(workers: int) -> None:
    """An IterableDataset that knows where it is is asked, in its workers too."""

    def build() -> TrainingData:
        return TrainingData(DataLoader(Counting(), batch_size=3, num_workers=workers), SEED)

    whole = epoch_of(build(), 0)
    data = build()
    data.start(0, None)
    seen = [data.next().tolist() for _ in range(3)]
    assert seen + epoch_of(build(), 0, data.state()) == whole


class Alternating(IterableDataset[int]):
    """A stream of which each worker reads every n-th number."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        return iter(range(worker.id, 40, worker.num_workers) if worker else range(40))


class Doubling(DataLoader[Any]):
    """A loader of a script's own class."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield 2 * batch


class Placing(Doubling):
    """One that knows where it is."""

    seen = 0

    def __iter__(self) -> Any:
        skipped = self.seen
        for number, batch in enumerate(super().__iter__()):
            if number >= skipped:
                self.seen = number + 1
                yield batch
        self.seen = 0

    def state_dict(self) -> dict[str, int]:
        """Return how many were read."""
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on behind them."""
        self.seen = state["seen"]


MOVED: dict[str, Any] = {
    "index": lambda w: DataLoader(Numbers(1), batch_size=3, shuffle=True, num_workers=w),
    "stream": lambda w: DataLoader(Alternating(), batch_size=3, num_workers=w),
    "stream in an own class": lambda w: Doubling(Alternating(), batch_size=3, num_workers=w),
    "stream with a state": lambda w: DataLoader(Counting(), batch_size=3, num_workers=w),
    "own class": lambda w: Doubling(Numbers(1), batch_size=3, shuffle=True, num_workers=w),
    "own state": lambda w: Placing(Numbers(1), batch_size=3, shuffle=True, num_workers=w),
}


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (2, 0)])
@pytest.mark.parametrize("kind", sorted(MOVED))
def test_an_epoch_goes_on_with_another_number_of_workers(
    kind: str, before: int, after: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `os.cpu_count() // n` on another machine; what cannot be the same is in the log."""
    data = TrainingData(MOVED[kind](before), SEED)
    data.start(0, None)
    for _ in range(2):
        data.next()
    state = data.state()
    rest = []
    with contextlib.suppress(StopIteration):
        while True:
            rest.append(data.next().tolist())
    capsys.readouterr()
    moved = TrainingData(MOVED[kind](after), SEED)
    found = epoch_of(moved, 0, state)
    has_state = "stream" in kind or "state" in kind
    told = f"num_workers was {before} and is {after}"
    assert (told in capsys.readouterr().out) == (has_state or after == 0)
    assert len(found) == len(rest)
    if after or has_state:
        assert found == rest
    if has_state and (after or "stream" in kind):  # else it draws from this process's generators
        assert epoch_of(moved, 1) == epoch_of(TrainingData(MOVED[kind](after), SEED), 1)


@pytest.mark.parametrize("data", [Numbers(), Alternating()])
def test_a_loaders_own_class_is_kept(data: Any) -> None:
    """Its `__iter__` sees each batch, whatever the data are."""
    found = epoch_of(TrainingData(Doubling(data, batch_size=4), SEED), 0)
    assert sorted(number for batch in found for number in batch) == [
        2 * number for number in range(20 if isinstance(data, Numbers) else 40)
    ]


def test_a_loader_that_is_not_in_order_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    """The option is kept, and the log says what it costs."""
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, in_order=False)
    found = epoch_of(TrainingData(loader, SEED), 0)
    assert sorted(number for batch in found for number in batch) == list(range(20))
    assert "in_order=False" in capsys.readouterr().out


def test_what_is_no_loader_is_refused() -> None:
    """The message says what should have been returned."""
    with pytest.raises(TypeError, match="must return a torch DataLoader"):
        TrainingData([1, 2], SEED)
    with pytest.raises(ValueError, match="no batches"):
        TrainingData(
            DataLoader(Numbers(), batch_size=50, sampler=SequentialSampler([]), drop_last=True),
            SEED,
        )


@pytest.mark.parametrize(
    ("batch", "records"),
    [
        (torch.zeros(3, 2), 3),
        ([torch.zeros(4), torch.zeros(4)], 4),
        ({"text": ["a"], "ids": torch.zeros(5, 2)}, 5),
        ((("x",), {"y": torch.zeros(2)}), 2),
        (torch.tensor(1.0), 1),
        ("text", None),
    ],
)
def test_records_are_counted_by_the_first_tensor(batch: Any, records: int | None) -> None:
    """Nested batches too; where there is no tensor, nobody can tell."""
    assert records_of(batch) == records

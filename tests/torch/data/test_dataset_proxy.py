"""What a script does to its data set through a wrapper reaches the data set."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from rung.torch.data.iterable_sharding import part_of_stream
from rung.torch.data.sampler import SeededDataset
from rung.torch.data.training_data import TrainingData
from rung.training.shares import Part

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital'"),  # of torchdata's own constructor
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on a single core
]


class Opened(Dataset[int]):
    """Reads from what is opened in each worker."""

    opened: range

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        """Return a number of what was opened."""
        return self.opened[index]


class Between(IterableDataset[int]):
    """The numbers between two."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def open_in(_: int) -> None:
    """Open what the data set reads from."""
    info: Any = get_worker_info()
    info.dataset.opened = range(100, 108)


def test_what_a_worker_opens_is_there() -> None:
    """`worker_init_fn` sets an attribute of the data set itself."""
    data = TrainingData(
        DataLoader(Opened(), batch_size=4, num_workers=1, worker_init_fn=open_in), 1
    )
    data.start(0, None)
    assert [data.next().tolist() for _ in range(2)] == [[100, 101, 102, 103], [104, 105, 106, 107]]


@pytest.mark.parametrize(
    ("wrapped", "wrapper"),
    [
        (dataset := Opened(), SeededDataset(dataset)),
        (stream := Between(0, 8), part_of_stream(stream, Part(0, 2), 4)),
    ],
    ids=["index", "stream"],
)
def test_attributes_are_the_data_sets(wrapped: Any, wrapper: Any) -> None:
    """They are read, set and deleted there, whatever their names; a copy by pickle does so too."""
    wrapper._inner = wrapper._position = wrapper.start = 5
    assert vars(wrapped).items() >= {"_inner": 5, "_position": 5, "start": 5}.items()
    assert pickle.loads(pickle.dumps(wrapper)).start == 5  # noqa: S301 - our own
    del wrapper.start
    assert not hasattr(wrapped, "start")


def test_a_stream_begins_where_it_was_told() -> None:
    """Each rank has its part of what is left of it."""
    found: list[int] = []
    for rank in range(2):
        part: Any = part_of_stream(Between(0, 8), Part(rank, 2), 4)
        part.start = 4
        found += list(part)
    assert found == [4, 5, 6, 7]

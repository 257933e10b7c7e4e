"""The parts of a stream that fall to ranks."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from rung.torch.order import Part
from rung.torch.stream import PartOfStream, StatefulPartOfStream, part_of_stream
from training.shared import Stream


class Plain(IterableDataset[Any]):
    """A stream without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(11))


def test_the_parts_are_the_stream() -> None:
    """Each rank keeps its part of every batch of all, of the last one too."""
    parts = [list(part_of_stream(Plain(), Part(rank, 3), 4)) for rank in range(3)]
    assert parts == [[0, 1, 4, 5, 8, 9], [2, 6, 10], [3, 7]]


def test_a_state_is_kept_where_there_is_one() -> None:
    """A part can tell where it is only if its stream can."""
    assert type(part_of_stream(Plain(), Part(0, 2), 4)) is PartOfStream
    assert type(part_of_stream(Stream(), Part(0, 2), 4)) is StatefulPartOfStream


def test_another_number_of_ranks_goes_on_from_the_last_ranks_state() -> None:
    """What the last of two ranks has behind a batch is where three ranks begin the next."""
    last = part_of_stream(Stream(), Part(1, 2), 4)
    assert isinstance(last, StatefulPartOfStream)
    taken = iter(last)
    for _ in range(4):
        next(taken)
    state = last.state_dict()
    assert state == {"stream": {"position": 8}, "position": 8}
    counts = []
    for rank in range(3):
        part = part_of_stream(Stream(), Part(rank, 3), 4)
        assert isinstance(part, StatefulPartOfStream)
        part.load_state_dict(state)
        counts.append(len(list(part)))
    assert sum(counts) == 22 - 8

"""The parts of a stream that fall to ranks."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from rung.torch.data.iterable_sharding import (
    PartOfStream,
    StatefulPartOfStream,
    WholeStream,
    part_of_stream,
)
from rung.training import rng
from rung.training.shares import WHOLE, Part
from support.trials.shared import Stream


class Plain(IterableDataset[Any]):
    """A stream without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(11))


def test_the_parts_are_the_stream() -> None:
    """Each rank keeps its part of every batch of all, of the last one too."""
    parts = [list(part_of_stream(Plain(), Part(rank, 3), 4)) for rank in range(3)]
    assert parts == [[0, 1, 4, 5, 8, 9], [2, 6, 10], [3, 7]]


def test_a_state_is_kept_where_there_is_one() -> None:
    """A part can tell where it is only if its stream can; for one rank alone, too."""
    assert type(part_of_stream(Plain(), Part(0, 2), 4)) is PartOfStream
    assert type(part_of_stream(Stream(), Part(0, 2), 4)) is StatefulPartOfStream
    assert type(part_of_stream(Plain(), WHOLE, 0)) is Plain
    assert type(part_of_stream(Stream(), WHOLE, 0)) is WholeStream


def test_another_number_of_ranks_goes_on_from_the_last_ranks_state() -> None:
    """What the last of two ranks has behind a batch is where three ranks begin the next."""
    last = part_of_stream(Stream(), Part(1, 2), 4)
    assert isinstance(last, StatefulPartOfStream)
    taken = iter(last)
    for _ in range(4):
        next(taken)
    state = last.state_dict()
    assert state.items() >= {"rung_stream": {"position": 8}, "rung_position": 8}.items()
    counts = []
    for rank in range(3):
        part = part_of_stream(Stream(), Part(rank, 3), 4)
        assert isinstance(part, StatefulPartOfStream)
        part.load_state_dict(state)
        counts.append(len(list(part)))
    assert sum(counts) == 22 - 8


@pytest.mark.parametrize(
    ("part", "state", "left"),
    [
        (Part(1, 2), {"stream": {"position": 8}, "position": 8}, 6),
        (Part(1, 2), {"position": 8}, 6),
        (WHOLE, {"position": 8}, 14),
    ],
)
def test_older_checkpoints_hold_no_mark(part: Part, state: dict[str, Any], left: int) -> None:
    """Several ranks stored their own words, one rank the stream's; both still say where it is."""
    stream = part_of_stream(Stream(), part, 4)
    assert isinstance(stream, StatefulPartOfStream | WholeStream)
    stream.load_state_dict(state)
    assert stream.state_dict()["rung_stream"] == {"position": 8}
    assert len(list(stream)) == left


class Shuffled(Stream):
    """Draws its order as it goes, from the generators of the process."""

    def __init__(self) -> None:
        super().__init__()
        self.left = list(range(22))

    def __iter__(self) -> Iterator[int]:
        while self.left:
            yield self.left.pop(random.randrange(len(self.left)))  # noqa: S311 - as scripts do
        self.left = list(range(22))

    def state_dict(self) -> dict[str, Any]:
        """Return what is left."""
        return {"left": list(self.left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with it."""
        self.left = list(state["left"])


def test_a_stream_that_draws_is_the_same_on_all_ranks() -> None:
    """Whatever the ranks draw themselves; so every record is trained once, resumed or not."""
    parts, resumed = [], []
    for rank in range(2):
        rng.seed_everything(rank)
        part = part_of_stream(Shuffled(), Part(rank, 2), 4, seed=5)
        assert isinstance(part, StatefulPartOfStream)
        found: list[int] = []
        for record in part:
            found.append(record)
            torch.rand(rank)
            if len(found) == 4:
                state = part.state_dict()
        parts.append(found)
    assert sorted(parts[0] + parts[1]) == list(range(22))
    for rank in range(2):
        rng.seed_everything(7 + rank)
        part = part_of_stream(Shuffled(), Part(rank, 2), 4, seed=5)
        assert isinstance(part, StatefulPartOfStream)
        part.load_state_dict(state)
        resumed.append(list(part))
    assert resumed == [found[4:] for found in parts]


def test_each_epoch_of_a_stream_has_its_own_draws() -> None:
    """Also where a worker reads it again and again."""
    part = part_of_stream(Shuffled(), Part(0, 2), 4, seed=5)
    assert list(part) != list(part)

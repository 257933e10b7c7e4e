"""Garbage collections visit what is new, and in time all that there is."""

import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest

from rung.runtime.garbage import short_collections

MANY = 100_000
FEW = 1_000


class Node:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.own = self


class Visits:
    """What collections of all generations visit."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, phase: str, about: dict[str, int]) -> None:
        """Count, before each."""
        if phase == "start" and about["generation"] == 2:
            self.counts.append(sum(len(gc.get_objects(it)) for it in range(3)))


@pytest.fixture(name="visits")
def _visits() -> Iterator[Visits]:
    """Count what collections that the test asks for visit; other objects are frozen."""
    gc.disable()
    gc.collect()
    gc.freeze()
    visits = Visits()
    gc.callbacks.append(visits)
    with short_collections(frozen_min=2 * MANY + gc.get_freeze_count()):
        yield visits
    gc.callbacks.remove(visits)
    gc.freeze()
    gc.enable()


def _held(count: int) -> list[Any]:
    return [[number] for number in range(count)]


def test_what_is_held_is_visited_once(visits: Visits) -> None:
    """However much that is: later collections visit what came since."""
    held = _held(MANY)
    gc.collect()
    more = []
    for _ in range(5):
        more.append(_held(FEW))
        gc.collect()
    first, *later = visits.counts
    assert first > len(held)
    assert len(later) == len(more)
    assert max(later) < 10 * FEW


def test_cycles_that_were_frozen_do_not_stay_for_ever(visits: Visits) -> None:
    """Once twice as much is frozen as was there, everything is visited, and they are gone."""
    node = Node()
    gone = ref(node)
    gc.collect()
    del node
    gc.collect()
    assert gone() is not None
    held = []
    while gone() is not None:
        held.append(_held(MANY))
        gc.collect()
        assert len(held) < 100
    assert len(held) > 1
    assert max(visits.counts) > len(held) * MANY
    gc.collect()
    assert visits.counts[-1] < 10 * FEW

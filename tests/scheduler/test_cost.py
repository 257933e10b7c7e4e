"""No ordinary fact makes the scheduler read all allocations, however many there are."""

from collections.abc import Iterator
from typing import NoReturn

import pytest

from rung.events import Payload
from rung.scheduler.state import Allocation
from support.scheduler.scenario import (
    Pool,
    drain,
    joined,
    left,
    move,
    released,
    requested,
    resources,
    withdrawn,
)


class _Unread(dict[str, Allocation]):
    """Allocations that are looked up one by one."""

    def __iter__(self) -> Iterator[str]:
        _read()

    def keys(self) -> NoReturn:
        _read()

    def values(self) -> NoReturn:
        _read()

    def items(self) -> NoReturn:
        _read()


def _read() -> NoReturn:
    raise AssertionError("all allocations are read")


@pytest.mark.parametrize(
    "fact",
    [
        requested("new.0.1"),
        requested("new.0.1", 4, priority=1),
        released("x.1.1", "agent-0"),
        withdrawn("x.1.1"),
        withdrawn("y.9.1"),
        move("x.1"),
        move("y.9"),
        move("y.9", to="agent-1"),
        resources("x", priority=1, max_slots=2),
        resources("y", priority=1),
        drain("agent-0"),
        left("agent-0"),
        joined("agent-2"),
    ],
    ids=lambda fact: type(fact).__name__,
)
def test_a_fact_reads_what_it_concerns(fact: Payload) -> None:
    """Its trial's allocations, its experiment's, or those of its agent."""
    pool = Pool()
    pool.tell(joined("agent-0"), joined("agent-1"))
    pool.tell(*(requested(f"x.{index}.1") for index in range(8)))
    pool.tell(*(requested(f"y.{index}.1") for index in range(8, 16)))
    pool.state.allocations = _Unread(pool.state.allocations)
    pool.tell(fact)

"""What waits, in lines that are looked at only when they could start."""

import pytest

from rung.scheduler.queue import Queue, Request
from support.scheduler.scenario import requested


def _request(name: str, arrival: int, priority: int = 42, max_slots: int | None = None) -> Request:
    fact = requested(name, 1, priority, max_slots)
    return Request(
        allocation_id=name,
        experiment_id=fact.experiment_id,
        slots=1,
        priority=priority,
        max_slots=max_slots,
        arrival=arrival,
        rank=(priority, arrival),
        spec=fact.spec,
    )


def _arrivals(queue: Queue) -> list[int]:
    return [head.rank[1] for head in queue.heads]


def test_the_first_of_each_line_is_seen_in_order() -> None:
    """Heads are sorted by priority, then arrival, whatever order their lines came in."""
    queue = Queue()
    for arrival, (name, priority) in enumerate(
        [("x.0.1", 42), ("x.1.1", 42), ("y.0.1", 1), ("z.0.1", 42), ("x.2.1", 7)]
    ):
        queue.add(_request(name, arrival, priority), 0)

    assert _arrivals(queue) == [2, 4, 0, 3]


@pytest.mark.parametrize(
    ("removed", "expected"),
    [("x.0.1", [1, 2]), ("x.1.1", [0, 2]), ("y.0.1", [0])],
    ids=["the first of a line", "the last of a line", "the only one of a line"],
)
def test_a_request_leaves_from_anywhere(removed: str, expected: list[int]) -> None:
    """A request that leaves makes way for the next of its line, or its line is gone."""
    queue = Queue()
    for arrival, name in enumerate(["x.0.1", "x.1.1", "y.0.1"]):
        queue.add(_request(name, arrival), 0)

    assert queue.remove(removed).allocation_id == removed
    assert _arrivals(queue) == expected
    assert removed not in queue
    assert len(queue) == 2


def test_a_line_that_is_held_back_is_not_seen() -> None:
    """It shows its first request again when its experiment holds less, also if that changed."""
    queue = Queue()
    for arrival in range(3):
        queue.add(_request(f"x.{arrival}.1", arrival, max_slots=2), 1)
    assert _arrivals(queue) == [0]

    queue.hold("x", 2)
    queue.hold("x", 2)
    queue.remove("x.0.1")
    assert _arrivals(queue) == []

    queue.hold("x", 1)
    queue.hold("x", 1)
    assert _arrivals(queue) == [1]


def test_a_line_that_begins_held_back_is_not_seen() -> None:
    """An experiment at its limit may go on asking without being looked at."""
    queue = Queue()
    queue.add(_request("x.0.1", 0, max_slots=2), 2)
    assert _arrivals(queue) == []

    queue.remove("x.0.1")
    queue.hold("x", 0)
    assert queue == Queue()

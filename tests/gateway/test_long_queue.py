"""What a long queue costs is what is asked for: steps of SQLite do not grow with what waits."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from rung.events import Event
from rung.events.allocation import AllocationGranted, Share
from rung.events.experiment import ResourcesChanged
from rung.events.trial import RunRequested, RunSpec
from rung.gateway.projections.pools import (
    PoolProjection,
    Waiting,
    count_waiting,
    list_waiting,
    read_pools,
    read_waiting,
)
from rung.runtime.projection.store import prepare

EXPERIMENTS = 20


def _requested(number: int) -> RunRequested:
    experiment_id, index = f"x{number % EXPERIMENTS}", number // EXPERIMENTS
    return RunRequested(
        pool="default",
        experiment_id=experiment_id,
        reason="",
        slots=1,
        priority=42,
        max_slots=None,
        spec=RunSpec(
            experiment_id=experiment_id,
            trial_id=f"{experiment_id}.{index}",
            trial_index=index,
            run=1,
            hparams={},
            seed=1,
            length=10,
            time_metric="batches",
            restore=[],
            code_digest=None,
        ),
    )


def _event(data: Any, second: int = 0) -> Event:
    time = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
    return Event(id="i", source="s", subject="s", time=time, data=data)


class Queue:
    """A pool in which so many allocations wait, and three run."""

    def __init__(self, waiting: int) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.projection = PoolProjection()
        prepare(self.db, self.projection, "ledger")
        for number in range(waiting + 3):
            self.fold(_requested(number), number)
        for number in range(3):
            asked = _requested(number)
            share = Share(agent_id="a", incarnation=1, slots=[number])
            granted = AllocationGranted(
                pool="default",
                allocation_id=asked.allocation_id,
                shares=[share],
                spec=asked.spec,
            )
            self.fold(granted)
        self.projection.flush(self.db)

    def fold(self, data: Any, second: int = 0) -> None:
        """Fold an event; it is not written yet."""
        self.projection.evolve(self.db, "default", _event(data, second))

    def steps(self, work: Callable[[sqlite3.Connection], object]) -> int:
        """Return how many steps of SQLite something takes."""
        taken = 0

        def count() -> int:
            nonlocal taken
            taken += 1
            return 0

        self.db.set_progress_handler(count, 1)
        try:
            work(self.db)
        finally:
            self.db.set_progress_handler(None, 1)
        return taken


@pytest.fixture(name="short", scope="module")
def _short() -> Iterator[Queue]:
    queue = Queue(200)
    with closing(queue.db):
        yield queue


@pytest.fixture(name="long", scope="module")
def _long() -> Iterator[Queue]:
    queue = Queue(2_000)
    with closing(queue.db):
        yield queue


QUERIES: dict[str, Callable[[sqlite3.Connection], object]] = {
    "the pools": lambda db: read_pools(db, waiting=False),
    "how many wait": count_waiting,
    "one that waits": lambda db: read_waiting(db, "default", "x7.3.1"),
    "a page": lambda db: list_waiting(db, None, None, 50),
    "the next page": lambda db: list_waiting(
        db, None, ("default", 42, "2026-01-01T00:00:50Z", "x13.2.1"), 50
    ),
    "a page of some experiments": lambda db: list_waiting(db, ["x3", "x4", "x5"], None, 5),
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_does_not_grow_with_the_queue(short: Queue, long: Queue, name: str) -> None:
    """Ten times as many wait, and a query takes as many steps."""
    query = QUERIES[name]
    assert query(long.db)
    assert 0 < long.steps(query) <= 1.1 * short.steps(query)


def test_what_an_experiment_s_event_changes_is_its_own(long: Queue) -> None:
    """Its waiting allocations are written, and those of no other are looked at."""

    class Untouched(dict[str, Waiting]):
        def _all(self) -> Any:
            raise AssertionError("all that waits is read")

        __iter__ = items = values = keys = _all

    pool = long.projection._pools["default"]
    known, pool.waiting = pool.waiting, Untouched(pool.waiting)
    before = long.db.total_changes
    long.fold(
        ResourcesChanged(
            experiment_id="x7", pool="default", priority=7, weight=1.0, max_slots=None
        )
    )
    long.projection.flush(long.db)
    pool.waiting = known

    changed = [name for name, it in known.items() if it.priority == 7]
    assert {name.partition(".")[0] for name in changed} == {"x7"}
    assert len(changed) == 100
    assert long.db.total_changes - before == len(changed)
    first = [place[3] for place, _ in list_waiting(long.db, None, None, 150)]
    assert set(first[:100]) == set(changed)


def test_the_queue_is_read_page_by_page(short: Queue) -> None:
    """By priority and age, each once, whatever is seen; and it is counted by experiment."""
    everything = list_waiting(short.db, None, None, 1_000)
    assert len(everything) == 200
    assert [place for place, _ in everything] == sorted(place for place, _ in everything)
    found, after = [], None
    while page := list_waiting(short.db, None, after, 30):
        found += page
        after = page[-1][0]
    assert found == everything
    some = [each for each in everything if each[1].experiment_id in {"x1", "x2"}]
    assert list_waiting(short.db, ["x2", "x1"], None, 1_000) == some
    assert list_waiting(short.db, [], None, 1_000) == []
    counts = count_waiting(short.db)
    assert sum(counts.values()) == 200
    assert counts["default", "x7"] == sum(it.experiment_id == "x7" for _, it in everything)

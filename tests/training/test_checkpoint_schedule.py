"""When a run checkpoints by itself: by the clock, from what checkpoints cost."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.training.checkpoint_schedule import (
    FIRST_S,
    SHORTEST_S,
    STORING_S,
    CheckpointSchedule,
    Cost,
)


class Batch(NamedTuple):
    """A step of training, and what a checkpoint after it takes."""

    trained_s: float
    held_s: float
    stored_s: float
    validated: bool = False
    """Whether a checkpoint is taken after it in any case."""


class Taken(NamedTuple):
    """A checkpoint."""

    began: float
    held_s: float
    stored_at: float
    automatic: bool
    after_s: float
    """The batch before it."""


def simulated(batches: list[Batch]) -> Iterator[Taken]:
    """Yield the checkpoints of a training, in virtual time."""
    now = stored_at = 0.0
    schedule = CheckpointSchedule(lambda: now)
    schedule.due(storing=False)
    for batch in batches:
        now += batch.trained_s
        due = schedule.due(storing=now < stored_at)
        assert not (due and now < stored_at)
        if due or batch.validated:
            now = began = max(now, stored_at)
            with schedule.holding():
                now += batch.held_s
            stored_at = now + batch.stored_s
            yield Taken(began, batch.held_s, stored_at, due, batch.trained_s)


def seconds(longest: float) -> st.SearchStrategy[float]:
    """Return times from next to nothing to much too long."""
    return st.floats(min_value=0.001, max_value=longest)


def trainings(*, validated: bool) -> st.SearchStrategy[list[Batch]]:
    """Return trainings of steps and checkpoints of any length."""
    batch = st.builds(
        Batch,
        trained_s=seconds(300.0),
        held_s=seconds(30.0),
        stored_s=seconds(900.0),
        validated=st.booleans() if validated else st.just(value=False),
    )
    return st.lists(batch, min_size=20, max_size=200)


@given(trainings(validated=False))
def test_holding_training_takes_one_percent_at_most(batches: list[Batch]) -> None:
    """Each checkpoint is paid for by the time until the next one."""
    for first, second in pairwise(simulated(batches)):
        assert first.held_s <= (second.began - first.began) / 100 * 1.000001


@given(trainings(validated=True))
def test_checkpoints_are_no_further_apart_than_said(batches: list[Batch]) -> None:
    """One comes with the first batch that ends after the period, and after the one before."""
    for first, second in pairwise(simulated(batches)):
        longest = max(600.0, 100 * first.held_s)
        stored_s = first.stored_at - first.began
        assert second.began <= first.began + max(longest, stored_s) + second.after_s + 1e-6


@given(trainings(validated=True))
def test_none_is_taken_before_it_is_due(batches: list[Batch]) -> None:
    """Whatever the one before was taken for, a period lies between it and an automatic one."""
    taken = list(simulated(batches))
    assert not taken or not taken[0].automatic or taken[0].began >= FIRST_S
    for first, second in pairwise(taken):
        assert not second.automatic or second.began >= first.began + SHORTEST_S


@pytest.mark.parametrize(
    ("held_s", "stored_s", "period_s"),
    [
        (0.01, 0.1, 60.0),
        (0.6, 1.0, 60.0),
        (2.0, 3.0, 200.0),
        (6.0, 10.0, 600.0),
        (0.1, 20.0, 200.0),
        (0.1, 400.0, STORING_S),
        (30.0, 31.0, 3000.0),
    ],
)
def test_the_period_follows_the_cost(held_s: float, stored_s: float, period_s: float) -> None:
    """Ten minutes at most, unless 1% of the time takes longer."""
    assert Cost(held_s, stored_s).period_s == period_s


def test_the_first_one_comes_early_and_is_learned_from() -> None:
    """Half a minute after the first batch; the next one when the period is over."""
    batches = [Batch(1.0, 2.0, 5.0)] * 500
    assert [round(taken.began) for taken in simulated(batches)] == [30, 230, 430]


def test_a_run_whose_period_is_set_is_left_alone() -> None:
    """Nothing is due by the clock."""
    now = 0.0
    schedule = CheckpointSchedule(lambda: now, automatic=False)
    assert not schedule.due(storing=False)
    now = 1e6
    assert not schedule.due(storing=False)


class Log:
    """Takes what a run reports."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, int, dict[str, float]]] = []

    def report_metrics(self, group: str, steps: int, metrics: dict[str, float]) -> None:
        """Take metrics."""
        self.reported.append((group, steps, metrics))


def test_what_was_chosen_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """In the log and as metrics, and again only when it has changed by half."""
    now = 0.0
    schedule, log = CheckpointSchedule(lambda: now), Log()
    schedule.due(storing=False)
    for batches, held_s in enumerate([3.0, 3.0, 4.0, 9.0], 1):
        with schedule.holding():
            now += held_s
        now += 7.0
        schedule.due(storing=False)
        schedule.tell(log, batches)  # type: ignore[arg-type]  # all that it needs
        schedule.tell(log, batches)  # type: ignore[arg-type]  # as above
    assert [(group, steps) for group, steps, _ in log.reported] == [("system", 1), ("system", 4)]
    assert log.reported[0][2] == {
        "checkpoint_period_s": 300.0,
        "checkpoint_held_s": 3.0,
        "checkpoint_stored_s": 10.0,
    }
    first, second = capsys.readouterr().out.splitlines()
    assert "a checkpoint every 5 min: one holds training for 3 s" in first
    assert "is stored within 10 s" in first
    assert "every 15 min" in second

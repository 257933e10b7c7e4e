"""How much of its time the loop waits for data."""

from collections.abc import Iterator

from rung.training.data_wait import NAME, DataWait
from support.clock import Clock


def run(wait: DataWait, clock: Clock, loads: float, steps: float, batches: int) -> None:
    """Take batches that take so long to load, and to train with."""

    def batch() -> int:
        clock.now += loads
        return 7

    for _ in range(batches):
        assert wait.batch(batch) == 7
        clock.now += steps
        wait.trained()


def test_the_fraction() -> None:
    """It is the time in the loader beside the time in loader and step together."""
    clock = Clock()
    wait = DataWait(clock)
    run(wait, clock, loads=0.3, steps=0.1, batches=10)
    assert {name: round(value, 6) for name, value in wait.take().items()} == {NAME: 0.75}


def test_other_work_does_not_count() -> None:
    """Validations and checkpoints between two batches are neither waiting nor training."""
    clock = Clock()
    wait = DataWait(clock)
    run(wait, clock, loads=0.5, steps=0.5, batches=2)
    clock.now += 1000
    run(wait, clock, loads=0.5, steps=0.5, batches=2)
    assert wait.take() == {NAME: 0.5}


def test_each_report_stands_for_itself() -> None:
    """What was told is not told again, and too little is kept for the next report."""
    clock = Clock()
    wait = DataWait(clock, period_s=1.0)
    run(wait, clock, loads=1.0, steps=0.0, batches=1)
    assert wait.take() == {NAME: 1.0}
    assert wait.take() == {}
    run(wait, clock, loads=0.0, steps=0.5, batches=1)
    assert wait.take() == {}
    run(wait, clock, loads=0.5, steps=0.0, batches=1)
    assert wait.take() == {NAME: 0.5}


def test_the_end_of_the_data_passes() -> None:
    """An epoch's end raises as before."""
    following: Iterator[int] = iter([1])
    wait = DataWait()
    assert wait.batch(lambda: next(following)) == 1
    try:
        wait.batch(lambda: next(following))
    except StopIteration:
        return
    raise AssertionError("the end was lost")

"""The signs of life of one loop, on a clock that the test turns."""

import pytest

from rung.runtime.health.loops import CURRENT_LOOP, LoopHealth, waiting_for

_PATIENCE_S = 100.0


class _Clock:
    """A clock that stands until it is turned."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> _Clock:
    """The clock of a test."""
    return _Clock()


@pytest.fixture
def loop(clock: _Clock) -> LoopHealth:
    """A loop that has just begun."""
    loop = LoopHealth("searcher/3", clock)
    loop.start()
    return loop


def test_the_partition_is_no_part_of_the_loop_s_name(loop: LoopHealth, clock: _Clock) -> None:
    """Prometheus gets one series per loop, not one for each of its partitions."""
    assert loop.base_name == "searcher"
    assert LoopHealth("metrics/logs/0", clock).base_name == "metrics/logs"
    assert LoopHealth("scheduler-watch", clock).base_name == "scheduler-watch"


def test_waiting_for_records_is_well(loop: LoopHealth, clock: _Clock) -> None:
    """A quiet partition is no trouble, however long it is quiet."""
    followed = loop.follow("experiments", 3, 7)
    followed.ended_at(7)
    clock.now_s += 1e6

    assert loop.problems(_PATIENCE_S) == []
    assert loop.unready() == []


def test_a_call_that_does_not_return_is_trouble(loop: LoopHealth, clock: _Clock) -> None:
    """It is named; before that it is given some time; afterwards all is well."""
    number = loop.call("append to searches")
    clock.now_s += _PATIENCE_S
    assert loop.problems(_PATIENCE_S) == []
    clock.now_s += 1

    assert loop.problems(_PATIENCE_S) == [
        "searcher/3: append to searches has not returned for more than 100 s"
    ]
    loop.returned(number)
    assert loop.problems(_PATIENCE_S) == []


def test_work_that_does_not_end_is_trouble(loop: LoopHealth, clock: _Clock) -> None:
    """A batch that a loop was given and never finished."""
    followed = loop.follow("experiments", 3, 7)
    followed.given(clock())
    clock.now_s += _PATIENCE_S + 1

    assert loop.problems(_PATIENCE_S) == [
        "searcher/3: works on experiments/3 behind position 7, and does not end"
    ]


def test_a_follower_that_sleeps_while_its_partition_grows_is_trouble(
    loop: LoopHealth, clock: _Clock
) -> None:
    """The ledger answers and has records, and the loop is not given any."""
    followed = loop.follow("experiments", 3, 7)
    followed.ended_at(9)
    assert followed.lag == 2
    assert loop.problems(_PATIENCE_S) == []
    clock.now_s += _PATIENCE_S + 1

    [trouble] = loop.problems(_PATIENCE_S)
    assert trouble.startswith("searcher/3: the ledger has records behind position 7")
    followed.given(clock())
    followed.done(9, clock())
    assert loop.problems(_PATIENCE_S) == []


def test_waiting_for_something_outside_is_no_trouble(loop: LoopHealth, clock: _Clock) -> None:
    """Starting a loop anew does not bring ClickHouse back; afterwards it has its time again."""
    followed = loop.follow("metrics", 0, 0)
    followed.given(clock())
    token = CURRENT_LOOP.set(loop)
    try:
        with waiting_for("ClickHouse"):
            clock.now_s += 1e6
            assert loop.problems(_PATIENCE_S) == []
        assert loop.problems(_PATIENCE_S) == []
        clock.now_s += _PATIENCE_S + 1
        assert loop.problems(_PATIENCE_S) != []
    finally:
        CURRENT_LOOP.reset(token)


def test_a_loop_that_folds_is_not_ready(loop: LoopHealth) -> None:
    """Between its first call of the ledger and the first record that it waits for."""
    assert loop.unready() == []
    loop.returned(loop.call("snapshot"))
    assert loop.unready() == ["searcher/3: folds the ledger"]


def test_calls_outside_of_loops_keep_nobody_waiting(clock: _Clock) -> None:
    """What a process asks the ledger for a request, say, is no beginning of a loop."""
    process = LoopHealth("process", clock, follows=False)
    process.returned(process.call("end"))

    assert process.unready() == []


def test_a_loop_is_ready_once_it_has_caught_up(loop: LoopHealth, clock: _Clock) -> None:
    """With what was there when it began; not with what has come since."""
    followed = loop.follow("experiments", 3, 0)
    assert loop.unready() == ["searcher/3: not known yet where experiments/3 ends"]
    followed.ended_at(10)
    assert loop.unready() == ["searcher/3: 10 records behind on experiments/3"]
    followed.done(10, clock())
    followed.ended_at(99)

    assert loop.unready() == []


def test_a_backlog_that_nobody_waits_for_is_no_reason(clock: _Clock) -> None:
    """A loop with much to work off is ready all the same; how much it is stays known."""
    loop = LoopHealth("checkpoint-gc-deleter/3", clock, awaited=False)
    followed = loop.follow("retirements", 3, 5)
    followed.ended_at(1005)
    assert (loop.unready(), followed.lag) == ([], 1000)


def test_a_loop_that_rests_after_an_error_is_alive_and_not_ready(
    loop: LoopHealth, clock: _Clock
) -> None:
    """It says why, and forgets what it followed when it starts again."""
    loop.follow("experiments", 3, 0).given(clock())
    loop.failed("broker 1 is away")
    clock.now_s += 1e6

    assert loop.problems(_PATIENCE_S) == []
    assert loop.unready() == ["searcher/3: starts again after: broker 1 is away"]
    loop.start()
    assert (loop.partitions, loop.unready()) == ([], [])

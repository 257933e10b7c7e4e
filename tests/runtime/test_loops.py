"""The signs of life of one loop, on a clock that the test turns."""

import pytest

from rung.runtime.health.loops import CURRENT, Pulse, waiting_for

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
def pulse(clock: _Clock) -> Pulse:
    """A loop that has just begun."""
    pulse = Pulse("searcher/3", clock)
    pulse.start()
    return pulse


def test_the_partition_is_no_part_of_the_loop_s_name(pulse: Pulse, clock: _Clock) -> None:
    """Prometheus gets one series per loop, not one for each of its partitions."""
    assert pulse.loop == "searcher"
    assert Pulse("metrics/logs/0", clock).loop == "metrics/logs"
    assert Pulse("scheduler-watch", clock).loop == "scheduler-watch"


def test_waiting_for_records_is_well(pulse: Pulse, clock: _Clock) -> None:
    """A quiet partition is no trouble, however long it is quiet."""
    strand = pulse.follow("experiments", 3, 7)
    strand.ended_at(7)
    clock.now_s += 1e6

    assert pulse.troubles(_PATIENCE_S) == []
    assert pulse.unready() == []


def test_a_call_that_does_not_return_is_trouble(pulse: Pulse, clock: _Clock) -> None:
    """It is named; before that it is given some time; afterwards all is well."""
    number = pulse.call("append to searches")
    clock.now_s += _PATIENCE_S
    assert pulse.troubles(_PATIENCE_S) == []
    clock.now_s += 1

    assert pulse.troubles(_PATIENCE_S) == [
        "searcher/3: append to searches has not returned for more than 100 s"
    ]
    pulse.returned(number)
    assert pulse.troubles(_PATIENCE_S) == []


def test_work_that_does_not_end_is_trouble(pulse: Pulse, clock: _Clock) -> None:
    """A batch that a loop was given and never finished."""
    strand = pulse.follow("experiments", 3, 7)
    strand.given(clock())
    clock.now_s += _PATIENCE_S + 1

    assert pulse.troubles(_PATIENCE_S) == [
        "searcher/3: works on experiments/3 behind position 7, and does not end"
    ]


def test_a_follower_that_sleeps_while_its_partition_grows_is_trouble(
    pulse: Pulse, clock: _Clock
) -> None:
    """The ledger answers and has records, and the loop is not given any."""
    strand = pulse.follow("experiments", 3, 7)
    strand.ended_at(9)
    assert strand.lag == 2
    assert pulse.troubles(_PATIENCE_S) == []
    clock.now_s += _PATIENCE_S + 1

    [trouble] = pulse.troubles(_PATIENCE_S)
    assert trouble.startswith("searcher/3: the ledger has records behind position 7")
    strand.given(clock())
    strand.done(9, clock())
    assert pulse.troubles(_PATIENCE_S) == []


def test_waiting_for_something_outside_is_no_trouble(pulse: Pulse, clock: _Clock) -> None:
    """Starting a loop anew does not bring ClickHouse back; afterwards it has its time again."""
    strand = pulse.follow("metrics", 0, 0)
    strand.given(clock())
    token = CURRENT.set(pulse)
    try:
        with waiting_for("ClickHouse"):
            clock.now_s += 1e6
            assert pulse.troubles(_PATIENCE_S) == []
        assert pulse.troubles(_PATIENCE_S) == []
        clock.now_s += _PATIENCE_S + 1
        assert pulse.troubles(_PATIENCE_S) != []
    finally:
        CURRENT.reset(token)


def test_a_loop_that_folds_is_not_ready(pulse: Pulse) -> None:
    """Between its first call of the ledger and the first record that it waits for."""
    assert pulse.unready() == []
    pulse.returned(pulse.call("snapshot"))
    assert pulse.unready() == ["searcher/3: folds the ledger"]


def test_calls_outside_of_loops_keep_nobody_waiting(clock: _Clock) -> None:
    """What a process asks the ledger for a request, say, is no beginning of a loop."""
    process = Pulse("process", clock, follows=False)
    process.returned(process.call("end"))

    assert process.unready() == []


def test_a_loop_is_ready_once_it_has_caught_up(pulse: Pulse, clock: _Clock) -> None:
    """With what was there when it began; not with what has come since."""
    strand = pulse.follow("experiments", 3, 0)
    assert pulse.unready() == ["searcher/3: not known yet where experiments/3 ends"]
    strand.ended_at(10)
    assert pulse.unready() == ["searcher/3: 10 records behind on experiments/3"]
    strand.done(10, clock())
    strand.ended_at(99)

    assert pulse.unready() == []


def test_a_backlog_that_nobody_waits_for_is_no_reason(clock: _Clock) -> None:
    """A loop with much to work off is ready all the same; how much it is stays known."""
    pulse = Pulse("checkpoint-gc-deleter/3", clock, awaited=False)
    strand = pulse.follow("retirements", 3, 5)
    strand.ended_at(1005)
    assert (pulse.unready(), strand.lag) == ([], 1000)


def test_a_loop_that_rests_after_an_error_is_alive_and_not_ready(
    pulse: Pulse, clock: _Clock
) -> None:
    """It says why, and forgets what it followed when it starts again."""
    pulse.follow("experiments", 3, 0).given(clock())
    pulse.rest("broker 1 is away")
    clock.now_s += 1e6

    assert pulse.troubles(_PATIENCE_S) == []
    assert pulse.unready() == ["searcher/3: starts again after: broker 1 is away"]
    pulse.start()
    assert (pulse.strands, pulse.unready()) == ([], [])

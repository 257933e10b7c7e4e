"""Throughput: what reports tell of how long runs take to start, to train and to leave."""

import pytest

from rung.gateway.projections.throughput import Throughput, Timing, seconds_of


def _run(
    throughput: Throughput, begun: float, start_s: float, units: list[float], unit_s: float
) -> Timing:
    """Add a run that reports after so many units each time, and leaves half a second later."""
    timing = Timing()
    timing.request(begun)
    throughput.started(timing, begun + 0.1)
    at = begun + 0.1 + start_s
    for each in units:
        at += each * unit_s
        throughput.reported(timing, at, each)
    throughput.ended(timing, at + 0.5)
    return timing


def test_intervals_tell_a_unit_from_the_start() -> None:
    """A unit takes what lies between two reports; what the first one takes longer is the start."""
    throughput = Throughput()
    timing = _run(throughput, 100.0, 3.0, [2, 2, 4], 0.5)

    assert throughput.parts() == pytest.approx((3.0, 0.5))
    assert throughput.seconds_to_leave() == pytest.approx(0.5 + 0.1, rel=0.05)
    assert timing.seconds == pytest.approx(3.0)
    assert (timing.units, timing.reports) == (6, 2)


def test_runs_of_different_lengths_tell_it_too() -> None:
    """Where each run reports once, longer ones show what a unit takes."""
    throughput = Throughput()
    for number, units in enumerate([1.0, 3.0, 9.0, 1.0]):
        _run(throughput, 100.0 + 20 * number, 3.0, [units], 0.5)

    assert throughput.parts() == pytest.approx((3.0, 0.5))


def test_one_length_does_not_tell() -> None:
    """Then all is taken to be training, or the start what it is for others, but not all of it."""
    throughput = Throughput()
    assert throughput.parts() is None
    for number in range(3):
        _run(throughput, 100.0 + 20 * number, 3.0, [2.0], 0.5)

    assert throughput.parts() == pytest.approx((0.0, 2.0))
    assert throughput.parts(3.0) == pytest.approx((3.0, 0.5))
    assert throughput.parts(99.0) == pytest.approx((3.6, 0.2))


def test_what_is_recent_counts_more() -> None:
    """A search that becomes half as fast at half its time is soon taken to be so."""
    throughput = Throughput()
    for number in range(20):
        _run(throughput, 100.0 + 10 * number, 0.0, [1] * 8, 1.0 if number < 10 else 2.0)
    _, unit_s = throughput.parts() or (0.0, 0.0)

    assert 1.75 < unit_s < 2.0


def test_odd_clocks() -> None:
    """Times that go back are left out; what was measured so far stays."""
    throughput = Throughput()
    _run(throughput, 100.0, 1.0, [1, 1], 1.0)
    before = throughput.parts()
    timing = _run(throughput, 50.0, 1.0, [1, 1], -9.0)

    assert throughput.parts() == before
    assert timing.reports == 0


def test_reports_without_a_start() -> None:
    """A report whose run's start is not on record tells nothing."""
    throughput = Throughput()
    timing = Timing()
    throughput.reported(timing, 5.0, 1.0)
    throughput.ended(timing, 6.0)

    assert throughput.parts() is None
    assert throughput.run_s.value is None


def test_times() -> None:
    """RFC 3339 with a zone; anything else is no time."""
    assert seconds_of("1970-01-01T00:01:00Z") == 60.0
    assert seconds_of("1970-01-01T00:01:00") is None
    assert seconds_of("soon") is None

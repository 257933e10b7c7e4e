"""Instruments: what is counted can be read, and nothing else."""

import timeit

import pytest

from rung.runtime.metrics.meter import Meter


@pytest.fixture
def meter() -> Meter:
    """A process's instruments, none yet."""
    return Meter()


def _lines(meter: Meter) -> list[str]:
    lines = meter.expose().decode().splitlines()
    return [line for line in lines if line.startswith("rung_")]


def test_counts_add_up(meter: Meter) -> None:
    """Two children of the same labels are one."""
    counter = meter.counter("rung_things_total", "Things.", "kind")
    counter.labels("a").inc()
    counter.labels("a").inc(2)
    counter.labels("b").inc()

    assert _lines(meter) == [
        'rung_things_total{kind="a"} 3.0',
        'rung_things_total{kind="b"} 1.0',
    ]


def test_a_histogram_has_its_buckets(meter: Meter) -> None:
    """Observations are counted at and above their bound."""
    meter.histogram("rung_time_seconds", "Time.", bounds=(1.0, 2.0)).observe(1.5)

    assert _lines(meter) == [
        'rung_time_seconds_bucket{le="1.0"} 0.0',
        'rung_time_seconds_bucket{le="2.0"} 1.0',
        'rung_time_seconds_bucket{le="+Inf"} 1.0',
        "rung_time_seconds_count 1.0",
        "rung_time_seconds_sum 1.5",
    ]


def test_a_gauge_is_read_while_somebody_knows_it(meter: Meter) -> None:
    """A source that is gone leaves no stale number; of two numbers the higher counts."""
    gauge = meter.gauge("rung_height", "Height.", "place")
    with gauge.read_from(lambda: {("here",): 1.0, ("there",): 5.0}):
        with gauge.read_from(lambda: {("here",): 2.0}):
            assert _lines(meter) == [
                'rung_height{place="here"} 2.0',
                'rung_height{place="there"} 5.0',
            ]
        assert _lines(meter) == ['rung_height{place="here"} 1.0', 'rung_height{place="there"} 5.0']
    assert _lines(meter) == []


def test_a_source_that_fails_hides_nothing_else(meter: Meter) -> None:
    """One number's trouble is logged, and all others are told."""

    def fail() -> dict[tuple[str, ...], float]:
        raise ZeroDivisionError

    broken, sound = meter.gauge("rung_broken", "Broken."), meter.gauge("rung_sound", "Sound.")
    with broken.read_from(fail), sound.read_from(lambda: {(): 7.0}):
        assert _lines(meter) == ["rung_sound 7.0"]


def test_the_process_itself_is_told_of(meter: Meter) -> None:
    """Memory, CPU and open files come along."""
    told = meter.expose().decode()

    assert "process_resident_memory_bytes" in told
    assert "process_open_fds" in told


def test_a_child_that_is_kept_costs_next_to_nothing(meter: Meter) -> None:
    """A batch counts once or twice, so 20 microseconds would already be too much."""
    count = meter.counter("rung_things_total", "Things.", "kind").labels("a")

    assert min(timeit.repeat(count.inc, number=1_000, repeat=5)) / 1_000 < 20e-6

"""Instruments: what is counted can be read, and nothing else."""

import sys
import threading
import timeit
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rung.runtime.metrics import meter as meters
from rung.runtime.metrics.meter import Meter, MeterMissing


@pytest.fixture
def meter() -> Meter:
    """A process's instruments, none yet."""
    return Meter()


@pytest.fixture
def without_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which `prometheus_client` is not installed."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    meters._client.cache_clear()
    yield
    meters._client.cache_clear()


def _lines(meter: Meter) -> list[str]:
    lines = meter.expose().decode().splitlines()
    return [line for line in lines if line.startswith("rung_")]


def test_threads_may_be_the_first_to_count() -> None:
    """What several threads count for the first time at once is one instrument."""
    together = threading.Barrier(8)

    def count(seconds: meters.Histogram) -> object:
        together.wait()
        return seconds.of("a")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            for _ in range(100):
                seconds = Meter().histogram("rung_things_seconds", "Things.", "kind")
                found = list(threads.map(count, [seconds] * 8))
                assert all(child is found[0] for child in found)
    finally:
        sys.setswitchinterval(interval)


def test_counts_add_up(meter: Meter) -> None:
    """Two children of the same labels are one."""
    counter = meter.counter("rung_things_total", "Things.", "kind")
    counter.of("a").inc()
    counter.of("a").inc(2)
    counter.of("b").inc()

    assert _lines(meter) == [
        'rung_things_total{kind="a"} 3.0',
        'rung_things_total{kind="b"} 1.0',
    ]


def test_a_histogram_has_its_buckets(meter: Meter) -> None:
    """Observations are counted at and above their bound."""
    meter.histogram("rung_time_seconds", "Time.", bounds=(1.0, 2.0)).of().observe(1.5)

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


@pytest.mark.usefixtures("without_client")
def test_counting_works_where_nobody_can_read(meter: Meter) -> None:
    """One machine needs no package of Prometheus': counting does nothing, reading says why."""
    meter.counter("rung_things_total", "Things.", "kind").of("a").inc()
    meter.histogram("rung_time_seconds", "Time.").of().observe(1)

    with pytest.raises(MeterMissing, match="pip install prometheus-client"):
        meter.expose()


def test_a_child_that_is_kept_costs_next_to_nothing(meter: Meter) -> None:
    """A batch counts once or twice, so 20 microseconds would already be too much."""
    count = meter.counter("rung_things_total", "Things.", "kind").of("a")

    assert min(timeit.repeat(count.inc, number=1_000, repeat=5)) / 1_000 < 20e-6

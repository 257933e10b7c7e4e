"""Instruments of a process: `prometheus_client`'s counters and histograms, and gauges of our own.

A gauge is never set: it reads its sources (`read_from`) while they last, so that a partition that
was assigned to another replica leaves no stale number behind. Of several sources for the same
labels the highest number counts. The library's own gauges have one function each, and keep a child
until it is removed.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import prometheus_client
import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Bounds of buckets for what involves a disk or a network."""

Source = Callable[[], Mapping[tuple[str, ...], float]]
"""Returns a gauge's numbers by the values of its labels."""

_log = structlog.get_logger()


class Gauge(Collector):
    """A gauge that reads its sources when it is collected."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self.name: Final = name
        self.text: Final = text
        self.labels: Final = labels
        self._sources: list[Source] = []

    @contextlib.contextmanager
    def read_from(self, source: Source) -> Iterator[None]:
        """Read a source while the context lasts."""
        self._sources.append(source)
        try:
            yield
        finally:
            self._sources.remove(source)

    def read(self) -> dict[tuple[str, ...], float]:
        """Return the numbers; of several for the same labels the highest."""
        found: dict[tuple[str, ...], float] = {}
        for source in list(self._sources):
            try:
                numbers = source()
            except Exception:  # noqa: BLE001 - one number's failure must not hide all others
                _log.exception("a gauge cannot be read", gauge=self.name)
                continue
            for values, number in numbers.items():
                assert len(values) == len(self.labels), (self.name, values)
                found[values] = max(number, found.get(values, number))
        return found

    def collect(self) -> Iterable[Metric]:
        """Yield the numbers, if there are any."""
        if numbers := self.read():
            family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
            for values, number in sorted(numbers.items()):
                family.add_metric(values, number)
            yield family


class Instrument(NamedTuple):
    """A declared instrument."""

    kind: str
    name: str
    text: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...]
    """Of a histogram's buckets."""
    metric: Counter | Histogram | Gauge


class Meter:
    """The instruments of a process."""

    def __init__(self) -> None:
        self.instruments: Final[list[Instrument]] = []
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry: Final = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # memory, CPU, open files

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Declare a counter."""
        assert name.endswith("_total"), name
        counter = Counter(name, text, labels, registry=self._registry)
        self.instruments.append(Instrument("counter", name, text, labels, (), counter))
        return counter

    def histogram(
        self, name: str, text: str, *labels: str, bounds: tuple[float, ...] = SECONDS
    ) -> Histogram:
        """Declare a histogram."""
        histogram = Histogram(name, text, labels, registry=self._registry, buckets=bounds)
        self.instruments.append(Instrument("histogram", name, text, labels, bounds, histogram))
        return histogram

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Declare a gauge."""
        gauge = Gauge(name, text, labels)
        self._registry.register(gauge)
        self.instruments.append(Instrument("gauge", name, text, labels, (), gauge))
        return gauge

    def expose(self) -> bytes:
        """Return all numbers in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)

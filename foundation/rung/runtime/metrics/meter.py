"""What a process counts and times, in the form that Prometheus reads.

An instrument is declared once and costs nothing until somebody reads it: without the package
`prometheus_client`, which one machine does not need, counting does nothing. A loop asks for its
child (`of`) once, when it begins, and not for every event.

Gauges are never set. Whoever knows a number says how to read it (`read_from`) for as long as it
knows it; so a partition that went to another replica leaves no stale number behind.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, Protocol

import structlog

from rung.events import RungError

SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Bounds of buckets for what involves a disk or a network."""

Source = Callable[[], Mapping[tuple[str, ...], float]]
"""Tells a gauge's numbers by the values of its labels."""

_log = structlog.get_logger()


class MeterMissing(RungError):
    """The package that writes Prometheus' format is not installed."""


class Count(Protocol):
    """A number that only grows."""

    def inc(self, amount: float = 1) -> None:
        """Add to it."""
        ...


class Watch(Protocol):
    """A distribution."""

    def observe(self, amount: float) -> None:
        """Add an observation."""
        ...


class _Nothing:
    """Stands in for a child when nobody can read it."""

    def inc(self, amount: float = 1) -> None:
        """Count nothing."""

    def observe(self, amount: float) -> None:
        """Observe nothing."""


_NOTHING: Final = _Nothing()


class Instrument:
    """What all instruments say of themselves."""

    kind: str

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self.name: Final = name
        self.text: Final = text
        self.labels: Final = labels


class Counter(Instrument):
    """Counts what happened."""

    kind = "counter"

    def __init__(self, meter: "Meter", name: str, text: str, labels: tuple[str, ...]) -> None:
        super().__init__(name, text, labels)
        self._meter = meter

    def of(self, *values: str) -> Count:
        """Return the count for some values of the labels; keep it where it is used often."""
        child: Count = self._meter.child(self, values)
        return child


class Histogram(Instrument):
    """Counts how long things took."""

    kind = "histogram"

    def __init__(
        self,
        meter: "Meter",
        name: str,
        text: str,
        labels: tuple[str, ...],
        bounds: tuple[float, ...],
    ) -> None:
        super().__init__(name, text, labels)
        self.bounds: Final = bounds
        self._meter = meter

    def of(self, *values: str) -> Watch:
        """Return the distribution for some values of the labels."""
        child: Watch = self._meter.child(self, values)
        return child


class Gauge(Instrument):
    """Says how things are, when asked."""

    kind = "gauge"

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        super().__init__(name, text, labels)
        self._sources: list[Source] = []

    @contextlib.contextmanager
    def read_from(self, source: Source) -> Iterator[None]:
        """Have a source asked, while the context lasts."""
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
                told = source()
            except Exception:  # noqa: BLE001 - one number's trouble must not hide all others
                _log.exception("a gauge cannot be read", gauge=self.name)
                continue
            for values, number in told.items():
                assert len(values) == len(self.labels), (self.name, values)
                found[values] = max(number, found.get(values, number))
        return found


class Meter:
    """The instruments of a process."""

    def __init__(self) -> None:
        self.instruments: Final[list[Counter | Histogram | Gauge]] = []
        self._children: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._families: dict[str, Any] = {}
        self._making: Final = threading.RLock()
        """Held while anything is registered: threads count, too, and may be the first to."""

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Declare a counter."""
        assert name.endswith("_total"), name
        counter = Counter(self, name, text, labels)
        self.instruments.append(counter)
        return counter

    def histogram(
        self, name: str, text: str, *labels: str, bounds: tuple[float, ...] = SECONDS
    ) -> Histogram:
        """Declare a histogram."""
        histogram = Histogram(self, name, text, labels, bounds)
        self.instruments.append(histogram)
        return histogram

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Declare a gauge."""
        gauge = Gauge(name, text, labels)
        self.instruments.append(gauge)
        return gauge

    def expose(self) -> bytes:
        """Return all numbers in Prometheus' text format.

        Raises:
            MeterMissing: `prometheus_client` is not installed.
        """
        with self._making:
            registry = self._registry
        if registry is None:
            raise MeterMissing(
                "metrics in Prometheus' format need the package prometheus-client: "
                "pip install prometheus-client"
            )
        for instrument in self.instruments:
            if not instrument.labels and not isinstance(instrument, Gauge):
                instrument.of()  # a count of 0 is a number, too
        client = _client()
        assert client is not None
        exposed: bytes = client.generate_latest(registry)
        return exposed

    def collect(self) -> Iterator[Any]:
        """Yield the gauges, as a collector of `prometheus_client` does."""
        client = _client()
        assert client is not None
        for instrument in self.instruments:
            if isinstance(instrument, Gauge) and (numbers := instrument.read()):
                family = client.core.GaugeMetricFamily(
                    instrument.name, instrument.text, labels=instrument.labels
                )
                for values, number in sorted(numbers.items()):
                    family.add_metric(values, number)
                yield family

    def child(self, instrument: Counter | Histogram, values: tuple[str, ...]) -> Any:
        """Return an instrument's child for some values of its labels, always the same one."""
        key = (instrument.name, values)
        found = self._children.get(key)
        if found is None:
            assert len(values) == len(instrument.labels), (instrument.name, values)
            with self._making:
                family = self._family(instrument)
                if family is None:
                    return _NOTHING
                found = self._children[key] = family.labels(*values) if values else family
        return found

    def _family(self, instrument: Counter | Histogram) -> Any:
        client, registry = _client(), self._registry
        if client is None:
            return None
        family = self._families.get(instrument.name)
        if family is None:
            arguments = (instrument.name, instrument.text, instrument.labels)
            if isinstance(instrument, Counter):
                family = client.Counter(*arguments, registry=registry)
            else:
                family = client.Histogram(*arguments, registry=registry, buckets=instrument.bounds)
            self._families[instrument.name] = family
        return family

    @functools.cached_property
    def _registry(self) -> Any:
        """Where the families are, with those of the process: memory, CPU, open files."""
        client = _client()
        if client is None:
            return None
        client.disable_created_metrics()
        registry = client.CollectorRegistry()
        client.ProcessCollector(registry=registry)
        registry.register(self)
        return registry


@functools.cache
def _client() -> ModuleType | None:
    """Return `prometheus_client`, imported when something is first counted."""
    try:
        import prometheus_client  # noqa: PLC0415 - costs 40 ms, and is not always there
        import prometheus_client.core  # noqa: PLC0415 - as above
    except ModuleNotFoundError:
        return None
    return prometheus_client

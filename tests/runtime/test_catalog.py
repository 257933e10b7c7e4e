"""The names that Rung tells Prometheus."""

import re

import pytest

from rung.runtime.metrics.catalog import METER
from rung.runtime.metrics.meter import Instrument

_each = pytest.mark.parametrize("instrument", METER.instruments, ids=lambda it: it.name)


def test_no_name_is_declared_twice() -> None:
    """Two instruments of one name would be one series with two meanings."""
    names = [instrument.name for instrument in METER.instruments]

    assert sorted(set(names)) == sorted(names)


@_each
def test_a_name_says_what_it_is(instrument: Instrument) -> None:
    """As Prometheus advises: the product first, counters end in _total, units are plain."""
    assert re.fullmatch(r"rung_[a-z_]+", instrument.name)
    assert instrument.name.endswith("_total") == (instrument.kind == "counter")
    if instrument.kind == "histogram":
        assert instrument.name.endswith("_seconds")
        assert list(instrument.bounds) == sorted(set(instrument.bounds))


@_each
def test_help_is_a_sentence(instrument: Instrument) -> None:
    """Whoever finds the series in Prometheus reads there what it says."""
    assert instrument.text.endswith(".")
    assert len(instrument.text) > 10


def test_everything_can_be_read_before_anything_happened() -> None:
    """A scrape of a process that has just begun succeeds."""
    told = METER.expose().decode()

    for name in ("rung_trial_restarts_total", "rung_series_flush_seconds_count"):
        assert re.search(rf"^{name} \d", told, re.MULTILINE), name

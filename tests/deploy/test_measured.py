"""The list of what is measured, which dashboard and alerts are held against, and the code."""

import pytest

from deploy.measured import MEASURED


def test_the_code_measures_what_is_listed() -> None:
    """A name is permanent: somebody's alert rests on it."""
    measure = pytest.importorskip("rung.runtime.metrics.catalog")
    instruments = {
        f"{instrument.name}{part}": frozenset(instrument.labels)
        | ({"le"} if part == "_bucket" else set())
        for instrument in measure.METER.instruments
        for part in (("_bucket", "_count", "_sum") if instrument.kind == "histogram" else ("",))
    }

    assert instruments == MEASURED

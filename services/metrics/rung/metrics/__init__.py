"""Keeps what trials report and print in ClickHouse, for curves, best values and log pages."""

from rung.metrics.clickhouse.errors import (
    SeriesDamaged,
    SeriesError,
    SeriesLocked,
    SeriesUnavailable,
)
from rung.metrics.clickhouse.schema import Migration, Plan
from rung.metrics.curves import Point
from rung.metrics.service import serve
from rung.metrics.settings import Settings
from rung.metrics.store import SeriesStore, migrate_series

__all__ = [
    "Migration",
    "Plan",
    "Point",
    "SeriesDamaged",
    "SeriesError",
    "SeriesLocked",
    "SeriesStore",
    "SeriesUnavailable",
    "Settings",
    "migrate_series",
    "serve",
]

"""Keeps what trials report and print, and answers for curves, best values and lines."""

from rung.metrics.clickhouse.errors import (
    SeriesDamaged,
    SeriesError,
    SeriesLocked,
    SeriesUnavailable,
)
from rung.metrics.clickhouse.opening import migrate_series, open_series
from rung.metrics.clickhouse.schema import Migration, Plan
from rung.metrics.query import LogEntry, Point
from rung.metrics.service import serve
from rung.metrics.settings import Settings
from rung.metrics.store import SeriesStore

__all__ = [
    "LogEntry",
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
    "open_series",
    "serve",
]

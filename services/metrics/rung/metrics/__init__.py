"""Keeps what trials report and print, and answers for curves, best values and lines."""

from rung.metrics.config import Settings
from rung.metrics.errors import SeriesDamaged, SeriesError, SeriesLocked, SeriesUnavailable
from rung.metrics.query import LogEntry, Point
from rung.metrics.service import serve
from rung.metrics.store import SeriesStore

__all__ = [
    "LogEntry",
    "Point",
    "SeriesDamaged",
    "SeriesError",
    "SeriesLocked",
    "SeriesStore",
    "SeriesUnavailable",
    "Settings",
    "serve",
]

"""Printed lines, as readers of a store get them."""

from typing import Any

from metrics.report import EXPERIMENT
from rung.api import LogLine, LogSelection
from rung.metrics import SeriesStore


async def page(store: SeriesStore, **asked: Any) -> tuple[list[LogLine], str | None]:
    """Return a page of lines, and where the next begins.

    It is of `EXPERIMENT`, if no trial and no experiment is named.
    """
    if not asked.get("trial_id"):
        asked = {"experiment_id": EXPERIMENT} | asked
    return await store.logs(LogSelection(**{"limit": 50_000} | asked))


async def all_lines(store: SeriesStore, **asked: Any) -> list[LogLine]:
    """Return all lines that are asked for."""
    found, after = await page(store, **asked)
    assert after is None
    return found
